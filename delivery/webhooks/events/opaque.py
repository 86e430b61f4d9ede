"""Distinguish opaque payloads from JSON by their media type, and convert opaque payloads between bytes and JSON text. Pure.

Runs in the executors, the archive, the API and the commands. An opaque payload is a payload that is not JSON, such as XML or an
image. An event keeps an opaque payload as a JSON string, which every JSON body contains unchanged. Only a request in binary
mode has the payload's bytes.

Source: CloudEvents 1.0.2, "JSON Event Format" (sections 3.1.1 and 3.1.2); RFC 9110 and RFC 7303 for media types.
"""

from __future__ import annotations

import base64
import re

import orjson

from delivery.model import Event
from delivery.payload_form import EndpointPayload, Opaque, PayloadForm

MAX_MEDIA_TYPE_CHARS = 256
"""Most characters of a media type with its parameters. The text becomes a header of each request."""
SCHEMA_ID = "schemaid"
"""Name of the CloudEvents attribute with the schema's id. `as_received` adds the attribute to an event that is not decoded to
JSON for its endpoint."""
NO_PAYLOAD = Opaque(PayloadForm.NONE)
NULL = b"null"
"""Stand-in for a missing payload in the state and in dead letters. Older versions of the platform read it as JSON."""

_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_MEDIA_TYPE = re.compile(rf"{_WORD}/{_WORD}(?:[ \t]*;[\x20-\x7e\t]*)?")
_JSON_TYPE = re.compile(r"[^/]*/(?:[^;]*\+)?json[ \t]*(?:;|$)", re.IGNORECASE)
_PLAIN_JSON = re.compile(r"application/json[ \t]*(?:;[ \t]*(?:charset=[^;]*)?)?", re.IGNORECASE)
"""`application/json` without parameters, or with a charset, which RFC 8259 gives no effect."""
_TEXT_TYPE = re.compile(r"(?:text/[^;]*|application/xml|[^/]*/[^;]*\+xml)[ \t]*(?:;|$)", re.IGNORECASE)
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
"""Control characters. JSON escapes most of them with six characters, so text with them could need six times its bytes in a
body. A payload with a control character therefore counts as bytes. Hardly any text has control characters."""
_CHARSET = re.compile(r";[ \t]*charset=[ \t]*\"?([^\"; \t]*)", re.IGNORECASE)
_UNICODE = frozenset({"utf-8", "utf8", "us-ascii"})


def is_media_type(text: str) -> bool:
    """Return True if `text` is a media type of at most MAX_MEDIA_TYPE_CHARS, and not one of CloudEvents.

    If a request had a CloudEvents media type, the receiver would read the payload as the event itself. A media type of JSON is
    accepted too.
    """
    return (
        len(text) <= MAX_MEDIA_TYPE_CHARS
        and _MEDIA_TYPE.fullmatch(text) is not None
        and not text.lower().startswith("application/cloudevents")
    )


def is_json(media_type: str) -> bool:
    """Return True if a media type declares JSON: its subtype is `json` or ends with `+json`."""
    return _JSON_TYPE.match(media_type) is not None


def json_type_of(media_type: str) -> str:
    """Return the media type that `Event.json_type` has for a payload of this JSON media type.

    Empty, which stands for `application/json`, in three cases:
    1. The media type is `application/json`, without parameters or only with a charset.
    2. The media type names another charset than UTF-8 or US-ASCII. That charset would be wrong: a request has JSON in UTF-8.
    3. The text is no media type of JSON, or `is_media_type` refuses it.
    """
    if _PLAIN_JSON.fullmatch(media_type) or not is_json(media_type) or not is_unicode(media_type):
        return ""
    return media_type if is_media_type(media_type) else ""


def is_unicode(media_type: str) -> bool:
    """Return True if text of this media type is UTF-8: the media type names UTF-8, US-ASCII or no charset."""
    charset = _CHARSET.search(media_type)
    return charset is None or charset[1].lower() in _UNICODE


def opaque_of(payload: bytes, media_type: str) -> Opaque:
    """Return an opaque payload's form and media type.

    The form is text if three conditions hold, otherwise bytes:
    1. The media type is a type of text or XML.
    2. The media type names no other charset than UTF-8 or US-ASCII.
    3. The payload is UTF-8 without control characters below U+0020 other than tab, CR and LF.
    """
    if _TEXT_TYPE.match(media_type) is None or not is_unicode(media_type) or _CONTROL.search(payload):
        return Opaque(PayloadForm.BYTES, media_type)
    try:
        payload.decode()
    except UnicodeDecodeError:
        return Opaque(PayloadForm.BYTES, media_type)
    return Opaque(PayloadForm.TEXT, media_type)


def as_received(event: Event, wanted: EndpointPayload) -> Event:
    """Return the event with its payload in the form that an endpoint wants.

    If `wanted` is ORIGINAL, the value in the Confluent wire format becomes the payload, as bytes. The attribute SCHEMA_ID names
    the schema, and replaces a producer's attribute of this name. `content` stays the decoded payload. If `wanted` is JSON, or
    if the event was not decoded by a schema, the event is returned unchanged.
    """
    if event.framed is None or wanted is EndpointPayload.JSON:
        return event
    kind = Opaque(PayloadForm.BYTES, event.framed.media_type)
    attributes = (*(pair for pair in event.attributes if pair[0] != SCHEMA_ID), (SCHEMA_ID, event.framed.schema_id))
    return event._replace(data=as_json(event.framed.value, kind), opaque=kind, json_type="", attributes=attributes)


def as_json(payload: bytes, opaque: Opaque | None) -> bytes:
    """Convert a payload to the JSON of `Event.data`: text becomes a JSON string, and bytes become a JSON string in base64.

    JSON (`opaque` None) is returned unchanged, and so is NULL, the stand-in for a missing payload (PayloadForm.NONE).
    """
    if opaque is None or opaque.form is PayloadForm.NONE:
        return payload
    return orjson.dumps(payload.decode()) if opaque.form is PayloadForm.TEXT else b'"%s"' % base64.b64encode(payload)


def base64_bytes(payload: bytes) -> int:
    """Return the number of bytes of a payload as a JSON string in base64."""
    return 4 * ((len(payload) + 2) // 3) + 2


def as_bytes(data: bytes, opaque: Opaque | None) -> bytes:
    """Convert the JSON of `Event.data` to the bytes of the payload. `opaque` None: the payload is JSON, and stays unchanged.

    For an event without a payload, the bytes are NULL. Raise ValueError if base64 or a JSON string in `data` is invalid.
    """
    if opaque is None or opaque.form is PayloadForm.NONE:
        return data
    if opaque.form is PayloadForm.BYTES:
        return base64.b64decode(data[1:-1], validate=True)
    text = orjson.loads(data)
    if not isinstance(text, str):
        raise ValueError("the payload of a text event is not a JSON string")  # noqa: TRY004  # no caller passed a wrong type
    return text.encode()
