"""Read a Kafka record as an event: CloudEvents binary, CloudEvents structured, or plain JSON mapped by settings.

Runs in the executors, where each fast lane (direct, batch, real-time) parses a record once. Also runs in the archive, in the
API, and in `fanout` commands. The payload keeps its bytes. The payload of a CloudEvent may be opaque: not JSON.

Source: CloudEvents 1.0.2, "Kafka Protocol Binding" (sections 3.1 to 3.3) and "JSON Event Format" (section 3.1).
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from delivery import errors
from delivery.model import Attributes, Event, EventId, Record
from delivery.payload_form import Opaque, PayloadForm
from delivery.registry_model import PLATFORM, SubTenantId, TenantId
from delivery.webhooks.events import attributes as event_attributes
from delivery.webhooks.events import batch_records, content_encoding, event_times, opaque, raw_member

JSON = "application/json"
"""Media type of a payload whose producer names none."""
STRUCTURED = "application/cloudevents"
"""Beginning of the content type of structured mode."""
MAX_ATTRIBUTE_CHARS = 1024
"""Most characters of an id, type, source or tenant: they become part of bodies and keys. CloudEvents has no bound."""
MAX_KEPT_BYTES = 700_000
"""Most bytes of an opaque payload as a JSON string and of its record's headers, together. A dead letter has both in base64, and
must fit into Kafka's 1 MiB. A JSON payload is bounded by `source.max_event_bytes`, which is not above this number."""
HEADER_OVERHEAD_BYTES = 24
"""Bytes that each header of a record adds to the record's size, besides the header's name and content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The places of the attributes of an event in plain JSON, and settings by which records are read or rejected.

    A path is a tuple of keys from the top. The later fields are the settings: for times, ids, batches, sizes and topics.
    """

    id_path: tuple[str, ...] = ("id",)
    type_path: tuple[str, ...] = ("type",)
    tenant_path: tuple[str, ...] = ("tenant_id",)
    sub_tenant_path: tuple[str, ...] = ("sub_tenant_id",)
    time_path: tuple[str, ...] = ("time",)
    passes_cloud_event_time: bool = False
    """True: a CloudEvent whose time is not an RFC 3339 time gets the time of its record. False: it is rejected. A CloudEvent
    without a time gets the time of its record in both cases."""
    passes_plain_time: bool = True
    """True: an event in plain JSON whose time is not an RFC 3339 time gets the time of its record. False: it is rejected. An
    event without a time gets the time of its record in both cases."""
    tells_ids_apart: bool = False
    """True: the `webhook-id` of a tenant's event depends on the payload too. So two events with the same id and different
    payloads have different `webhook-id`s. False, and for the platform's own events: the `webhook-id` does not depend on the
    payload."""
    rejects_reused_ids: bool = False
    """True: a lane rejects an event that it would deliver, if the worker remembers an event with the same tenant, source and
    id, and another payload. False: the lane delivers such an event, and counts it."""
    takes_batches_apart: bool = False
    """True: a lane writes each event of a batch record as a record of its own (`batch_records`). False: the batch record is
    rejected."""
    topic_prefix: str = "events."
    """Prefix of topic names. The type of an event without a type is the topic's name without this prefix."""
    max_bytes: int = 262_144
    """Most bytes of a record, headers included, as written and after decompression or decoding. A larger record is rejected."""
    tenant_of_topic: str = ""
    """Regular expression for the whole name of a topic. Its one group is the tenant that owns the topic. Empty, or no match:
    the topic has no owner."""
    operational_topic: str = ""
    """The only topic with operational events, which are the platform's own. Empty: there are no operational events."""


def parse(record: Record, layout: Layout) -> Event:
    """Return the event in `record`. Raise EventRejected if the record is not a valid event.

    Raise BatchFound, a subclass, if the record is a batch of events that a lane splits into records. The reason of
    EventRejected is one of: tombstone, empty, too_large, undecodable, not_json, missing_attribute, bad_attribute, unsupported,
    tenant_mismatch.
    """
    event = _read(record, layout)
    if event.opaque is not None:
        require_room(record, len(event.data))
    if (event.tenant_id == PLATFORM) != (record.topic == layout.operational_topic):
        raise errors.EventRejected("tenant_mismatch", _platform_mismatch(event))
    if event.tenant_id == PLATFORM:
        return event
    owner = _owner_of(record.topic, layout.tenant_of_topic) if layout.tenant_of_topic else None
    if owner is not None and owner != event.tenant_id:
        # Kafka controls who may write to a topic. The tenant in an event is only a claim of its writer.
        raise errors.EventRejected(
            "tenant_mismatch",
            f"the topic belongs to tenant {owner}, and the event names tenant {event.tenant_id}: correct the tenant in the "
            "event, or write the event to a topic of the tenant that it names",
        )
    return with_payload_digest(event) if layout.tells_ids_apart else event


def with_payload_digest(event: Event) -> Event:
    """Return the event with a digest of its payload. The `webhook-id` of this event then depends on the digest too."""
    return event._replace(payload_digest=hashlib.blake2b(event.data, digest_size=16).hexdigest())


def _platform_mismatch(event: Event) -> str:
    if event.tenant_id == PLATFORM:
        return f"tenant {PLATFORM} is the platform's own: name another tenant"
    return "the topic is for the platform's own events: write the event to another topic"


def require_size(record: Record, value: bytes | None, layout: Layout) -> None:
    """Raise EventRejected if `value` and the record's headers together have more than `Layout.max_bytes`."""
    # Headers count, because a dead letter has them too. A dead letter that Kafka refuses would stop the lane for all customers.
    size = len(value or b"")
    if record.headers:
        size += sum(header_bytes(name, content) for name, content in record.headers)
    if size > layout.max_bytes:
        raise errors.EventRejected(
            "too_large",
            f"the record has {size} bytes, headers included; at most {layout.max_bytes} are accepted (source.max_event_bytes): "
            "shorten the payload, or put a link in place of its large parts",
        )


def require_room(record: Record, json_bytes: int) -> None:
    """Raise EventRejected if a payload of `json_bytes` and the record's headers have more than MAX_KEPT_BYTES.

    Called for opaque payloads, and for values in the Confluent wire format, which endpoints may get as opaque payloads.
    `json_bytes` counts the JSON string that stands for the payload.
    """
    size = json_bytes + sum(header_bytes(name, content) for name, content in record.headers)
    if size > MAX_KEPT_BYTES:
        raise errors.EventRejected(
            "too_large",
            f"the record has {size} bytes with its payload as a JSON string, headers included; at most {MAX_KEPT_BYTES} are "
            "accepted: shorten the payload, or put a link in place of its large parts",
        )


def header_bytes(name: str, content: bytes) -> int:
    """Return the number of bytes for which a record's header counts towards `Layout.max_bytes` and MAX_KEPT_BYTES.

    The number is at least three quarters of the header's bytes in the JSON of a dead letter. The size in Kafka does not bound
    the size in this JSON. An empty header has two bytes in Kafka, and thirty in the JSON. A control character in a name has one
    byte in Kafka, and six in the JSON.
    """
    return len(orjson.dumps(name)) + len(content) + HEADER_OVERHEAD_BYTES


@functools.lru_cache(maxsize=10_000)
def _owner_of(topic: str, tenant_of_topic: str) -> str | None:
    matched = re.fullmatch(tenant_of_topic, topic)
    return matched[1] if matched else None


def _read(record: Record, layout: Layout) -> Event:
    """Return the event in a record, decompressed and parsed in the mode in which the record was written.

    1. A `content-type` that begins with `application/cloudevents` is structured mode: with `+json` an event, with `-batch+json`
       a batch record. Any other ending is rejected.
    2. A `ce_specversion` header is binary mode.
    3. Any other record is plain JSON.
    """
    value = record.value
    if value is None or not value.strip():
        _require_blank_payload(record, value)
    require_size(record, value, layout)
    if record.headers:
        headers = {name.lower(): content for name, content in record.headers}
        event_attributes.require_utf8(headers)
        if value and content_encoding.HEADER in headers:
            value = content_encoding.decoded(value, headers[content_encoding.HEADER], layout.max_bytes)
            require_size(record, value, layout)
        content_type = headers.get("content-type", b"").strip().lower()
        if content_type.startswith(STRUCTURED.encode()):
            return _structured(record, value or b"", content_type, layout)
        if "ce_specversion" in headers:
            return _binary(record, value, headers, layout)
    return _plain(record, value or b"", layout)


def _require_blank_payload(record: Record, value: bytes | None) -> None:
    """Raise EventRejected for a record whose value is missing or blank, except for two kinds of CloudEvents in binary mode.

    1. The record has no value (a tombstone). The event has no payload.
    2. The value is blank, and the `content-type` is present and not JSON. The value is the opaque payload.
    """
    headers = {name.lower(): content for name, content in record.headers}
    content_type = headers.get("content-type", b"").strip().lower()
    is_binary = "ce_specversion" in headers and not content_type.startswith(STRUCTURED.encode())
    if value is None and not is_binary:
        raise errors.EventRejected(
            "tombstone",
            "the record has no value (a tombstone): publish the event as the record's value. Only a CloudEvent in binary "
            "mode may have no value",
        )
    if value is not None and not (is_binary and content_type and not opaque.is_json(content_type.decode(errors="replace"))):
        raise errors.EventRejected(
            "empty",
            "the record's value is empty or only whitespace: publish the event as the record's value. Only a CloudEvent in "
            "binary mode whose content-type is not JSON may have an empty payload",
        )


def _binary(record: Record, value: bytes | None, headers: Mapping[str, bytes], layout: Layout) -> Event:
    """Return the event of a record in binary mode. Without a value the event has no payload."""
    try:
        attributes = {name[3:]: content.decode() for name, content in headers.items() if name.startswith("ce_")}
        media_type = headers.get("content-type", b"application/json").decode().strip()
    except UnicodeDecodeError as exc:
        raise errors.EventRejected("bad_attribute", "a ce_ or content-type header is not UTF-8: encode it in UTF-8") from exc
    is_json = media_type == JSON or opaque.is_json(media_type)
    if not is_json and not opaque.is_media_type(media_type):
        raise errors.EventRejected(
            "unsupported",
            f"content type {media_type[:100]!r} is not a valid media type of a payload, or has more than "
            f"{opaque.MAX_MEDIA_TYPE_CHARS} characters: use one such as text/xml",
        )
    further = event_attributes.further_attributes(attributes, event_attributes.NAMED)
    if value is None:
        return _cloud_event(record, attributes, further, layout, data=opaque.NULL, content={}, kind=opaque.NO_PAYLOAD)
    if is_json:
        json_type = "" if media_type == JSON else opaque.json_type_of(media_type)
        return _cloud_event(record, attributes, further, layout, data=value, content=_loads(value), json_type=json_type)
    kind = opaque.opaque_of(value, media_type)
    content = value.decode() if kind.form is PayloadForm.TEXT else {}
    return _cloud_event(record, attributes, further, layout, data=opaque.as_json(value, kind), content=content, kind=kind)


def _structured(record: Record, value: bytes, content_type: bytes, layout: Layout) -> Event:
    if content_type.startswith(batch_records.CONTENT_TYPE):
        batch_records.refuse(record.headers, value, takes_apart=layout.takes_batches_apart)
    if not content_type.startswith(batch_records.EVENT_CONTENT_TYPE):
        shown = content_type[:100].decode(errors="replace")
        raise errors.EventRejected("unsupported", f"content type {shown!r} is not read: use application/cloudevents+json")
    document = _loads(value)
    if not isinstance(document, dict):
        raise errors.EventRejected("not_json", "the value is JSON, but no object: write the CloudEvent as a JSON object")
    kind: Opaque | None = None
    json_type = "" if document.get("datacontenttype", JSON) == JSON else _json_type(document)
    if "data" in document:
        data, content = raw_member.of(value, "data"), document["data"]
        # A string in another charset than UTF-8 counts as JSON: a request in binary mode would have it in the wrong charset.
        declared = _opaque_type(document) if isinstance(content, str) else ""
        if declared and opaque.is_unicode(declared):
            kind = Opaque(PayloadForm.TEXT, declared)
    elif "data_base64" in document:
        try:
            data = base64.b64decode(document["data_base64"], validate=True)
        except (ValueError, TypeError) as exc:
            raise errors.EventRejected("bad_attribute", "data_base64 is not base64: write base64, or use `data`") from exc
        if media_type := _opaque_type(document):
            kind = Opaque(PayloadForm.BYTES, media_type)
            data, content = opaque.as_json(data, kind), {}
        else:
            content = _loads(data, "payload")
    else:
        data, content, kind = opaque.NULL, {}, opaque.NO_PAYLOAD
    further = event_attributes.further_attributes(document, event_attributes.JSON_MEMBERS)
    return _cloud_event(record, document, further, layout, data=data, content=content, kind=kind, json_type=json_type)


def _json_type(document: Mapping[str, Any]) -> str:
    """Return the value of `Event.json_type` for a structured event, as `opaque.json_type_of` returns it.

    Empty also if the event has no payload, or if its `datacontenttype` is not a string.
    """
    media_type = document.get("datacontenttype")
    has_payload = "data" in document or "data_base64" in document
    return opaque.json_type_of(media_type.strip()) if has_payload and isinstance(media_type, str) else ""


def _opaque_type(document: Mapping[str, Any]) -> str:
    """Return the `datacontenttype` of a structured event if it declares an opaque payload; an empty text if it declares JSON.

    A missing `datacontenttype`, or one that is no media type, counts as JSON.
    """
    media_type = document.get("datacontenttype")
    if not isinstance(media_type, str):
        return ""
    media_type = media_type.strip()
    return media_type if opaque.is_media_type(media_type) and not opaque.is_json(media_type) else ""


def _cloud_event(
    record: Record,
    attributes: Mapping[str, Any],
    further: Attributes,
    layout: Layout,
    *,
    data: bytes,
    content: Any,
    kind: Opaque | None = None,
    json_type: str = "",
) -> Event:
    if attributes.get("specversion") != "1.0":
        raise errors.EventRejected("unsupported", "specversion is missing or not 1.0: write CloudEvents of version 1.0")
    given = attributes.get("time")
    time = event_times.read(given, passes_invalid=layout.passes_cloud_event_time)
    event = Event(
        event_id=EventId(_required(attributes.get("id"), "id")),
        event_type=_required(attributes.get("type"), "type"),
        source=_required(attributes.get("source"), "source"),
        tenant_id=TenantId(_required(attributes.get("tenantid"), "tenantid")),
        sub_tenant_id=_sub_tenant(attributes.get("subtenantid"), "subtenantid"),
        time=time or event_times.of_record(record.appended_at_ms),
        data=data,
        content=content,
        record=record,
        attributes=further,
        opaque=kind,
        json_type=json_type,
    )
    return event if time or _is_missing(given) else event._replace(has_invalid_time=True)


def _plain(record: Record, value: bytes, layout: Layout) -> Event:
    document = _loads(value)
    if not isinstance(document, dict):
        raise errors.EventRejected("not_json", "the value is JSON, but no object: write the event as a JSON object")
    event_id = _optional(at(document, layout.id_path), layout.id_path)
    given = at(document, layout.time_path)
    time = event_times.read(given, passes_invalid=layout.passes_plain_time, path=layout.time_path)
    event = Event(
        # Unique, and the same after a re-read: the position of the record never changes.
        event_id=EventId(event_id or f"{record.topic}:{record.partition}:{record.offset}"),
        event_type=_optional(at(document, layout.type_path), layout.type_path)
        or record.topic.removeprefix(layout.topic_prefix),
        source=record.topic,
        tenant_id=TenantId(_required(at(document, layout.tenant_path), layout.tenant_path)),
        sub_tenant_id=_sub_tenant(at(document, layout.sub_tenant_path), layout.sub_tenant_path),
        time=time or event_times.of_record(record.appended_at_ms),
        data=value,
        content=document,
        record=record,
    )
    return event if time or _is_missing(given) else event._replace(has_invalid_time=True)


def _loads(value: bytes, part: str = "value") -> Any:
    """Parse JSON; raise EventRejected, which names the `part` of the record, for any other bytes."""
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as exc:
        # The text quotes nothing of the document, because it is logged. Also raised for invalid UTF-8 and for NaN.
        raise errors.EventRejected(
            "not_json", f"the {part} is not valid JSON ({exc}): publish valid JSON of at most 1024 levels"[:200]
        ) from exc


def at(document: Any, path: tuple[str, ...]) -> Any:
    """Return the value at a path of field names in a JSON document; None if the document has no such field."""
    for key in path:
        if not isinstance(document, dict):
            return None
        document = document.get(key)
    return document


def _is_missing(value: Any) -> bool:
    return value is None or value == ""


def _optional(value: Any, name: str | tuple[str, ...]) -> str | None:
    """Return an attribute as text; None if it is missing or empty. A whole number becomes text: ids in JSON are often numbers.

    Raise EventRejected for any other value, and for text that is too long or not printable. `name` is the attribute's name, or
    its path in plain JSON, for the text of the error.
    """
    if _is_missing(value):
        return None
    if type(value) is int:  # a bool is no id
        value = str(value)
    if not isinstance(value, str) or len(value) > MAX_ATTRIBUTE_CHARS or not value.isprintable():
        problem = f"{_dotted(name)} is not printable text of 1 to {MAX_ATTRIBUTE_CHARS} characters: shorten or correct it"
        raise errors.EventRejected("bad_attribute", problem)
    return value


def _required(value: Any, name: str | tuple[str, ...]) -> str:
    text = _optional(value, name)
    if text is None:
        raise errors.EventRejected("missing_attribute", f"the event has no {_dotted(name)}: add it")
    return text


def _dotted(name: str | tuple[str, ...]) -> str:
    return name if isinstance(name, str) else ".".join(name)


def _sub_tenant(value: Any, name: str | tuple[str, ...]) -> SubTenantId | None:
    text = _optional(value, name)
    return None if text is None else SubTenantId(text)
