"""Refuse Protobuf values whose JSON would be far larger than the values. Pure.

Runs in the executors, the archive and the commands.

In JSON, each message has all its fields without presence, even if they are not set. So an empty message of two bytes becomes
JSON with the names of all these fields, and takes even more memory. A value of a few hundred compressed bytes can have 100,000
such messages. The module counts the JSON before Protobuf parses a value. A value is counted only if its schema and its size
allow too much JSON.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from delivery import errors

MAX_JSON_BYTES = 2**20
"""Bytes of JSON above which a value is refused before its conversion. Above the largest allowed `source.max_event_bytes`."""
_FIELDS_PER_BYTE = 8
"""A message counts as at least one byte of JSON for each _FIELDS_PER_BYTE fields of its type. A parsed message takes up to 16
bytes of memory for each field of its type. Fields with presence count too, although JSON leaves them out. So a value within
MAX_JSON_BYTES takes at most some 128 MiB of memory."""
_MAX_NESTED_ANY = 100
"""Most messages of `google.protobuf.Any` nested in one another. Protobuf has the same limit for messages."""
_FIELD_OVERHEAD = 5
"""Least bytes of a field in JSON beside its name: two quotation marks, a colon, a value of one byte, a comma."""
_NAME_OVERHEAD = 3
"""Bytes that the name of an enum's value has in JSON, beside the name itself: two quotation marks and a comma."""
_SHORT = 2
"""Least bytes in JSON of a message, with its comma, if its type is in _OWN_JSON."""
_ENTRY = 5
"""Least bytes in JSON of a map's entry."""
_ANY = "google.protobuf.Any"
_OWN_JSON = frozenset(
    f"google.protobuf.{name}"
    for name in (
        "Any", "BoolValue", "BytesValue", "DoubleValue", "Duration", "FieldMask", "FloatValue", "Int32Value", "Int64Value",
        "ListValue", "StringValue", "Struct", "Timestamp", "UInt32Value", "UInt64Value", "Value",
    )
)  # fmt: skip
"""Messages whose JSON does not have the fields of their descriptors."""
_VARINT, _DELIMITED, _GROUP, _END_GROUP = 0, 2, 3, 4
"""Wire types."""
_FIXED_BYTES = (0, 8, 0, 0, 0, 4, 2**31, 2**31)
"""Bytes of a value, by wire type; 0 for a type whose values differ in length. The wire types 6 and 7 do not exist: their number
is beyond the end of any body, so the count ends there."""
_MAX_VARINT_BITS = 70
"""Most bits of a varint: ten bytes of seven bits. Protobuf refuses longer ones."""
_TAG_MASK = 2**32 - 1


class _CountedField(NamedTuple):
    """A field whose values count: messages, or values of an enum."""

    cost: int
    """Bytes of JSON that a message has by its type alone."""
    inner: _Plan | None
    """Plan of the message. None: the field is an enum."""
    names: Mapping[int, int]
    """Bytes in JSON of an enum's value, by its number as 32 bits without a sign."""


class _Plan:
    """The fields of a message type that are counted to estimate how large its values become as JSON."""

    __slots__ = ("has_any", "own", "parts")

    def __init__(self, own: int, *, has_any: bool) -> None:
        self.own = own
        """Bytes of JSON that each message of the type has, at least."""
        self.parts: dict[int, _CountedField] = {}
        """Field number and wire type, as a tag in the bytes → the field."""
        self.has_any = has_any
        """True: the type is `google.protobuf.Any`."""


class Root(NamedTuple):
    """A message type, with the bounds by which `require_room` finds values whose JSON may be too large."""

    plan: _Plan
    per_byte: float
    """Most bytes of JSON, without the texts and numbers, that a byte of a value becomes."""
    has_any: bool
    """True: a value may have a message `google.protobuf.Any`, and `ProtobufExpansion.require_room_for_any` must be called."""


class ProtobufExpansion:
    """Count how large values become as JSON. `pool` has the message types."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._plans: dict[str, _Plan] = {}

    def root(self, descriptor: Any) -> Root:
        """Return the Root of a message type.

        Raise EventRejected if the type, or a type in it, has `message_set_wire_format`: the JSON of its values cannot be
        counted.
        """
        plan = self._plan(descriptor)
        reached, waiting, per_byte = {plan}, [plan], 0.0
        while waiting:
            for part in waiting.pop().parts.values():
                if part.inner is None:
                    per_byte = max((per_byte, *part.names.values()))  # a value in a packed field has one byte
                    continue
                per_byte = max(per_byte, part.cost / 2)  # a message has a tag, and a length or the tag of its end
                if part.inner not in reached:
                    reached.add(part.inner)
                    waiting.append(part.inner)
        return Root(plan, per_byte, any(each.has_any for each in reached))

    def require_room(self, root: Root, body: bytes) -> None:
        """Raise EventRejected if the messages and enums of a Protobuf `body` would exceed MAX_JSON_BYTES as JSON.

        The content of texts and numbers does not count. `require_room_for_any` counts the messages in `google.protobuf.Any`.

        A body may give several values to a field that is not `repeated`, or to one key of a map. Each of these values counts,
        although Protobuf keeps only the last.
        """
        if root.plan.own + len(body) * root.per_byte > MAX_JSON_BYTES and _left(root.plan, body, MAX_JSON_BYTES) < 0:
            raise _too_large()

    def require_room_for_any(self, message: Any) -> None:
        """Raise EventRejected if the messages in `google.protobuf.Any` of a parsed message would be too large as JSON.

        Also raise it if these messages are nested too deeply. Raise Protobuf's errors for broken bytes.
        """
        from google.protobuf import message_factory  # noqa: PLC0415  # as in `avro`

        left, waiting = MAX_JSON_BYTES, [(message, 0)]
        while waiting:
            part, depth = waiting.pop()
            if part.DESCRIPTOR.full_name != _ANY:
                waiting += [(inner, depth) for inner in _inner(part)]
                continue
            try:
                packed = self._pool.FindMessageTypeByName(part.type_url.rpartition("/")[2])
            except KeyError:  # the conversion to JSON refuses the value
                continue
            left = _left(self._plan(packed), part.value, left)
            if left < 0:
                raise _too_large()
            if depth == _MAX_NESTED_ANY:
                raise errors.EventRejected(
                    "undecodable", f"the value nests more than {_MAX_NESTED_ANY} messages of {_ANY} in one another: nest fewer"
                )
            waiting.append((message_factory.GetMessageClass(packed).FromString(part.value), depth + 1))

    def _plan(self, descriptor: Any) -> _Plan:
        """Return the plan of a message type. The plan refers to the plans of all message types in its fields.

        Raise EventRejected if one of these types has `message_set_wire_format`. Raise ValueError for a broken descriptor.
        """
        waiting: list[Any] = []
        try:
            plan = self._known(descriptor, waiting)
            while waiting:  # not recursive: a chain of types may be long
                found = waiting.pop()
                for field in (*found.fields, *self._pool.FindAllExtensions(found)):
                    self._add(self._plans[found.full_name].parts, field, waiting)
        except (ValueError, errors.EventRejected):
            self._plans.clear()  # some plans have no parts yet
            raise
        return plan

    def _known(self, descriptor: Any, waiting: list[Any]) -> _Plan:
        """Return the plan of a message type. A new plan has no parts, and its descriptor is appended to `waiting`."""
        name = descriptor.full_name
        if name not in self._plans:
            if descriptor.GetOptions().message_set_wire_format:
                raise errors.EventRejected(
                    "undecodable",
                    f"type {name[:60]} in the value's Protobuf schema has the option message_set_wire_format, which fanout "
                    "does not read: publish with a schema without this option",
                )
            self._plans[name] = _Plan(_own(descriptor), has_any=name == _ANY)
            waiting.append(descriptor)
        return self._plans[name]

    def _add(self, parts: dict[int, _CountedField], field: Any, waiting: list[Any]) -> None:
        if field.message_type is not None:
            inner = self._known(field.message_type, waiting)
            # A map's entry without a value has an empty message, so the entry counts for both.
            cost = 0 if field.containing_type.GetOptions().map_entry else inner.own
            kind = _GROUP if field.type == field.TYPE_GROUP else _DELIMITED
            parts[field.number << 3 | kind] = _CountedField(cost, inner, {})
        elif field.enum_type is not None and field.enum_type.full_name != "google.protobuf.NullValue":  # it is `null`
            values = field.enum_type.values_by_number.items()
            names = {number & _TAG_MASK: len(value.name) + _NAME_OVERHEAD for number, value in values}
            parts[field.number << 3 | _VARINT] = parts[field.number << 3 | _DELIMITED] = _CountedField(0, None, names)


def _own(descriptor: Any) -> int:
    """Return the least bytes of JSON of a message of this type.

    A message of a type with very many fields counts more, because of its memory (_FIELDS_PER_BYTE).
    """
    held = len(descriptor.fields) // _FIELDS_PER_BYTE
    if descriptor.GetOptions().map_entry:
        value = descriptor.fields_by_name["value"].message_type
        return _ENTRY if value is None else _ENTRY + _own(value)
    if descriptor.full_name in _OWN_JSON:
        return max(_SHORT, held)
    shown = sum(len(field.name) + _FIELD_OVERHEAD for field in descriptor.fields if not field.has_presence)
    return max(_SHORT + shown, held)


def _inner(message: Any) -> list[Any]:
    """Return the messages directly in a parsed message."""
    found: list[Any] = []
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            found += value.values() if field.message_type.fields_by_name["value"].message_type is not None else ()
        else:
            found += value if field.is_repeated else [value]
    return found


def _left(plan: _Plan, body: bytes, left: int) -> int:
    """Subtract the bytes of JSON of the messages and enums in `body` from `left`, and return the rest. Below 0: too large.

    The count ends when the rest is below 0. The count also ends at the first broken byte, because Protobuf refuses such a body.
    """
    parts: Mapping[int, _CountedField] = plan.parts
    around: list[tuple[Mapping[int, _CountedField], int]] = []
    position, end = 0, len(body)
    left -= plan.own
    with contextlib.suppress(IndexError, ValueError):
        while left >= 0 and (position < end or around):
            if position >= end:
                parts, end = around.pop()
                continue
            tag, position = _varint(body, position)
            kind, part = tag & 7, parts.get(tag & _TAG_MASK)
            if kind == _DELIMITED:
                size, start = _varint(body, position)
                position = start + size
                if part is None:
                    continue
                left -= part.cost
                if part.inner is None:
                    left -= _packed(part.names, body, start, position)
                elif part.inner.parts:  # else nothing in the message counts
                    around.append((parts, end))
                    parts, position, end = part.inner.parts, start, position
            elif kind == _VARINT:
                number, position = _varint(body, position)
                left -= 0 if part is None else part.names.get(number & _TAG_MASK, 0)
            elif kind == _GROUP:  # the end of an unknown group has to be found, too
                left -= 0 if part is None else part.cost
                around.append((parts, end))
                parts = {} if part is None or part.inner is None else part.inner.parts
            elif kind == _END_GROUP:
                parts, end = around.pop()
            else:
                position += _FIXED_BYTES[kind]
    return left


def _packed(names: Mapping[int, int], body: bytes, position: int, end: int) -> int:
    """Return the bytes of JSON of the enum values in a packed field. The field is `body` from `position` to `end`.

    Raise IndexError or ValueError if a value is broken.
    """
    total = 0
    while position < end:
        number, position = _varint(body, position)
        total += names.get(number & _TAG_MASK, 0)
    return total


def _varint(body: bytes, position: int) -> tuple[int, int]:
    """Return the varint at `position`, and the position behind it. Raise IndexError or ValueError if it is broken."""
    value = body[position]
    position += 1
    if value < 0x80:  # noqa: PLR2004  # the last byte of a varint
        return value, position
    value &= 0x7F
    for shift in range(7, _MAX_VARINT_BITS, 7):
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004
            return value, position
    raise ValueError("a varint has more than ten bytes")


def _too_large() -> errors.EventRejected:
    return errors.EventRejected(
        "too_large",
        f"the value would have more than {MAX_JSON_BYTES} bytes as JSON, or would need too much memory, because each message "
        "has all fields of its type: send fewer messages in an event, or messages of types with fewer fields",
    )
