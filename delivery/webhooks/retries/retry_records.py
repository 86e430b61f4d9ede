"""Write and read the records of the retries topic, with padding. Only this module writes padding.

Spark can bound the number of records in a micro-batch, but not their bytes. One record may be a report of 100 bytes, another a
batch of 10 MiB. So each record is followed by padding: a record without a value for every full PADDED_BYTES of the value. Then
a bound in records bounds the bytes too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from delivery.webhooks.retries import retry_messages

PADDED_BYTES = 4 * 1024
"""One padding record follows for each full PADDED_BYTES of a value. So N records of the retries topic have at most about N
times this many bytes."""


class RetryRecord(NamedTuple):
    """A record of the retries topic: a message, or padding. The key is the endpoint's id."""

    key: bytes
    value: bytes | None
    """None: padding."""
    headers: tuple[tuple[str, bytes], ...] = ()


def records(key: bytes, written: bytes, headers: tuple[tuple[str, bytes], ...] = ()) -> Iterator[RetryRecord]:
    """Yield the record of an encoded message with `headers`, then its padding: a record without a value per full PADDED_BYTES.

    All these records have the same key, so they go to the same partition.
    """
    yield RetryRecord(key, written, headers)
    yield from itertools.repeat(RetryRecord(key, None), len(written) // PADDED_BYTES)


def messages(*values: bytes | None) -> Iterator[retry_messages.Postponed | retry_messages.Report]:
    """Yield the message in each of the record values. Padding and empty values are left out.

    Raise StateUnreadable, msgspec.MsgspecError or UnicodeDecodeError for a value that is no message of this version.
    """
    return (retry_messages.message(value) for value in values if value)
