"""Name the form of a payload that is not JSON, or that was decoded from a format of the schema registry.

Used in every process.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class PayloadForm(enum.StrEnum):
    """The form of a payload that is not JSON or is absent. The form decides which member of a JSON body has the payload."""

    TEXT = "text"
    """An opaque payload of text: member `data`, a string."""
    BYTES = "bytes"
    """An opaque payload of any bytes: member `data_base64`."""
    NONE = "none"
    """The event has no payload. A JSON body then has neither `data` nor `data_base64`. (A payload `null` is JSON, and has no
    PayloadForm.)"""


class Opaque(NamedTuple):
    """The form and the media type of a payload that is not JSON, or that is absent."""

    form: PayloadForm
    """Form of the payload."""
    media_type: str = ""
    """Media type of the payload, by its producer (`datacontenttype`) or by its schema. Empty: there is no payload."""


class Framed(NamedTuple):
    """A record's value in Avro, Protobuf or JSON Schema before it was decoded. `Event.data` has the decoded JSON."""

    value: bytes
    """The value with its frame, decompressed."""
    schema_id: int
    """Id of the value's schema in the schema registry."""
    media_type: str
    """`content-type` of the value for endpoints that receive original payloads."""


class EndpointPayload(enum.StrEnum):
    """The form in which an endpoint receives payloads that were decoded by a schema. Other payloads have one form only."""

    JSON = "json"
    """The decoded JSON."""
    ORIGINAL = "original"
    """The bytes as the producer wrote them."""
