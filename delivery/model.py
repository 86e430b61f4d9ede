"""The values that flow: event, subscription, endpoint, delivery, attempt, outcome. See docs/glossary.md.

Runs on the driver and in the executors. Imports the standard library only, so that shipping these values costs nothing.
What is made for every event is a NamedTuple: a frozen dataclass takes two to three times as long to make (1.3 to 2.7 µs).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, NewType, Protocol, TypeAlias, TypeVar

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
"""The tenant of operational events, whose sub-tenants are the customers: each event is about an endpoint of one. It is known
and active without a row, so that no `fanout apply --prune` ends them; the registry refuses a tenant of this name."""

KEPT_RESPONSE_BYTES = 1024
"""How much of a response goes into the dead letter."""


Attribute: TypeAlias = str | bool | int
"""A value in the types that CloudEvents has for JSON."""
Attributes: TypeAlias = tuple[tuple[str, Attribute], ...]
"""Names and values, each name once."""


class Record(NamedTuple):
    """One Kafka record as it was read."""

    topic: str
    partition: int
    offset: int
    appended_at_ms: int
    """When Kafka appended it, milliseconds since the epoch: where an event's latency begins."""
    value: bytes | None
    """None is a tombstone."""
    headers: tuple[tuple[str, bytes], ...] = ()


class Event(NamedTuple):
    """One thing that happened at a tenant."""

    event_id: EventId
    event_type: str
    source: str
    tenant_id: TenantId
    sub_tenant_id: SubTenantId | None
    time: str
    """When it happened, RFC 3339, as the producer said it; else when Kafka appended it."""
    data: bytes
    """The payload, JSON, byte for byte as it came."""
    content: Any
    """The payload, parsed once, for the filters."""
    record: Record
    attributes: Attributes = ()
    """The CloudEvents attributes without a field above: `subject`, `dataschema` and extensions, as the producer said them."""


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
    DIRECT = "direct"
    BATCH = "batch"


class AuthKind(enum.StrEnum):
    NONE = "none"
    BASIC = "basic"
    BEARER = "bearer"
    API_KEY = "api_key"
    OAUTH2 = "oauth2"


class ContentMode(enum.StrEnum):
    """How an event is laid out in a request."""

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
    """What an endpoint wants to see beside the signature."""

    kind: AuthKind = AuthKind.NONE
    username: str | None = None
    """For `basic`."""
    header: str | None = None
    """For `api_key`: the name of the header that carries it."""
    secret: Secret | None = None
    """Password, token or key; for `oauth2` the client secret."""
    client_id: str | None = None
    """For `oauth2`, as the two below: who asks for a token, by the client credentials grant (RFC 6749, section 4.4)."""
    token_url: str | None = None
    token_scope: str | None = None
    """Scopes to ask for, parted by spaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """A key that signs what an endpoint receives. Several at once while a rotation lasts."""

    secret: Secret
    """For `v1` the raw HMAC key, for `v1a` the 32 bytes of the ed25519 seed."""
    scheme: SignatureScheme = SignatureScheme.HMAC
    expires_at_s: float | None = None
    """Seconds since the epoch from which on it signs no more; None: until it is taken away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """What differs from the system's defaults in connections to one endpoint. PEM texts."""

    authorities: str | None = None
    """Certificates to trust instead of the system's; verification itself is never turned off."""
    certificate: str | None = None
    """Client certificate, its chain after it, for mutual TLS; with `key`."""
    key: Secret | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How an endpoint in batch mode takes its events: a batch leaves by whichever bound is reached first."""

    max_events: int = 1000
    max_wait_s: float = 1.0
    """Counted from the batch's first event, when Kafka appended it."""
    max_bytes: int = 1024 * 1024
    """Of the body, before it is compressed. An event that alone is larger leaves alone."""
    is_gzipped: bool = False
    """Whether the body is sent with `content-encoding: gzip`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrying:
    """How long, and how often, the retry lane goes on for one endpoint."""

    schedule_s: tuple[float, ...] = (5, 300, 1_800, 7_200, 18_000, 36_000, 36_000)
    """The waits before each further attempt, seconds, each spread by ±20 %. Empty: what fails in its lane is given up there."""
    max_age_s: float = 259_200.0
    """How long a delivery may wait in the retry lane, whatever for; then it becomes a dead letter."""
    timeout_s: float = 15.0
    """Total time of one attempt in the retry lane."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a customer takes deliveries."""

    endpoint_id: EndpointId
    customer_id: CustomerId
    url: str = field(repr=False)
    """Not shown: its path and query may carry tokens."""
    status: EndpointStatus = EndpointStatus.ACTIVE
    mode: DeliveryMode = DeliveryMode.DIRECT
    signing_keys: tuple[SigningKey, ...] = ()
    """Newest first. Each that has not expired signs every request."""
    auth: Auth = field(default_factory=Auth)
    content_mode: ContentMode = ContentMode.STANDARD
    headers: tuple[tuple[str, str], ...] = ()
    """Names and values that the customer wants in each request; not for secrets, those are `auth`'s."""
    tls: Tls | None = None
    max_in_flight: int | None = None
    """At most so many requests under way to it at once, over all workers; None: the operator's bound for each worker."""
    max_per_second: float | None = None
    """At most so many requests a second, over all workers; None: no bound."""
    batching: Batching | None = None
    """Set in batch mode, and only there."""
    retrying: Retrying = field(default_factory=Retrying)
    order_by: str | None = None
    """Dotted path of a field of the payload: events with the same value in it are delivered one after the other, in the order
    of their arrival. Direct mode only; None: no order."""
    origin: str | None = None
    """As whom its receiver has permitted us to send, after it was asked; each request says it. None: it was not asked."""
    fault: str | None = None
    """Why the row cannot be used (a secret that does not open, a refused URL); quarantines this endpoint alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Whose events a subscription is about. An exclusion always wins.

    What is included may be much, and is indexed before it is asked for; so it is in tuples, which take a tenth of the memory of
    sets. They are sorted, so that equal scopes are equal.
    """

    everything: bool = False
    """All tenants, known and to come, but not the platform itself; the includes are then empty."""
    tenants: tuple[TenantId, ...] = ()
    sub_tenants: tuple[tuple[TenantId, SubTenantId], ...] = ()
    without_tenants: frozenset[TenantId] = frozenset()
    without_sub_tenants: frozenset[tuple[TenantId, SubTenantId]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """Which events go to one endpoint."""

    subscription_id: SubscriptionId
    endpoint_id: EndpointId
    event_type: str
    """An exact type, or a prefix wildcard: `order.*`, `*`."""
    scope: Scope
    filter_pattern: dict[str, Any] | None = None
    """An event pattern (see delivery.webhooks.filters.event_pattern), or None for no filter."""
    status: SubscriptionStatus = SubscriptionStatus.ACTIVE
    fault: str | None = None
    """Why the row cannot be used; its events end as skipped with reason `quarantined`."""


class Sendable(Protocol):
    """What is posted in one request: a delivery, or a batch of them."""

    @property
    def endpoint(self) -> Endpoint: ...
    @property
    def webhook_id(self) -> str:
        """The `webhook-id` that every attempt carries; the receiver's key to recognise a repeat."""

    @property
    def body(self) -> bytes:
        """What is sent."""

    @property
    def signed(self) -> bytes:
        """What is signed: the body, before it was compressed."""

    @property
    def content_headers(self) -> bytes:
        """The header lines that describe the body, each ended by CRLF."""

    @property
    def kept_response_bytes(self) -> int:
        """How much of the response is worth keeping."""


Sent = TypeVar("Sent", bound=Sendable)


class Delivery(NamedTuple):
    """One event due to one subscription: the unit that is delivered, dead-lettered or skipped."""

    event: Event
    subscription: Subscription
    endpoint: Endpoint
    webhook_id: str
    """The `webhook-id` that every attempt carries; the receiver's key to recognise a repeat."""
    body: bytes
    """What is signed and sent; deliveries of one event in one content mode share it."""
    content_headers: bytes = b""
    """The header lines that describe the body, each ended by CRLF; shared like it."""
    order_key: str | None = None
    """What it must stay in order with at its endpoint; None: nothing."""

    @property
    def signed(self) -> bytes:
        """The body: a single event's is never compressed."""
        return self.body

    @property
    def kept_response_bytes(self) -> int:
        """Enough for a person to see, in the dead letter, what was wrong."""
        return KEPT_RESPONSE_BYTES


class SkipReason(enum.StrEnum):
    """Why a due delivery was not attempted. A closed set: it labels metrics."""

    SUBSCRIPTION_PAUSED = "subscription_paused"
    QUARANTINED = "quarantined"
    ENDPOINT_DELETED = "endpoint_deleted"
    """While the event waited for its batch; as the next."""
    SUBSCRIPTION_DELETED = "subscription_deleted"
    TENANT_DELETED = "tenant_deleted"


class LeaveReason(enum.StrEnum):
    """Why a batch left. A closed set: it labels metrics."""

    COUNT = "count"
    BYTES = "bytes"
    TIME = "time"
    REDRIVE = "redrive"
    """Its events had been given up, and somebody asked for them again."""


class Attempt(NamedTuple):
    """One request, and its result."""

    number: int
    """Number of the attempt, from 1."""
    started_at_ms: int
    """When the attempt started."""
    duration_ms: float
    """Duration of the attempt."""
    status: int | None
    """HTTP status of the response. None: no response came."""
    error_class: str | None
    """Error class of the failure, from the closed set in `policy.retry_decision`. None: the endpoint accepted it."""
    detail: str = ""
    """The error's text for a person, without secrets and without the full URL."""
    response: bytes = b""
    """Beginning of the response's body."""
    retry_after_s: float | None = None
    """The wait that the response asked for (`Retry-After`), up to a cap. None: it asked for none."""


class OutcomeKind(enum.StrEnum):
    DELIVERED = "delivered"
    DEAD_LETTERED = "dead_lettered"
    SKIPPED = "skipped"
    POSTPONED = "postponed"
    """Handed to the retry lane, where it waits for its next attempt."""


class Again(NamedTuple):
    """When a delivery is attempted again."""

    at_ms: int
    """Earliest time of the next attempt."""
    retries: int
    """Number of waits of the endpoint's schedule that are used up, this one included."""


class Outcome(NamedTuple, Generic[Sent]):
    """How a delivery ended in this lane, or a batch of them. A failed delivery is data, not an exception."""

    delivery: Sent
    kind: OutcomeKind
    attempts: tuple[Attempt, ...] = ()
    reason: str | None = None
    """For `skipped` a SkipReason; for `dead_lettered` and `postponed` the error class of the last attempt, or what kept it from
    being attempted (delivery.webhooks.policy.retry_decision); else None."""
    again: Again | None = None
    """For `postponed`, and only there."""
    earlier: tuple[Attempt, ...] = ()
    """Attempts before these, in other lanes or turns. They were logged then, and are told once more in the dead letter."""
    replay: str | None = None
    """Set: it was asked for again, by this replay, and is on no lane's account of what was due."""
    under_way: bytes | None = None
    """Set, for some of what is `postponed`: an attempt of it goes on, and what comes of it is told by this name."""
