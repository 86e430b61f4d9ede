"""The records of the topic for rejected records. Only this module writes and reads their bytes.

The topic is for the operator, not for customers. Every version of the platform so far writes all fields of RejectedRecord. A
later version may add fields, so readers ignore fields that they do not know.
"""

from __future__ import annotations

import msgspec

from delivery.webhooks.results.dead_letter_records import Header
from delivery.webhooks.state.json_decoding import JsonDecoder


class RejectedRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A record that a lane rejected and delivers to nobody, or an event of an unreadable retry entry that was given up.

    The key of the Kafka record is the value of the field `topic`. For an event of a retry entry, `topic` is `(retry lane)`, and
    `partition` and `offset` are -1.
    """

    reason: str
    """The reason why the record was rejected: a word of a closed set, such as `not_json` or `unknown_tenant`."""
    detail: str
    """Details of the reason, for a person, cut after 1,000 characters."""
    topic: str
    """Topic of the record."""
    partition: int
    """Partition of the record."""
    offset: int
    """Offset of the record."""
    appended_at_ms: int
    """When Kafka appended the record, or when the event came into the retry lane."""
    headers: list[Header]
    """Headers of the record, as many as fit into 64 KiB; all if no other copy of the record exists."""
    value_bytes: int | None
    """Size of the record's value. Null: it is a tombstone."""
    value_base64: str | None
    """The record's value, cut after 64 KiB; whole if no other copy of the record exists. Null: it is a tombstone."""


_encoder = msgspec.json.Encoder()
_records = JsonDecoder[RejectedRecord](RejectedRecord)


def encode(record: RejectedRecord) -> bytes:
    """Return a record of the topic as bytes."""
    return _encoder.encode(record)


def decode(written: bytes) -> RejectedRecord:
    """Return the record that `encode` wrote. Raise msgspec.DecodeError if the bytes are no such record."""
    return _records.decode(written)
