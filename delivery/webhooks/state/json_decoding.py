"""Decode JSON as a type, with one kind of error for all bytes that are no such JSON.

Runs in the executors, on the driver, in the archive and in the commands. msgspec alone raises UnicodeDecodeError for broken
UTF-8, and RecursionError for too many levels. A caller that leaves out unreadable records catches only msgspec.DecodeError, so
UnicodeDecodeError or RecursionError would end the caller.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")


class JsonDecoder(Generic[T]):
    """Decode JSON as `kind`, a type that msgspec knows."""

    def __init__(self, kind: Any) -> None:
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)

    def decode(self, written: bytes | msgspec.Raw) -> T:
        """Return the decoded value. Raise msgspec.DecodeError for bytes that are no JSON.

        Raise msgspec.ValidationError, a subclass, for JSON that is not of the type `kind`.
        """
        try:
            return self._decoder.decode(written)
        except (UnicodeDecodeError, RecursionError) as exc:
            raise msgspec.DecodeError(f"the record is no UTF-8, or nested too deeply: {exc}") from exc
