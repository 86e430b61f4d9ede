"""Split the body of a publishing request into events, as they will be in Kafka. Pure.

Runs in the API. The events keep their bytes. checks.py checks the events.

Source: CloudEvents 1.0.2, "HTTP Protocol Binding" (sections 3.1 to 3.3), and "Kafka Protocol Binding" (section 3).
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from delivery.webhooks.events import opaque
from subscriptions_db.api.contract import problems

STRUCTURED = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
PLAIN = "application/json"
MAX_EVENTS = 1000
"""Most events of one request. This bound and `api.max_body_bytes` limit the time that the checks of one request take."""

_IS_CLOUD_EVENT = (("content-type", STRUCTURED.encode()),)
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
_ARRAY: msgspec.json.Decoder[list[msgspec.Raw]] = msgspec.json.Decoder(list[msgspec.Raw])

Headers = tuple[tuple[str, bytes], ...]
"""Headers of a record."""
RawHeaders = Sequence[tuple[bytes, bytes]]
"""Names and values of the headers of a request, as received."""


class UncheckedEvent(NamedTuple):
    """One event of a request: the value and the headers of its record."""

    value: bytes | None
    """None: a CloudEvent without a payload."""
    headers: Headers = ()


class EventsOfBody(NamedTuple):
    """The events of a request, in their order."""

    events: list[UncheckedEvent]
    is_batch: bool
    """True: the body is an array, so a refusal names an event by its index."""


def read(content_type: str, headers: RawHeaders, body: bytes) -> EventsOfBody:
    """Return the events of a body. `content_type` is without parameters.

    Raise Refused with 413 for more than MAX_EVENTS events, with 415 if no case fits, and with 422 for a malformed array or
    header. The body of a single event is not parsed here.

    The first case that fits decides:
    1. `application/cloudevents-batch+json` is an array of CloudEvents.
    2. `application/cloudevents+json` is one CloudEvent.
    3. With a `ce-` header, the body is the payload of one CloudEvent, of any content type. An empty body is no payload if the
       content type is missing or is JSON.
    4. `application/json` is one plain JSON event, or an array of them.
    """
    if sum(name.lower() == b"content-type" for name, _ in headers) > 1:
        raise problems.invalid(("content-type", "is given more than once: give it once"))
    if content_type == BATCH:
        return EventsOfBody([UncheckedEvent(value, _IS_CLOUD_EVENT) for value in _items(body)], is_batch=True)
    if content_type == STRUCTURED:
        return EventsOfBody([UncheckedEvent(body, _IS_CLOUD_EVENT)], is_batch=False)
    if binary := _binary(headers):
        return EventsOfBody([UncheckedEvent(_payload(body, dict(binary)), binary)], is_batch=False)
    if content_type != PLAIN:
        raise problems.Refused(
            415,
            "the body's content type is missing, or is not taken here: send content-type "
            f"{PLAIN}, {STRUCTURED} or {BATCH}, or the attributes of a CloudEvent as ce- headers",
        )
    if body.lstrip()[:1] == b"[":
        return EventsOfBody([UncheckedEvent(value) for value in _items(body)], is_batch=True)
    return EventsOfBody([UncheckedEvent(body)], is_batch=False)


def _items(body: bytes) -> list[bytes]:
    """Return the items of a JSON array with their bytes unchanged.

    Raise Refused with 422 if the body is no JSON array, and with 413 if it has more than MAX_EVENTS items.
    """
    try:
        items = _ARRAY.decode(body)
    except msgspec.ValidationError:
        raise problems.invalid(("", "the body must be a JSON array of events")) from None
    except msgspec.DecodeError as exc:  # its text quotes nothing of the body
        raise problems.invalid(("", f"the body is not JSON: {exc}")) from None
    except RecursionError:
        raise problems.invalid(("", "the body is nested too deeply: flatten its events")) from None
    if len(items) > MAX_EVENTS:
        raise problems.Refused(413, f"the body has {len(items)} events: send at most {MAX_EVENTS} in one request")
    return [bytes(item) for item in items]


def _binary(headers: RawHeaders) -> Headers:
    """Return the record's headers for a CloudEvent in binary mode; empty if the request has no `ce-` header.

    Raise Refused with 422 for a repeated `ce-` header, or for `ce-` headers without `ce-specversion`.
    """
    found: dict[str, bytes] = {}
    content_type: bytes | None = None
    for given, value in headers:
        name = given.decode("latin-1").lower()
        if name == "content-type":
            content_type = value
        if not name.startswith("ce-"):
            continue
        if name in found:
            raise problems.invalid((name, "is given more than once: give it once"))
        found[name] = _unquoted(value)
    if not found:
        return ()
    if "ce-specversion" not in found:
        raise problems.invalid(("ce-specversion", "is missing: every CloudEvent has it, with the value 1.0"))
    beside = () if content_type is None else (("content-type", content_type),)
    return (*((f"ce_{name[3:]}", value) for name, value in found.items()), *beside)


def _payload(body: bytes, headers: dict[str, bytes]) -> bytes | None:
    media_type = headers.get("content-type", PLAIN.encode()).decode("latin-1").strip().lower()
    return None if not body and opaque.is_json(media_type) else body


def _unquoted(value: bytes) -> bytes:
    """Return an attribute's value from its header: without quotes, and percent-decoded (HTTP Protocol Binding, 3.1.3.2)."""
    value = value.strip()
    if len(value) > 1 and value[:1] == value[-1:] == b'"':
        value = _ESCAPED.sub(rb"\1", value[1:-1])
    return urllib.parse.unquote_to_bytes(value) if b"%" in value else value
