"""The records of the dead-letter topic. Only this module writes and reads their bytes.

docs/delivery-contract.md describes a dead letter for customers. The platform writes no secret. Request headers are left out. A
URL is cut to its origin, because paths and queries carry tokens. The beginning of a response's body is kept without redaction,
so it has the secrets that the receiver wrote into it. A field with a default is always written; a field that may be UNSET is
left out when it has no value. Readers ignore unknown fields.
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from delivery.model import Attempt, Attribute, Event, EventId, Record
from delivery.payload_form import Opaque, PayloadForm
from delivery.registry_model import CustomerId, DeliveryMode, EndpointId, SubscriptionId, SubTenantId, TenantId
from delivery.webhooks.events import opaque
from delivery.webhooks.results.log_entries import Due
from delivery.webhooks.state.json_decoding import JsonDecoder

MAX_BYTES = 1_040_000
"""Most bytes of a dead letter. `bounded` leaves out the oldest attempts of a larger dead letter. By default a topic of Kafka
takes records of 1 MiB, including the key and Kafka's own overhead."""


class Header(msgspec.Struct, frozen=True, gc=False):
    """A header of a Kafka record."""

    name: str
    """The header's name."""
    value_base64: str
    """The header's value in base64. The value may be any bytes."""


class LetterAttempt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An attempt in a dead letter."""

    attempt: int
    """Number of the attempt, from 1."""
    started_at_ms: int
    """When the attempt started."""
    duration_ms: float
    """Duration of the attempt, rounded to a tenth."""
    status: int | None = None
    """HTTP status of the response. Null: no response came."""
    error_class: str | None = None
    """Error class of the failure. Null: the endpoint accepted the delivery."""
    detail: str = ""
    """The error's text for a person, without secrets and without the full URL."""
    retry_after_s: float | None = None
    """Wait that the response to a failed attempt asked for, up to a cap. Null: it asked for none. Since 2026-11-21."""
    response: str = ""
    """Beginning of the response's body, 1 KiB at most, as text. Bytes that are not UTF-8 are replaced."""
    response_headers: dict[str, str] | UnsetType = UNSET
    """Headers of the response to a failed attempt, by name, from a fixed list without credentials. Left out where there are
    none, and for attempts of earlier lanes and leases, whose headers are in the attempts topic. Since 2026-11-25."""

    def attempted(self) -> Attempt:
        """Return the attempt as a `delivery.model.Attempt`, without its response headers."""
        return Attempt(
            number=self.attempt,
            started_at_ms=self.started_at_ms,
            duration_ms=self.duration_ms,
            status=self.status,
            error_class=self.error_class,
            detail=self.detail,
            response=self.response.encode(),
            retry_after_s=self.retry_after_s,
        )


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A delivery that was given up. The record's key is the endpoint's id."""

    webhook_id: str
    """The `webhook-id` that the event has when it is sent alone."""
    event_id: EventId
    """The event's id. If its producer gave none: `topic:partition:offset`."""
    event_type: str
    """The event's type."""
    tenant_id: TenantId
    """Tenant at which the event happened."""
    subscription_id: SubscriptionId
    """Subscription by which the event was due."""
    topic: str
    """Topic of the event."""
    partition: int
    """Partition of the event."""
    offset: int
    """Offset of the event."""
    appended_at_ms: int
    """When Kafka appended the event."""
    replay: str | UnsetType | None = UNSET
    """Replay that asked for the delivery. Left out where the delivery was due. Since 2026-11-21."""
    endpoint_id: EndpointId
    """Endpoint that did not get the event."""
    customer_id: CustomerId
    """Owner of the endpoint."""
    reason: str | None
    """The reason why the delivery was given up: the error class of the last attempt, `rejected_by_endpoint`, or the cause that
    prevented a further attempt, such as `expired`."""
    dead_lettered_at_ms: int
    """When the delivery was given up."""
    url_origin: str = ""
    """Scheme, host and port of the URL that the endpoint had when the delivery was given up. Empty: invalid or unknown."""
    source: str
    """The event's source."""
    sub_tenant_id: SubTenantId | None
    """Department of the tenant, where the event has one."""
    time: str
    """When the event happened (RFC 3339), as its producer wrote it. If the producer gave no valid time: when Kafka appended the
    event."""
    headers: list[Header]
    """Headers of the event's record."""
    payload_base64: str
    """The event's payload as it stands in a JSON body, byte for byte. An opaque payload is a JSON string: its text, or the
    base64 of its bytes. An event without a payload has `null`. An older version of the platform redrives this JSON as it is."""
    attempts_omitted: int = 0
    """Number of attempts before those in `attempts`. Since 2026-11-24."""
    attempts: list[LetterAttempt]
    """The last attempts, the oldest first: at most eleven, or `delivery.max_attempts` if that is more. There are fewer if the
    dead letter would otherwise have more bytes than a Kafka topic takes by default."""
    attributes: dict[str, Attribute] | UnsetType = UNSET
    """The event's CloudEvents attributes that have no field here. Left out where there are none. Since 2026-11-24."""
    batch_webhook_id: str | UnsetType | None = UNSET
    """The `webhook-id` of the batch in which the event was sent; empty for a batch that could not be made. Left out for an
    event that was sent alone."""
    payload_form: PayloadForm | UnsetType = UNSET
    """`text` or `bytes`: the payload is opaque. `none`: the event has no payload. Left out for JSON. Since 2026-11-25."""
    datacontenttype: str | UnsetType = UNSET
    """Media type of a payload. Left out for `application/json`, and where there is no payload. Since 2026-11-25. JSON payloads
    of another media type have it since 2026-11-26."""
    payload_digest: str | UnsetType = UNSET
    """Digest of the payload, if the `webhook-id` depends on the payload (`source.reused_ids`). Since 2026-11-25."""

    @property
    def is_of_batch(self) -> bool:
        """Return True if the event was in a batch, sent or not."""
        return isinstance(self.batch_webhook_id, str)

    @property
    def mode(self) -> DeliveryMode:
        """Return the mode of the delivery: BATCH or DIRECT. Offset receipts name the delivery's lane by this mode."""
        return DeliveryMode.BATCH if self.is_of_batch else DeliveryMode.DIRECT

    @property
    def last_attempt(self) -> int:
        """Return the number of the last attempt; 0 if there was none."""
        return max((attempt.attempt for attempt in self.attempts), default=0)

    def due(self) -> Due:
        """Return the identity of the delivery that was given up."""
        return Due(self.topic, self.partition, self.offset, self.subscription_id)

    @property
    def payload_kind(self) -> Opaque | None:
        """Return the form (text, bytes, or no payload) and the media type of the payload; return None for a JSON payload."""
        return Opaque(self.payload_form, self.datacontenttype or "") if self.payload_form else None

    def payload(self) -> bytes:
        """Return the bytes of the payload: JSON, or the opaque payload as its producer wrote it; `null` for no payload.

        Raise ValueError if the payload is malformed: another program wrote the dead letter.
        """
        return opaque.as_bytes(base64.b64decode(self.payload_base64, validate=True), self.payload_kind)

    def event(self) -> Event:
        """Return the event that the endpoint did not get. Its `content` (the parsed payload) and `record.value` are None.

        Raise ValueError if the payload or a header is not base64. Then another program wrote the record.
        """
        headers = tuple((header.name, base64.b64decode(header.value_base64, validate=True)) for header in self.headers)
        record = Record(self.topic, self.partition, self.offset, self.appended_at_ms, None, headers)
        return Event(
            event_id=self.event_id,
            event_type=self.event_type,
            source=self.source,
            tenant_id=self.tenant_id,
            sub_tenant_id=self.sub_tenant_id,
            time=self.time,
            data=base64.b64decode(self.payload_base64, validate=True),
            content=None,
            record=record,
            attributes=tuple(self.attributes.items()) if self.attributes else (),
            opaque=self.payload_kind,
            payload_digest=self.payload_digest or "",
            json_type="" if self.payload_form else self.datacontenttype or "",
        )

    def history(self) -> tuple[Attempt, ...]:
        """Return the attempts in the dead letter as values of `delivery.model`, the oldest first."""
        return tuple(attempt.attempted() for attempt in self.attempts)


_encoder = msgspec.json.Encoder()
_letters = JsonDecoder[DeadLetter](DeadLetter)
_documents = JsonDecoder[dict[str, Any]](dict[str, Any])


def encode(letter: DeadLetter) -> bytes:
    """Return a dead letter as bytes."""
    return _encoder.encode(letter)


def bounded(letter: DeadLetter) -> bytes:
    """Return a dead letter as bytes, without its oldest attempts if it would have more than MAX_BYTES.

    The last attempt stays. A dead letter that its topic refuses would be written again and again, because the micro-batch is
    never committed. `parsing.require_room` and `source.max_event_bytes` bound the rest of a dead letter.
    """
    written = encode(letter)
    while len(written) > MAX_BYTES and len(letter.attempts) > 1:
        letter = msgspec.structs.replace(letter, attempts=letter.attempts[1:], attempts_omitted=letter.attempts_omitted + 1)
        written = encode(letter)
    return written


def decode(written: bytes) -> DeadLetter:
    """Return the dead letter in a record of the topic. Raise msgspec.DecodeError if the bytes are no dead letter."""
    return _letters.decode(written)


def decode_with_document(written: bytes) -> tuple[DeadLetter, dict[str, Any]]:
    """Return the dead letter in a record, and its JSON document with every field, also fields of newer versions.

    The record is parsed once. Raise msgspec.DecodeError if the bytes are no dead letter.
    """
    document = _documents.decode(written)
    return msgspec.convert(document, DeadLetter), document
