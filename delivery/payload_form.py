"""Forms of payloads: those that are not JSON, and those of the schema registry. Used in every process."""

from __future__ import annotations

import enum
from typing import NamedTuple


class PayloadForm(enum.StrEnum):
    """The form of a payload that is not JSON. The form decides which member of a JSON body has the payload."""

    TEXT = "text"
    """An opaque payload of text: member `data`, a string."""
    BYTES = "bytes"
    """An opaque payload of any bytes: member `data_base64`."""
    NONE = "none"
    """The event has no payload, and a body has no such member. A payload `null` is JSON."""


class Opaque(NamedTuple):
    """The form and the media type of a payload that is not JSON."""

    form: PayloadForm
    """Form of the payload."""
    media_type: str = ""
    """Media type of the payload, as its producer wrote it (`datacontenttype`). Empty: there is no payload."""


class Framed(NamedTuple):
    """A value in a format of the schema registry, as its producer wrote it. `Event.data` has its JSON."""

    value: bytes
    """The value with its frame, decompressed."""
    schema_id: int
    media_type: str


class EndpointPayload(enum.StrEnum):
    """The payload that an endpoint receives of events in a format of the schema registry. Other events have one form only."""

    JSON = "json"
    """The decoded JSON."""
    ORIGINAL = "original"
    """The bytes as the producer wrote them."""
