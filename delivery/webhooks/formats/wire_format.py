"""Split a value in the Confluent wire format: a zero byte, the schema's id in four bytes, the body. Pure.

Runs in the executors, the archive, the API and the commands. The body of a Protobuf value begins with message indexes: the
position of the value's message in the schema's file.
"""

from __future__ import annotations

from typing import NamedTuple

from delivery import errors

MAGIC = b"\0"
"""First byte of a framed value. No JSON begins with it."""
FRAME_BYTES = 5
"""Number of bytes of the frame, in front of the body."""
MAX_SCHEMA_ID = 2**31 - 1
"""Highest id of a schema: the schema registry keeps it as a signed integer of 32 bits."""
_CURE = "write it by the Protobuf serializer of the schema registry, which puts the indexes in front of the message"
_MAX_VARINT_BITS = 35
"""Most bits of a varint in five bytes, which hold an integer of 32 bits."""


class Frame(NamedTuple):
    """The parts of a framed value."""

    schema_id: int
    body: bytes
    """The bytes behind the frame."""


def is_framed(value: bytes) -> bool:
    """Return True if a value begins with the zero byte of a frame."""
    return value.startswith(MAGIC)


def frame_of(value: bytes) -> Frame:
    """Return the schema's id and the body of a value that begins with a zero byte.

    Raise EventRejected if the value is too short, or if the id is above MAX_SCHEMA_ID. For an id above MAX_SCHEMA_ID, the
    schema registry returns a 404 that `registry_client` takes for an outage. Without this check, the record would wait for
    ever.
    """
    if len(value) < FRAME_BYTES:
        raise errors.EventRejected(
            "bad_frame",
            f"the value begins with a zero byte and has {len(value)} bytes, and the frame of the wire format has "
            f"{FRAME_BYTES}: write it by a serializer of the schema registry, or as JSON",
        )
    schema_id = int.from_bytes(value[1:FRAME_BYTES], "big")
    if schema_id > MAX_SCHEMA_ID:
        raise errors.EventRejected(
            "bad_frame",
            f"the value begins with a zero byte and names schema {schema_id}, and the highest id is {MAX_SCHEMA_ID}: write "
            "it by a serializer of the schema registry, or as JSON",
        )
    return Frame(schema_id, value[FRAME_BYTES:])


def message_indexes(body: bytes) -> tuple[tuple[int, ...], bytes]:
    """Return the message indexes of a Protobuf body, and the rest of the body. Raise EventRejected if the indexes are broken.

    The indexes are zigzag varints behind their count. A count of 0 stands for the first message of the file.
    """
    count, position = _varint(body, 0)
    if not 0 <= count <= len(body):  # each index has at least one byte
        raise errors.EventRejected(
            "bad_frame",
            f"the value announces {count} message indexes, which its other {len(body) - position} bytes cannot hold: {_CURE}",
        )
    indexes = []
    for _ in range(count):
        index, position = _varint(body, position)
        indexes.append(index)
    return tuple(indexes) or (0,), body[position:]


def _varint(body: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while shift < _MAX_VARINT_BITS and position < len(body):
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004  # the last byte of a varint
            return value >> 1 ^ -(value & 1), position
        shift += 7
    raise errors.EventRejected("bad_frame", f"the value's message indexes are truncated, or are no varints: {_CURE}")
