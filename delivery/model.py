"""The values of a delivery: record, event, delivery, attempt, outcome. See docs/glossary.md.

Used in every process. Imports the standard library, `delivery.payload_form` and `delivery.registry_model` only, so that a
process unpickles a value without heavy modules. Values that are made for every event are NamedTuples, because creating a
frozen dataclass takes two to three times as long (1.3 to 2.7 µs).
"""

from __future__ import annotations

import enum
from typing import Any, Generic, NamedTuple, NewType, Protocol, TypeAlias, TypeVar

from delivery.payload_form import Framed, Opaque
from delivery.registry_model import Endpoint, Subscription, SubTenantId, TenantId

EventId = NewType("EventId", str)

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
    """The record's timestamp in Kafka, milliseconds since the epoch: when the broker appended the record. In a topic with
    `CreateTime`, when the producer wrote the record. An event's latency counts from this time."""
    value: bytes | None
    """The content. None: the record is a tombstone."""
    headers: tuple[tuple[str, bytes], ...] = ()
    key: bytes | None = None
    """The key. None: the record has no key, or the lane did not read the key. Only the direct and the real-time lane read keys,
    and only if they split batch records."""


class Event(NamedTuple):
    """One thing that happened at a tenant."""

    event_id: EventId
    """The event's id. If its producer gave none: `topic:partition:offset`."""
    event_type: str
    source: str
    tenant_id: TenantId
    sub_tenant_id: SubTenantId | None
    time: str
    """When the event happened (RFC 3339), as its producer wrote it. Without a valid time: when Kafka appended the record."""
    data: bytes
    """The payload as JSON, byte for byte as it came, or decoded by its schema. An opaque payload is a JSON string: its text, or
    the base64 of its bytes (`delivery.webhooks.events.opaque`). An event without a payload has `null`."""
    content: Any
    """The payload, parsed once, for the filters. Opaque text is a string. Opaque bytes, and no payload, are an empty object:
    filters see no field. None: the payload is `null`, or the job has stored the event and read it back without parsing it."""
    record: Record
    attributes: Attributes = ()
    """The CloudEvents attributes without a field above: `subject`, `dataschema` and extensions, as the producer wrote them."""
    opaque: Opaque | None = None
    """Form and media type of a payload that is not JSON. None: the payload is JSON."""
    json_type: str = ""
    """Media type of a JSON payload, by its producer. Empty for `application/json`, and for a payload that is not JSON."""
    payload_digest: str = ""
    """Digest of the payload. Set only if `source.reused_ids` is `told_apart`: then the `webhook-id` depends on it too."""
    has_invalid_time: bool = False
    """True if the producer's time is no RFC 3339 time, and `time` is when Kafka appended the record. Always False for an event
    that the job has stored and read back."""
    framed: Framed | None = None
    """The value from which `data` was decoded by a schema. None: nothing was decoded, or the job has stored the event and read
    it back without this value."""


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
        """The body as it is signed: before compression."""

    @property
    def content_headers(self) -> bytes:
        """The header lines that describe the body, each ended by CRLF."""

    @property
    def kept_response_bytes(self) -> int:
        """Most bytes of the response's body that `Attempt.response` keeps."""


Sent = TypeVar("Sent", bound=Sendable)


class Delivery(NamedTuple):
    """One event for one subscription that matches it: the unit that is delivered, dead-lettered, postponed or skipped."""

    event: Event
    subscription: Subscription
    endpoint: Endpoint
    webhook_id: str
    """The `webhook-id` of every attempt, by which the receiver recognises a repeat."""
    body: bytes
    """The body, signed and sent. Deliveries of one event in the same content mode and payload form share the body."""
    content_headers: bytes = b""
    """The header lines that describe the body, each ended by CRLF. Deliveries that share `body` share these too."""
    order_key: str | None = None
    """Value of the payload's field that `Endpoint.order_by` names, as JSON, or a digest of a long value. Empty: the payload has
    no such field. Deliveries to one endpoint that have the same key stay in order. None: no order."""

    @property
    def signed(self) -> bytes:
        """Return the body: the body of a single event is never compressed."""
        return self.body

    @property
    def kept_response_bytes(self) -> int:
        """Return the most bytes of a response's body that a dead letter keeps."""
        return KEPT_RESPONSE_BYTES


class SkipReason(enum.StrEnum):
    """The reason why a delivery is skipped: it is not attempted, or not attempted again. A closed set: it labels metrics."""

    SUBSCRIPTION_PAUSED = "subscription_paused"
    QUARANTINED = "quarantined"
    ENDPOINT_DELETED = "endpoint_deleted"
    """While the event waited, the endpoint was deleted, or its id was registered for another customer or delivery mode."""
    SUBSCRIPTION_DELETED = "subscription_deleted"
    """While the event waited, the subscription was deleted, or its id was registered for another endpoint."""
    TENANT_DELETED = "tenant_deleted"
    """The event's tenant was deleted while the event waited."""
    BROUGHT_FORWARD = "brought_forward"
    """A resend asked for a delivery that waits in the retry lane already, or that another resend put there. The next attempt of
    that delivery is brought forward. Only this resend is skipped."""


class LeaveReason(enum.StrEnum):
    """The reason why a batch was sent. A closed set: it labels metrics."""

    COUNT = "count"
    BYTES = "bytes"
    TIME = "time"
    REDRIVE = "redrive"
    """A redrive or a replay enqueued the events of the batch in the retry lane."""


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
    """Error class of the failure (`policy.error_classes`, `delivery.errors`), or `configuration` (`policy.retry_reasons`).
    None: the endpoint accepted the request."""
    detail: str = ""
    """The error's text for a person, without secrets and without the full URL."""
    response: bytes = b""
    """Beginning of the response's body."""
    retry_after_s: float | None = None
    """Seconds to wait, as the response to a failed attempt asked for, up to a cap. None: no readable `Retry-After`."""


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
    """Number of waits of the endpoint's schedule that are used up, including the wait until `at_ms` if that wait is part of the
    schedule."""


class Outcome(NamedTuple, Generic[Sent]):
    """The end of a delivery, or of a batch, in one lane. A lane returns a failed delivery as data, and raises no exception."""

    delivery: Sent
    kind: OutcomeKind
    attempts: tuple[Attempt, ...] = ()
    reason: str | None = None
    """Skipped: a SkipReason. Dead-lettered or postponed: the error class of the last attempt, or another cause, a word that
    delivery.webhooks.policy.retry_reasons names. Delivered: None."""
    next_attempt: NextAttempt | None = None
    """Set if the delivery is postponed."""
    earlier: tuple[Attempt, ...] = ()
    """Attempts before `attempts`, in other lanes, tasks or leases, as far as they are kept. Their log entries are not written
    again. A dead letter lists `earlier` and `attempts`."""
    replay: str | None = None
    """Id of the replay that asked for the delivery. None: no replay asked. Offset receipts (records of handled
    offsets) do not count replayed deliveries."""
    background_attempt: bytes | None = None
    """Name of the delivery's background attempt that is in flight. The attempt's result will have the same name. None: no
    attempt is in flight."""
