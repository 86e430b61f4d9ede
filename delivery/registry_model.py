"""The values of the registry: tenant, endpoint, subscription. See docs/glossary.md.

Used in every process. Imports only the standard library, `delivery.payload_form` and `delivery.secret`, so that a process
unpickles a value without large modules.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NewType

from delivery.payload_form import EndpointPayload
from delivery.secret import Secret

TenantId = NewType("TenantId", str)
SubTenantId = NewType("SubTenantId", str)
CustomerId = NewType("CustomerId", str)
EndpointId = NewType("EndpointId", str)
SubscriptionId = NewType("SubscriptionId", str)
Revision = NewType("Revision", int)
"""Number of a committed change of the registry; grows by at least one with each commit."""

PLATFORM = TenantId("fanout")
"""Tenant of operational events. The sub-tenant of an operational event is the customer that the event is about. An event about
a tenant's quota has no sub-tenant. This tenant is active without a row in the registry, so that `fanout apply --prune` cannot
remove it. The registry refuses a tenant of this name."""
FAILING = "failing"
"""Reason why the platform disables an endpoint: its attempts failed for `retry.disable_after_s` or longer, and none was
accepted. The endpoint was active in that time. The other reason is `error_classes.GONE`."""


class AttemptedEndpoint(NamedTuple):
    """An endpoint, and the hash of the URL to which requests were sent. The URL is left out, because it may carry tokens."""

    endpoint_id: EndpointId
    url_sha256: bytes | None = None
    """SHA-256 of the URL. None: the URL is not known, or requests were sent to different URLs."""


Disable = Callable[[Iterable[AttemptedEndpoint], str], None]
"""A function that requests to disable endpoints in the registry, for a reason. The function returns before the endpoints are
disabled. An endpoint that has another URL than `url_sha256` is not disabled."""


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
    """TLS settings of one endpoint, as PEM texts.

    Without `authorities`, the certificate authorities of the system are trusted. Without `certificate` and `key`, no client
    certificate is sent.
    """

    authorities: str | None = None
    """Certificates of the authorities to trust, instead of those of the system. Verification itself is always on."""
    certificate: str | None = None
    """Client certificate for mutual TLS, followed by its chain. Set together with `key`."""
    key: Secret | None = None
    """Private key of `certificate`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """Bounds of an endpoint's batches. A batch is sent when it reaches any bound, or somewhat before `max_wait_s` ends."""

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
    """Seconds that the retry lane waits after each failed attempt, in order, randomised by ±20 %. A delivery that fails after
    the last wait is given up. Empty: a failed delivery is given up at once, also in the retry lane, where it may have waited
    for another reason."""
    max_age_s: float = 259_200.0
    """Seconds that a delivery may wait in the retry lane, for any reason. Then it becomes a dead letter. A failed delivery
    becomes a dead letter at once if its next attempt would come after this time."""
    timeout_s: float = 15.0
    """Seconds of one attempt in the retry lane, in total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A URL at which a customer takes deliveries, with the secrets, the status and the limits of this URL."""

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
    """Most requests in flight to the endpoint, over all workers. Each worker has an equal share, at least one. The retry lane
    counts its requests separately. None: `delivery.max_in_flight_per_endpoint` bounds each task instead."""
    max_per_second: float | None = None
    """Most requests a second to the endpoint, over all workers. None: no bound."""
    batching: Batching | None = None
    """Bounds of the endpoint's batches. Set in batch mode only."""
    retrying: Retrying = field(default_factory=Retrying)
    order_by: str | None = None
    """Dotted path of a field of the payload. Events with the same value of this field are delivered one after the other, in
    the order of their arrival. Events without the field count as one value. Direct mode only. None: no order."""
    origin: str | None = None
    """Our origin that the receiver permitted in a handshake. Each request names this origin. None: the receiver has
    permitted no origin."""
    fault: str | None = None
    """The reason why the endpoint's row in the registry is unusable, such as a secret that does not open or a refused URL. The
    endpoint is then quarantined: its deliveries wait in the retry lane. None: the row is usable."""

    def as_attempted(self) -> AttemptedEndpoint:
        """Return the endpoint's id and the hash of its URL."""
        return AttemptedEndpoint(self.endpoint_id, hashlib.sha256(self.url.encode()).digest())


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
    """The reason why the subscription's row is unusable. Then its due events are skipped as `quarantined`. None: the row is
    usable."""
