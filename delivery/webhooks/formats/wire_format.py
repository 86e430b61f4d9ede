"""Split a value in the Confluent wire format: a zero byte, the schema's id in four bytes, the body. Pure.

Runs in the executors and the commands. The body of a Protobuf value begins with message indexes: the place of its message in
the schema's file.
"""

from __future__ import annotations

from typing import NamedTuple

from delivery import errors

MAGIC = b"\0"
"""First byte of a framed value. No JSON begins with it."""
FRAME_BYTES = 5
"""Bytes in front of the body."""
_MAX_VARINT_BITS = 35
"""Most bits of a varint in five bytes, which hold an integer of 32 bits."""


class Frame(NamedTuple):
    """A framed value."""

    schema_id: int
    body: bytes


def is_framed(value: bytes) -> bool:
    """Return True if a value begins as a frame does."""
    return value.startswith(MAGIC)


def frame_of(value: bytes) -> Frame:
    """Return the schema's id and the body of a value that begins as a frame does. Raise EventRejected if the frame is cut."""
    if len(value) < FRAME_BYTES:
        raise errors.EventRejected("bad_frame", f"{len(value)} bytes, and the frame of the wire format has {FRAME_BYTES}")
    return Frame(int.from_bytes(value[1:FRAME_BYTES], "big"), value[FRAME_BYTES:])


def message_indexes(body: bytes) -> tuple[tuple[int, ...], bytes]:
    """Return the message indexes of a Protobuf body, and the rest of the body. Raise EventRejected if the indexes are broken.

    The indexes are zigzag varints behind their count. A count of 0 stands for the first message of the file.
    """
    count, position = _varint(body, 0)
    if not 0 <= count <= len(body):  # each index has at least one byte
        raise errors.EventRejected("bad_frame", f"{count} message indexes in {len(body)} bytes")
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
    raise errors.EventRejected("bad_frame", "the message indexes are cut, or no varints of 32 bits")
