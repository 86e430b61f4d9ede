"""Refuse Avro schemas and bodies whose JSON would be far larger than the bodies. Pure.

Runs in the executors, the archive and the commands.

In JSON, a record contains the names of its fields. In Avro, it contains only the values of its fields. So an empty body can be
a record of a record of thousands of records without fields, and a body of a few hundred bytes can become hundreds of megabytes
of JSON. The module bounds the JSON of a body by the length of the body. If the bound is too large, the module counts the JSON
of this body before fastavro reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from delivery import errors

MAX_NODES = 10_000
"""Most records and nulls in a value of one record type, without those in its unions, arrays and maps. For each byte that the
value needs in Avro, _NODES_PER_BYTE more are allowed. A schema that exceeds this bound is refused."""
_NODES_PER_BYTE = 10
"""Further records and nulls that a value may have for each byte that the value needs in Avro (see MAX_NODES)."""
MAX_JSON_BYTES = 2**20
"""Most bytes of JSON of a body whose JSON is counted. A body with more is refused before its conversion. The number is above
the largest allowed `source.max_event_bytes`."""
MAX_UNCOUNTED_BYTES = 2**23
"""The length of a body gives an upper bound of its JSON, in bytes. If this upper bound is at most MAX_UNCOUNTED_BYTES, the JSON
is not counted. To convert so many bytes takes about one second and 150 MB. For a body of 262,144 bytes, the JSON is not counted
if no byte can become more than 32 bytes of JSON."""
_NULL_BYTES = 4
"""Number of bytes that `null` takes in JSON. `true` takes as many."""
_QUOTES = 2
"""Number of bytes of two quotation marks."""
_RECORD, _UNION, _BLOCKS, _ENUM, _NUMBER, _TEXT, _FIXED = range(7)
"""Kinds of types, by how their bytes are read. _BLOCKS: an array or a map. _TEXT: a length, and as many bytes."""
_PRIMITIVES = {
    "null": (_FIXED, _NULL_BYTES, 0), "boolean": (_FIXED, _NULL_BYTES, 1), "float": (_FIXED, 1, 4), "double": (_FIXED, 1, 8),
    "int": (_NUMBER, 1, 1), "long": (_NUMBER, 1, 1), "bytes": (_TEXT, _QUOTES, 1), "string": (_TEXT, _QUOTES, 1),
}  # fmt: skip
"""Kind, least bytes of JSON and least bytes in Avro of each primitive type."""
_MAX_VARINT_BITS = 70
"""Most bits of a varint: ten bytes of seven bits."""


class _Type:
    """A type of the schema, reduced to the numbers by which its JSON is counted."""

    __slots__ = ("json_bytes", "kind", "least_bytes", "name", "parts", "symbols")

    def __init__(self, kind: int, json_bytes: int = 0, least_bytes: int = 0, *, name: str = "") -> None:
        self.kind = kind
        self.json_bytes = json_bytes
        """Least bytes of JSON of a value, without its parts."""
        self.least_bytes = least_bytes
        """Least bytes of a value in Avro, without its parts. For the kind _FIXED, each value has exactly this many bytes."""
        self.name = name
        """Name of a record, or "null" for the type null: their values count as nodes. Empty for any other type, and for the
        entry of an array or a map."""
        self.parts: list[_Type] = []
        """For a record its fields, the last first. For a union its branches. For an array or a map its entry, as a record."""
        self.symbols: list[int] = []
        """For each symbol of an enum, the bytes of the symbol in JSON."""


class _Size(NamedTuple):
    """The size of each value of a type, without the values in its unions, arrays and maps."""

    nodes: int
    """Records and nulls."""
    json_bytes: int
    """Bytes of JSON. An enum counts with its longest symbol. A union counts with the longest of those branches that have no
    bytes in Avro."""
    least_bytes: int
    """Least bytes in Avro."""


class AvroExpansion:
    """Refuse bodies of one parsed schema whose JSON would be too large. `named` has the definition of each named type.

    The length of a body gives an upper bound of its JSON's size. The body's JSON is counted only if this bound is large.

    Raise ValueError for a type whose values may have more than MAX_NODES records and nulls in few bytes.
    """

    def __init__(self, schema: Any, named: Mapping[str, Any]) -> None:
        self._named = named
        self._types: dict[str, _Type] = {}
        self._sizes: dict[_Type, _Size | None] = {}
        """None: the type is being examined."""
        self._recursive: set[_Type] = set()
        self._per_byte = 0.0
        """Most bytes of JSON that a byte of a body can become, by the types in unions, arrays and maps. All other types occur
        once in a body: `_once` counts them."""
        self._without_bytes = 0
        """Most bytes of JSON of an entry of an array or map that seems to have no bytes in Avro. Only an entry with a recursive
        type does, because `_size` counts no bytes for this type."""
        self._root = self._type(schema)
        self._once = min(self._size(self._root).json_bytes, MAX_UNCOUNTED_BYTES + 1)
        """Bytes of JSON that each body has outside unions, arrays and maps. Cut just above MAX_UNCOUNTED_BYTES, because a
        larger integer might not fit into a float."""
        for part in self._recursive:
            nodes, json_bytes, least_bytes = self._size(part)
            self._note(_Size(nodes, json_bytes + self._without_bytes, max(1, least_bytes)))

    def require_room(self, body: bytes) -> None:
        """Raise EventRejected if the JSON of `body` may be large, and would have more than MAX_JSON_BYTES.

        Texts and bytes do not count. Repeated keys of a map count each time. Also raise EventRejected if the JSON may be large,
        and the body is broken.
        """
        if self._once + len(body) * self._per_byte <= MAX_UNCOUNTED_BYTES:
            return
        try:
            left = _left(self._root, body, MAX_JSON_BYTES)
        except (IndexError, ValueError) as exc:
            raise errors.EventRejected(
                "undecodable", "the value does not decode by its Avro schema: use an Avro serializer"
            ) from exc
        if left < 0:
            raise errors.EventRejected(
                "too_large",
                f"the value would have more than {MAX_JSON_BYTES} bytes as JSON, because each record has the names of its "
                "fields: send fewer records in an event, or use a schema with fewer or shorter names",
            )

    def _type(self, schema: Any) -> _Type:
        """Return the _Type of a schema. Types of the same name are one _Type."""
        if isinstance(schema, list):
            union = _Type(_UNION, least_bytes=1)  # the number of the branch
            union.parts = [self._type(branch) for branch in schema]
            return union
        if isinstance(schema, str):
            if schema in self._named:
                return self._types[schema] if schema in self._types else self._type(self._named[schema])
            return _Type(*_PRIMITIVES[schema], name="null" if schema == "null" else "")
        kind = schema["type"]
        if kind in {"array", "map"}:
            blocks = _Type(_BLOCKS, least_bytes=1)  # the number of entries, and the end
            if kind == "array":
                entry = _Type(_RECORD, 1)  # a comma
                entry.parts = [self._type(schema["items"])]
            else:
                entry = _Type(_RECORD, 2)  # a comma and a colon
                entry.parts = [self._type(schema["values"]), self._type("string")]
            blocks.parts = [entry]
            return blocks
        if kind in {"record", "error"}:
            return self._record(schema)
        if kind == "enum":
            enum = self._types[schema["name"]] = _Type(_ENUM, least_bytes=1)
            enum.symbols = [len(symbol) + _QUOTES for symbol in schema["symbols"]]
            return enum
        if kind == "fixed":
            fixed = self._types[schema["name"]] = _Type(_FIXED, _text_bytes(schema), max(0, int(schema["size"])))
            return fixed
        plain = self._type(kind)
        if kind == "bytes":
            plain.json_bytes = _text_bytes(schema)
        return plain

    def _record(self, schema: Any) -> _Type:
        record = self._types[schema["name"]] = _Type(_RECORD, 1, name=schema["name"])  # {} has two bytes, the last comma none
        for field in schema["fields"]:
            record.json_bytes += len(orjson.dumps(field["name"])) + 2  # a colon and a comma
            record.parts.append(self._type(field["type"]))
        record.parts.reverse()
        return record

    def _size(self, part: _Type) -> _Size:
        """Return the size of a value of this type. Call `_note` for all types in its unions, arrays and maps."""
        if part in self._sizes:
            known = self._sizes[part]
            if known is None:  # a type in itself, behind a union, array or map. It is noted at the end.
                self._recursive.add(part)
                return _Size(0, 0, 0)
            return known
        self._sizes[part] = None
        inner = [self._size(each) for each in part.parts]
        size = _Size(int(bool(part.name)), part.json_bytes + max(part.symbols, default=0), part.least_bytes)
        if part.kind == _RECORD:
            size = _Size(*map(sum, zip(size, *inner, strict=True)))
            if size.nodes > MAX_NODES + _NODES_PER_BYTE * size.least_bytes:
                raise ValueError(f"a value of {part.name[:60]} would have more than {MAX_NODES} records without bytes")
        elif part.kind == _UNION:
            # A branch without bytes counts here, because the number of the branch is its only byte.
            size = size._replace(json_bytes=max((each.json_bytes for each in inner if not each.least_bytes), default=0))
            for each in inner:
                if each.least_bytes:
                    self._note(each)
        elif part.kind == _BLOCKS:
            self._note(*inner)
        self._sizes[part] = size
        return size

    def _note(self, size: _Size) -> None:
        """Record the size of a type in a union, array or map.

        The size counts for `_per_byte`, or for `_without_bytes` if the type counts no bytes in Avro.
        """
        if size.least_bytes:
            self._per_byte = max(self._per_byte, size.json_bytes / size.least_bytes)
        else:
            self._without_bytes = max(self._without_bytes, size.json_bytes)


def _text_bytes(schema: Mapping[str, Any]) -> int:
    """Return the smallest length, in bytes, of the JSON of a `bytes` or `fixed` value.

    A decimal always has `scale` digits after its point, so they count: "0.00".
    """
    scale = int(schema.get("scale") or 0) if schema.get("logicalType") == "decimal" else 0
    return _QUOTES + (scale + 2 if scale else 0)


def _left(root: _Type, body: bytes, left: int) -> int:
    """Subtract the bytes of JSON of the value in `body` from `left`, and return the rest. Below 0: the JSON is too large.

    The count ends when the rest is below 0. Raise IndexError or ValueError if the body is broken.
    """
    waiting, position = [(root, 1)], 0
    while waiting and left >= 0:
        part, times = waiting.pop()
        if times > 1:
            waiting.append((part, times - 1))
        kind = part.kind
        left -= part.json_bytes
        if kind == _RECORD:
            waiting += [(inner, 1) for inner in part.parts]
        elif kind == _FIXED:
            position += part.least_bytes
        else:
            number, position = _long(body, position)
            if kind == _UNION:
                waiting.append((part.parts[number], 1))
            elif kind == _ENUM:
                left -= part.symbols[number]
            elif kind == _TEXT:
                position += _length(number)
            elif kind == _BLOCKS and number:
                if number < 0:  # the bytes of the block follow
                    _, position = _long(body, position)
                waiting += [(part, 1), (part.parts[0], abs(number))]
    return left


def _length(number: int) -> int:
    if number < 0:
        raise ValueError("a text has a length below 0")
    return number


def _long(body: bytes, position: int) -> tuple[int, int]:
    """Return the number at `position`, and the position behind it.

    Raise IndexError or ValueError if the number is broken or has more than ten bytes. fastavro's compiled reader accepts a
    longer number, but reads another value than this function would.
    """
    value = body[position]
    position += 1
    if value >= 0x80:  # noqa: PLR2004  # not the last byte of a varint
        value &= 0x7F
        for shift in range(7, _MAX_VARINT_BITS, 7):
            byte = body[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:  # noqa: PLR2004
                break
        else:
            raise ValueError("a number has more than ten bytes")
    return (value >> 1) ^ -(value & 1), position
