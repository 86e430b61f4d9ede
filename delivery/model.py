"""The values of the domain: event, subscription, endpoint, delivery, attempt, outcome. See docs/glossary.md.

Used in every process. Imports the standard library only, so that a process unpickles a value without other modules. Values
that are made for every event are NamedTuples: a frozen dataclass takes two to three times as long (1.3 to 2.7 µs).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, NewType, Protocol, TypeAlias, TypeVar

from delivery.payload_form import EndpointPayload, Framed, Opaque
from delivery.secret import Secret

EventId = NewType("EventId", str)
TenantId = NewType("TenantId", str)
SubTenantId = NewType("SubTenantId", str)
CustomerId = NewType("CustomerId", str)
EndpointId = NewType("EndpointId", str)
SubscriptionId = NewType("SubscriptionId", str)
Revision = NewType("Revision", int)
"""Number of a committed change of the registry; grows by at least one with each commit."""

PLATFORM = TenantId("fanout")
"""Tenant of operational events. The sub-tenant of an operational event is the customer of the endpoint that the event is about.
This tenant is active without a row in the registry, so that `fanout apply --prune` cannot remove it. The registry refuses a
tenant of this name."""

KEPT_RESPONSE_BYTES = 1024
"""Most bytes of a response's body that a dead letter keeps."""

Attribute: TypeAlias = str | bool | int
"""Value of a CloudEvents attribute, in the types that CloudEvents has for JSON."""
Attributes: TypeAlias = tuple[tuple[str, Attribute], ...]
"""Names and values of CloudEvents attributes, each name once."""


class Record(NamedTuple):
    """One Kafka record as it was read."""

    topic: str
    partition: int
    offset: int
    appended_at_ms: int
    """When Kafka appended the record, milliseconds since the epoch. An event's latency counts from this time."""
    value: bytes | None
    """The content. None: the record is a tombstone."""
    headers: tuple[tuple[str, bytes], ...] = ()


class Event(NamedTuple):
    """One thing that happened at a tenant."""

    event_id: EventId
    event_type: str
    source: str
    tenant_id: TenantId
    sub_tenant_id: SubTenantId | None
    time: str
    """When the event happened (RFC 3339), as its producer wrote it. Without a time of the producer: when Kafka appended the
    record."""
    data: bytes
    """The payload as JSON, byte for byte as it came. An opaque payload is a JSON string: its text, or the base64 of its bytes
    (`delivery.webhooks.events.opaque`). An event without a payload has `null`."""
    content: Any
    """The payload, parsed once, for the filters. Opaque bytes, and no payload, are an empty object: filters see no field."""
    record: Record
    attributes: Attributes = ()
    """The CloudEvents attributes without a field above: `subject`, `dataschema` and extensions, as the producer wrote them."""
    opaque: Opaque | None = None
    """Form and media type of a payload that is not JSON. None: the payload is JSON."""
    payload_digest: str = ""
    """Digest of the payload. Set only if `source.reused_ids` is `told_apart`: then the `webhook-id` depends on it too."""
    has_invalid_time: bool = False
    """True if the producer's time is no RFC 3339 time, and `time` is when Kafka appended the record. False after the event was
    packed."""
    framed: Framed | None = None
    """The value from which `data` was decoded by a schema. None: nothing was decoded, or the event was packed."""


class TenantStatus(enum.StrEnum):
    ACTIVE = "active"
    SUSPENDED = "suspended"


class EndpointStatus(enum.StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"
    DISABLED = "disabled"


class SubscriptionStatus(enum.StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"


class DeliveryMode(enum.StrEnum):
    """DIRECT: each event goes to the endpoint in a request of its own. BATCH: several events share a request."""

    DIRECT = "direct"
    BATCH = "batch"


class AuthKind(enum.StrEnum):
    NONE = "none"
    BASIC = "basic"
    BEARER = "bearer"
    API_KEY = "api_key"
    OAUTH2 = "oauth2"


class ContentMode(enum.StrEnum):
    """The layout of an event in a request."""

    STANDARD = "standard"
    """The body of Standard Webhooks 1.0: the event's attributes, and the payload under `data`."""
    CLOUDEVENTS_BINARY = "cloudevents_binary"
    """CloudEvents HTTP binding, binary mode: attributes as `ce-` headers, the payload as the body."""
    CLOUDEVENTS_STRUCTURED = "cloudevents_structured"
    """CloudEvents HTTP binding, structured mode: one JSON document, the payload under `data`."""


class SignatureScheme(enum.StrEnum):
    """The signature identifiers of Standard Webhooks 1.0."""

    HMAC = "v1"
    """HMAC-SHA256; the customer holds the same key."""
    ED25519 = "v1a"
    """ed25519; the customer holds the public key only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Auth:
    """Authentication that an endpoint asks for in addition to the signature."""

    kind: AuthKind = AuthKind.NONE
    username: str | None = None
    """For `basic`."""
    header: str | None = None
    """For `api_key`: name of the header with the key."""
    secret: Secret | None = None
    """Password, token or key; for `oauth2` the client secret."""
    client_id: str | None = None
    """For `oauth2`: the client of the client credentials grant (RFC 6749, section 4.4)."""
    token_url: str | None = None
    """For `oauth2`: URL of the token server."""
    token_scope: str | None = None
    """For `oauth2`: scopes to ask for, separated by spaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """A key that signs the requests to an endpoint. During a rotation an endpoint has several."""

    secret: Secret
    """For `v1` the raw HMAC key, for `v1a` the 32 bytes of the ed25519 seed."""
    scheme: SignatureScheme = SignatureScheme.HMAC
    expires_at_s: float | None = None
    """Seconds since the epoch at which the key stops signing. None: the key signs until it is removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS settings for the connections to one endpoint, as PEM texts. None: as on any other connection."""

    authorities: str | None = None
    """Certificates to trust instead of the system's. Verification itself is always on."""
    certificate: str | None = None
    """Client certificate for mutual TLS, followed by its chain. Set together with `key`."""
    key: Secret | None = None
    """Private key of `certificate`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """Bounds of an endpoint's batches. A batch is sent when it reaches any bound."""

    max_events: int = 1000
    max_wait_s: float = 1.0
    """Longest wait, from when Kafka appended the batch's first event."""
    max_bytes: int = 1024 * 1024
    """Bytes of the body, before it is compressed. A larger event is sent alone."""
    is_gzipped: bool = False
    """True if the body is sent with `content-encoding: gzip`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrying:
    """Retry policy of one endpoint in the retry lane."""

    schedule_s: tuple[float, ...] = (5, 300, 1_800, 7_200, 18_000, 36_000, 36_000)
    """Seconds to wait before each attempt of the retry lane, randomised by ±20 %. Empty: the retry lane makes no attempts."""
    max_age_s: float = 259_200.0
    """Seconds that a delivery may wait in the retry lane, for any reason. Then it becomes a dead letter."""
    timeout_s: float = 15.0
    """Seconds of one attempt in the retry lane, in total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a customer takes deliveries."""

    endpoint_id: EndpointId
    customer_id: CustomerId
    url: str = field(repr=False)
    """URL of the requests. Left out of `repr`, because path and query may carry tokens."""
    status: EndpointStatus = EndpointStatus.ACTIVE
    mode: DeliveryMode = DeliveryMode.DIRECT
    signing_keys: tuple[SigningKey, ...] = ()
    """Keys, newest first. Each key that has not expired signs every request."""
    auth: Auth = field(default_factory=Auth)
    content_mode: ContentMode = ContentMode.STANDARD
    payload: EndpointPayload = EndpointPayload.JSON
    headers: tuple[tuple[str, str], ...] = ()
    """Names and values that the customer wants in each request. Secrets belong in `auth`."""
    tls: Tls | None = None
    max_in_flight: int | None = None
    """Most requests in flight to the endpoint, over all workers. None: the operator's bound for each worker holds."""
    max_per_second: float | None = None
    """Most requests a second to the endpoint, over all workers. None: no bound."""
    batching: Batching | None = None
    """Bounds of the endpoint's batches. Set in batch mode only."""
    retrying: Retrying = field(default_factory=Retrying)
    order_by: str | None = None
    """Dotted path of a field of the payload. Events with the same value of this field are delivered one after the other, in
    the order of their arrival. Direct mode only. None: no order."""
    origin: str | None = None
    """Our origin that the receiver permitted in a handshake. Each request names this origin. None: there was no handshake."""
    fault: str | None = None
    """Why the endpoint's row in the registry is unusable, such as a secret that does not open or a refused URL. The endpoint is
    then quarantined: its deliveries wait in the retry lane. None: the row is usable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The tenants and sub-tenants whose events a subscription gets. An exclusion always wins.

    Inclusions (`tenants`, `sub_tenants`) may be many, and are indexed before use. So inclusions are tuples, which take a tenth
    of the memory of sets. The tuples are sorted, so that equal scopes compare equal.
    """

    everything: bool = False
    """True if the scope includes all tenants, also future ones, except the platform itself. If true, `tenants` and
    `sub_tenants` are empty."""
    tenants: tuple[TenantId, ...] = ()
    sub_tenants: tuple[tuple[TenantId, SubTenantId], ...] = ()
    without_tenants: frozenset[TenantId] = frozenset()
    without_sub_tenants: frozenset[tuple[TenantId, SubTenantId]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A choice of events for one endpoint, by type, scope and filter. An endpoint may have several subscriptions."""

    subscription_id: SubscriptionId
    endpoint_id: EndpointId
    event_type: str
    """An exact type, or a prefix wildcard: `order.*`, `*`."""
    scope: Scope
    filter_pattern: dict[str, Any] | None = None
    """An event pattern (see delivery.webhooks.filters.event_pattern), or None for no filter."""
    status: SubscriptionStatus = SubscriptionStatus.ACTIVE
    fault: str | None = None
    """Why the subscription's row is unusable. Then its due events are skipped as `quarantined`. None: the row is usable."""


class Sendable(Protocol):
    """A delivery, or a batch: the content of one request."""

    @property
    def endpoint(self) -> Endpoint: ...
    @property
    def webhook_id(self) -> str:
        """The `webhook-id` of every attempt, by which the receiver recognises a repeat."""

    @property
    def body(self) -> bytes:
        """The body as sent."""

    @property
    def signed(self) -> bytes:
        """The bytes that are signed: the body before compression."""

    @property
    def content_headers(self) -> bytes:
        """The header lines that describe the body, each ended by CRLF."""

    @property
    def kept_response_bytes(self) -> int:
        """Most bytes of the response's body to keep."""


Sent = TypeVar("Sent", bound=Sendable)


class Delivery(NamedTuple):
    """One event due to one subscription: the unit that is delivered, dead-lettered, postponed or skipped."""

    event: Event
    subscription: Subscription
    endpoint: Endpoint
    webhook_id: str
    """The `webhook-id` of every attempt, by which the receiver recognises a repeat."""
    body: bytes
    """The body, signed and sent. Deliveries of one event in one content mode share it."""
    content_headers: bytes = b""
    """The header lines that describe the body, each ended by CRLF. Shared like the body."""
    order_key: str | None = None
    """Value of the field `order_by`, as text. Deliveries with the same key to an endpoint stay in order. None: no order."""

    @property
    def signed(self) -> bytes:
        """Return the body: the body of a single event is never compressed."""
        return self.body

    @property
    def kept_response_bytes(self) -> int:
        """Return the number of bytes of a response's body that a dead letter keeps."""
        return KEPT_RESPONSE_BYTES


class SkipReason(enum.StrEnum):
    """Why a due delivery was not attempted. A closed set: it labels metrics."""

    SUBSCRIPTION_PAUSED = "subscription_paused"
    QUARANTINED = "quarantined"
    ENDPOINT_DELETED = "endpoint_deleted"
    """The endpoint was deleted while the event waited."""
    SUBSCRIPTION_DELETED = "subscription_deleted"
    """The subscription was deleted while the event waited."""
    TENANT_DELETED = "tenant_deleted"
    """The event's tenant was deleted while the event waited."""
    BROUGHT_FORWARD = "brought_forward"
    """A resend asked for a delivery that waits in the retry lane. Its next attempt is due now. Only the resend is skipped."""


class LeaveReason(enum.StrEnum):
    """Why a batch was sent. A closed set: it labels metrics."""

    COUNT = "count"
    BYTES = "bytes"
    TIME = "time"
    REDRIVE = "redrive"
    """The events of the batch were dead letters, and a redrive enqueued them again."""


class Attempt(NamedTuple):
    """One request, and its result."""

    number: int
    """Number of the attempt, from 1."""
    started_at_ms: int
    """When the attempt started, milliseconds since the epoch."""
    duration_ms: float
    """Duration of the attempt, in milliseconds."""
    status: int | None
    """HTTP status of the response. None: no response came."""
    error_class: str | None
    """Error class of the failure (`policy.error_classes`, `delivery.errors`). None: the endpoint accepted the request."""
    detail: str = ""
    """The error's text for a person, without secrets and without the full URL."""
    response: bytes = b""
    """Beginning of the response's body."""
    retry_after_s: float | None = None
    """Seconds to wait, as the response asked for (`Retry-After`), up to a cap. None: the response asked for no wait."""


class OutcomeKind(enum.StrEnum):
    DELIVERED = "delivered"
    DEAD_LETTERED = "dead_lettered"
    SKIPPED = "skipped"
    POSTPONED = "postponed"
    """Handed to the retry lane, where it waits for its next attempt."""


class NextAttempt(NamedTuple):
    """The time of a delivery's next attempt in the retry lane."""

    at_ms: int
    """Earliest time of the next attempt, milliseconds since the epoch."""
    retries: int
    """Number of waits of the endpoint's schedule that are used up, including the wait until `at_ms`."""


class Outcome(NamedTuple, Generic[Sent]):
    """The end of a delivery, or of a batch, in one lane. A lane returns a failed delivery as data, and raises no exception."""

    delivery: Sent
    kind: OutcomeKind
    attempts: tuple[Attempt, ...] = ()
    reason: str | None = None
    """Skipped: a SkipReason. Dead-lettered or postponed: the error class of the last attempt, or why there was none (a word of
    delivery.webhooks.policy.retry_reasons). Else None."""
    next_attempt: NextAttempt | None = None
    """Set if the delivery is postponed."""
    earlier: tuple[Attempt, ...] = ()
    """Attempts before `attempts`, in other lanes or leases. The attempts topic has these already. A dead letter lists `earlier`
    and `attempts`."""
    replay: str | None = None
    """Id of the replay that asked for the delivery. None: no replay asked. Offset receipts do not count replayed deliveries."""
    background_attempt: bytes | None = None
    """Name of the delivery's background attempt that is in flight. The attempt's result will have the same name. None: no
    attempt is in flight."""
