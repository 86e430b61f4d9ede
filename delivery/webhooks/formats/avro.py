"""Convert Avro to JSON by the schema with which it was written. Pure. Runs in the executors, the archive and the commands.

docs/producing.md lists the JSON of each type. Bytes come from producers, so no bytes may harm a worker:

1. fastavro's compiled reader recurses on the C stack without a limit. Bytes of a recursive schema could end the process, so
   such schemas are read by fastavro's Python reader, which raises RecursionError.
2. If the items of an array have no bytes (`null`), a few bytes can claim billions of items. Schemas with such an array are
   refused.
3. Records need no bytes of their own, and the names of their fields need none. So a few bytes can become hundreds of megabytes
   of JSON. `avro_expansion` refuses such schemas and bodies.
"""

from __future__ import annotations

import base64
import decimal
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson

from delivery import errors
from delivery.webhooks.formats import avro_expansion

MAX_SCALE = 1000
"""Most digits behind the point of a decimal. A schema with more is refused: the JSON of a decimal has as many characters as
digits."""
MAX_DECIMAL_BYTES = 415
"""Most bytes of a decimal's number: about 1,000 digits. The time of their conversion grows with the square of the bytes."""
_VALUE = "value"
_WRAPPER = "fanout_Wrapper"
"""Name of the record that `compiled` puts around each schema. A record with one field is encoded like the field. Without the
record, fastavro would parse the schema again for each value, and would then not know the types of references. The name has no
namespace, because the schema would inherit the namespace, and its references would not."""


def compiled(text: str, references: Sequence[str]) -> Callable[[bytes], bytes]:
    """Return a function that takes a body in Avro and returns JSON, by the schema `text` (JSON).

    `references` are the schemas that `text` needs, in such an order that no schema needs a later one. Raise ValueError with the
    reason if the schema cannot be used. The returned function raises EventRejected for a body that it cannot convert.
    """
    import fastavro  # noqa: PLC0415  # only jobs with a schema registry need it
    from fastavro import _read_py  # noqa: PLC0415

    named: dict[str, Any] = {}
    try:
        for reference in references:
            fastavro.parse_schema(json.loads(reference), named_schemas=named)
        wrapper = {"type": "record", "name": _WRAPPER, "fields": [{"name": _VALUE, "type": json.loads(text)}]}
        schema = fastavro.parse_schema(wrapper, named_schemas=named)
        is_recursive = _Examined(named).is_recursive(schema)
        expansion = avro_expansion.AvroExpansion(schema, named)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as exc:
        raise ValueError(f"{type(exc).__name__}: {exc}"[:200]) from exc
    except Exception as exc:  # fastavro's own classes have no common base
        raise ValueError(f"{type(exc).__name__}: {exc}"[:200]) from exc
    # The Python reader has readers of its own.
    _read_exact_decimals(fastavro.read.LOGICAL_READERS, _read_py.LOGICAL_READERS)  # type: ignore[attr-defined]
    read: Any = _read_py.schemaless_reader if is_recursive else fastavro.schemaless_reader

    def decode(body: bytes) -> bytes:
        expansion.require_room(body)
        stream = io.BytesIO(body)
        try:
            content = read(stream, schema, None)[_VALUE]
            written = orjson.dumps(content, default=_plain, option=orjson.OPT_UTC_Z)
        except Exception as exc:  # broken bytes raise errors of many classes, and none may leave: one record is at fault
            problem = f"the value does not decode by its Avro schema ({type(exc).__name__}: {exc}"[:130]
            cure = "use an Avro serializer, dates of years 1 to 9999 and less nesting"
            raise errors.EventRejected("undecodable", f"{problem}): {cure}") from exc
        if stream.tell() != len(body):
            raise errors.EventRejected(
                "undecodable",
                f"by its Avro schema the value ends after {stream.tell()} of the {len(body)} bytes behind the frame, so it was "
                "written by another schema than the frame names: use an Avro serializer of the schema registry",
            )
        return written

    return decode


def _read_exact_decimals(*readers: dict[str, Any]) -> None:
    """Replace fastavro's functions for decimals by `_exact`.

    fastavro's own functions round a number with more digits than the schema's `precision`.
    """
    for read in readers:
        read.update({"bytes-decimal": _exact, "fixed-decimal": _exact})


def _exact(unscaled: bytes, schema: Mapping[str, Any], _: Any) -> decimal.Decimal:
    """Return the decimal of these bytes, with all its digits: the bytes may have more than the schema's `precision`.

    Raise ValueError for more than MAX_DECIMAL_BYTES.
    """
    if len(unscaled) > MAX_DECIMAL_BYTES:
        raise ValueError("a decimal has more than 1,000 digits")
    number = int.from_bytes(unscaled, "big", signed=True)
    sign, digits, _ = decimal.Decimal(number).as_tuple()
    return decimal.Decimal((sign, digits, -int(schema.get("scale") or 0)))


def _plain(value: Any) -> str:
    """Return the text that stands in JSON for a decimal or for bytes. Raise TypeError for another value."""
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"no JSON for {type(value).__name__}")


class _Examined:
    """Find out whether a parsed schema is recursive, and refuse schemas whose values could harm a worker. Used once.

    `named` has the definition of each named type.
    """

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._open: set[str] = set()
        self._done: set[str] = set()
        self._empty: dict[str, bool] = {}

    def is_recursive(self, schema: Any) -> bool:
        """Return True if the schema, or a type in it, contains itself.

        Raise ValueError for an array whose items may have no bytes, and for a decimal with a scale above MAX_SCALE.
        """
        if isinstance(schema, str):
            if schema not in self._named or schema in self._done:
                return False
            if schema in self._open:
                return True
            return self.is_recursive(self._named[schema])
        if isinstance(schema, list):
            return self._any_recursive(schema)
        kind, name = schema["type"], schema.get("name")
        if int(schema.get("scale") or 0) > MAX_SCALE:
            raise ValueError(f"a decimal has a scale above {MAX_SCALE}")
        if kind == "array" and self._may_be_empty(schema["items"], frozenset()):
            raise ValueError("the items of an array may have no bytes")
        if name is not None:
            self._open.add(name)
        inner = [schema[part] for part in ("items", "values") if part in schema]
        inner += [field["type"] for field in schema.get("fields", ())]
        if not isinstance(kind, str):
            inner.append(kind)
        found = self._any_recursive(inner)
        if name is not None:
            self._open.discard(name)
            self._done.add(name)
        return found

    def _any_recursive(self, parts: Iterable[Any]) -> bool:
        """Return True if one of the types is recursive. Examine all types, because `is_recursive` may refuse a later one."""
        found = False
        for part in parts:
            found |= self.is_recursive(part)
        return found

    def _may_be_empty(self, schema: Any, within: frozenset[str]) -> bool:
        """Return True if Avro may encode a value of this type in no bytes. `within` names the types around this one."""
        if isinstance(schema, str):
            if schema not in self._named:
                return schema == "null"
            if schema in within:
                return True
            if schema not in self._empty:  # without this cache, types that name others twice would take exponential time
                self._empty[schema] = self._may_be_empty(self._named[schema], within | {schema})
            return self._empty[schema]
        if isinstance(schema, list):
            return False  # a union has the number of its branch
        kind = schema["type"]
        if kind in {"record", "error"}:
            return all(self._may_be_empty(field["type"], within | {schema["name"]}) for field in schema["fields"])
        if kind == "fixed":
            return int(schema["size"]) <= 0
        return kind == "null" or (not isinstance(kind, str) and self._may_be_empty(kind, within))
