"""Build the `webhook-id`, the body of a request for one event, and the headers that describe the body.

Source: Standard Webhooks 1.0, "Payload structure" and "Unique identifier"; CloudEvents 1.0.2, "HTTP Protocol Binding" (sections
3.1 and 3.2) and "JSON Event Format".
"""

from __future__ import annotations

import hashlib
import urllib.parse
from typing import Any, NamedTuple

import orjson

from delivery.model import Event
from delivery.payload_form import Opaque, PayloadForm
from delivery.registry_model import ContentMode, SubscriptionId
from delivery.webhooks.batching.segment import Packed
from delivery.webhooks.events import attributes as event_attributes
from delivery.webhooks.events import opaque

_PRINTABLE = "".join(character for character in map(chr, range(0x21, 0x7F)) if character not in '"%')
"""Characters that stand unchanged in a header of a CloudEvents attribute. All other characters are percent-encoded (HTTP
binding, 3.1.3.2)."""


class Content(NamedTuple):
    """The body of a request, and the headers that describe the body.

    Deliveries of one event share one Content if their endpoints have the same `content_mode` and the same `payload`.
    """

    headers: bytes
    """Header lines that describe the body, each ended by CRLF."""
    body: bytes


def webhook_id(event: Event | Packed, subscription_id: SubscriptionId) -> str:
    """Return the `webhook-id` of a delivery. A request for a batch has an id of its own (batch_payload.webhook_id).

    Each request that sends the delivery outside a batch has this `webhook-id`, also after a crash, a redrive or a replay.

    The `webhook-id` is a digest of the event's identity (`identity_of`) and of the subscription. An event id would not do:
    producers choose event ids, which may contain any character. A `webhook-id` is in a header, and in front of a `.` in the
    signed content, so it has no `.` itself.
    """
    identity = f"{identity_of(event)}\0{subscription_id}"
    return "msg_" + hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()


def identity_of(event: Event | Packed) -> str:
    """Return the identity of an event: its source and id.

    With `source.reused_ids = "told_apart"`, the identity also has a digest of the payload.
    """
    identity = f"{event.source}\0{event.event_id}"
    return f"{identity}\0{event.payload_digest}" if event.payload_digest else identity


def content(event: Event, mode: ContentMode) -> Content:
    """Return the body and content headers of a request for one event. A JSON payload stays the same byte for byte.

    Raise ValueError in binary mode if a name of an attribute or the media type would not be a valid header.
    """
    if mode is ContentMode.CLOUDEVENTS_BINARY:
        lines = "".join(
            f"ce-{name}: {urllib.parse.quote(value, safe=_PRINTABLE)}\r\n" for name, value in _attributes(event).items()
        )
        if event.attributes:
            lines += _further_lines(event)
        if event.opaque is not None:
            return _binary_opaque(event.data, event.opaque, lines)
        if event.json_type:
            return Content(_described(event.json_type, lines), event.data)
        return Content(b"content-type: application/json\r\n" + lines.encode("ascii"), event.data)
    if mode is ContentMode.CLOUDEVENTS_STRUCTURED:
        return Content(b"content-type: application/cloudevents+json\r\n", structured(event))
    return Content(b"content-type: application/json\r\n", standard(event))


def structured(event: Event | Packed) -> bytes:
    """Return the event as a CloudEvent in JSON (structured mode)."""
    attributes: dict[str, Any] = _attributes(event)
    if event.opaque is None:
        attributes["datacontenttype"] = event.json_type or "application/json"
    # Our attributes come last, so that no other replaces them.
    return _with_data(dict(event.attributes) | attributes if event.attributes else attributes, event)


def standard(event: Event | Packed) -> bytes:
    """Return the event as a message of Standard Webhooks."""
    attributes: dict[str, Any] = _standard(event)
    if event.attributes:
        # In an object of their own: an extension may be called `timestamp`.
        attributes["attributes"] = dict(event.attributes)
    return _with_data(attributes, event)


def _standard(event: Event | Packed) -> dict[str, str]:
    attributes = {
        "type": event.event_type,
        "timestamp": event.time,
        "id": event.event_id,
        "source": event.source,
        "tenant_id": event.tenant_id,
    }
    if event.sub_tenant_id is not None:
        attributes["sub_tenant_id"] = event.sub_tenant_id
    return attributes


def _attributes(event: Event | Packed) -> dict[str, str]:
    """Return `specversion` and the event's attributes that are fields of Event, without the content type.

    `tenantid` and `subtenantid` are extensions of the platform.
    """
    attributes = {
        "specversion": "1.0",
        "id": event.event_id,
        "source": event.source,
        "type": event.event_type,
        "time": event.time,
        "tenantid": event.tenant_id,
    }
    if event.sub_tenant_id is not None:
        attributes["subtenantid"] = event.sub_tenant_id
    return attributes


def _further_lines(event: Event) -> str:
    """Return the header lines of the event's further attributes: `Event.attributes`, which have no field of their own in Event.

    Raise ValueError for an invalid name. Names are checked again, because the event may have been stored since the parser
    checked them.
    """
    lines = ""
    for name, value in event.attributes:
        if not event_attributes.is_name(name):
            raise ValueError(
                f"event {event.event_id[:40]!a} has a CloudEvents attribute with the invalid name {name[:40]!a}, which would "
                "become another header, so the request was not sent. Correct the name in the program that wrote the event"
            )
        lines += f"ce-{name}: {urllib.parse.quote(event_attributes.as_text(value), safe=_PRINTABLE)}\r\n"
    return lines


def _binary_opaque(data: bytes, kind: Opaque, lines: str) -> Content:
    """Return the body and content headers, in binary mode, of an event whose payload is opaque or missing.

    If the payload is missing, there is no `content-type`. Raise ValueError for an invalid media type.
    """
    if kind.form is PayloadForm.NONE:
        return Content(lines.encode("ascii"), b"")
    return Content(_described(kind.media_type, lines), opaque.as_bytes(data, kind))


def _described(media_type: str, lines: str) -> bytes:
    """Return `lines`, the header lines of the attributes, with a `content-type` of this media type in front.

    Raise ValueError for an invalid media type. The media type is checked again, because the event may have been stored since
    the parser checked it.
    """
    if not opaque.is_media_type(media_type):
        raise ValueError(
            "the media type of the payload is not valid, and would become another header, so the request was not sent. Correct "
            "it in the program that wrote the event"
        )
    return f"content-type: {media_type}\r\n{lines}".encode("ascii")


def _with_data(attributes: dict[str, Any], event: Event | Packed) -> bytes:
    """Return a JSON body: the attributes, and the payload, if there is one, under `data` or `data_base64`.

    The media type of an opaque payload is under `datacontenttype`.
    """
    if event.opaque is None:
        return b'%s,"data":%s}' % (orjson.dumps(attributes)[:-1], event.data)
    if event.opaque.form is PayloadForm.NONE:
        return orjson.dumps(attributes)
    name = b"data_base64" if event.opaque.form is PayloadForm.BYTES else b"data"
    attributes["datacontenttype"] = event.opaque.media_type
    return b'%s,"%s":%s}' % (orjson.dumps(attributes)[:-1], name, event.data)
