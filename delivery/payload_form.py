"""Forms of payloads that are not JSON. Used in every process."""

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
