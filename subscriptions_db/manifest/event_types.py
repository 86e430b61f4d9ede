"""Check the catalogue's JSON Schemas, and payloads against them. Pure: fetches nothing, and bounds every check.

Runs in `fanout` commands and in the API. Delivery never uses this module, so a schema never stops a delivery. Operators write
the schemas, but any customer may have a payload checked, with `POST /v1/endpoints/{endpoint_id}/explain`. So schema and payload
are bounded in size and depth. Each check may visit about MAX_STEPS values, because each line of a schema can double the work.
Regular expressions run in RE2, and their work counts as visited values too.
"""

from __future__ import annotations

import contextvars
import itertools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jsonschema
import referencing
from jsonschema import validators
from referencing import jsonschema as dialects

from delivery import errors
from subscriptions_db.manifest import schema_patterns
from subscriptions_db.snapshot import endpoint_checks

DIALECT = "https://json-schema.org/draft/2020-12/schema"
MAX_BYTES = 64 * 1024
"""Maximum size of a schema, of all examples of a type together, and of a checked payload. The table columns have the same
bound."""
MAX_DEPTH = 32
"""Maximum levels of nesting in a schema, a payload, or the list of all examples. So one example may have one level less."""
MAX_WHOLE_NUMBER = 2**63 - 1
"""Largest absolute value of a whole number, so that a signed 64-bit integer can hold it. orjson, which writes test events,
refuses numbers of more than 64 bits."""
MAX_STEPS = 20_000
"""Maximum steps of one check, about one for each value visited. In the worst case these steps take about one second of CPU."""
MAX_PROBLEMS = 10
"""Maximum violations that one check returns."""
_LOCAL = re.compile(r"#(/(\$defs|definitions)/[^/]+)?")
_JSON_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_REFERENCES = ("$ref", "$dynamicRef")
_NO_OTHERS: referencing.Registry[Any] = referencing.Registry()
"""An empty registry of JSON Schemas without a retriever: no other document can be referenced or fetched."""
_steps_left = contextvars.ContextVar("steps_left", default=0)

Keyword = Callable[..., Iterator[Any] | None]


class SchemaProblem(NamedTuple):
    """A violation of a schema, with the path in the payload."""

    path: str
    problem: str


class _TooMuch(Exception):
    """Raised when a check has used up its MAX_STEPS steps."""


def check(schema: dict[str, Any] | None, examples: list[Any]) -> None:
    """Raise RegistrationError, with the path, for a schema or an example that cannot be used.

    1. The schema or an example is not JSON, nested too deeply, or not storable by Postgres. Or it has a whole number beyond
       MAX_WHOLE_NUMBER. Or the schema, or all examples together, have more than MAX_BYTES.
    2. The schema is not valid, names another `$schema` than DIALECT, or is refused by `schema_patterns.require`. Or it has a
       `$schema` or `$id` below its top level. Or it has a `$ref` or `$dynamicRef` that leads neither to `#` nor to a schema
       directly in its `$defs` or `definitions`.
    3. An example violates the schema, or its check takes more than MAX_STEPS steps or recurses too deeply.
    """
    for number, example in enumerate(examples):
        with endpoint_checks.below(f"examples[{number}]"):
            _require_plain(example, MAX_DEPTH - 1)
    with endpoint_checks.below("examples"):
        _require_small(examples)
    if schema is None:
        return
    with endpoint_checks.below("json_schema"):
        _require_small(schema)
        _require_schema(schema)
    for number, example in enumerate(examples):
        with endpoint_checks.below(f"examples[{number}]"):
            for found in problems(schema, example):
                raise errors.RegistrationError(*found)


def problems(schema: dict[str, Any], payload: Any) -> list[SchemaProblem]:
    """Return the violations of a schema by a payload, at most the first MAX_PROBLEMS.

    Raise RegistrationError in three cases:

    1. The payload is not JSON, too large, nested too deeply, or not storable by Postgres. Or it has a whole number beyond
       MAX_WHOLE_NUMBER.
    2. `schema_patterns.require` refuses the schema, or the schema has a `$ref` that does not resolve.
    3. The check takes more than MAX_STEPS steps, or recurses too deeply.
    """
    _require_small(payload)
    own = {name: part for name, part in schema.items() if name not in {"$schema", "$id"}}
    given = _steps_left.set(MAX_STEPS)
    try:
        schema_patterns.require(_schemas(own))
        found = itertools.islice(_Bounded(own, registry=_NO_OTHERS).iter_errors(payload), MAX_PROBLEMS)
        return [SchemaProblem(_path_of(error), _short(error.message)) for error in found]
    except (_TooMuch, RecursionError):
        raise errors.RegistrationError(
            "", "the check against the schema was ended, because it takes too many steps: simplify the schema or the payload"
        ) from None
    except referencing.exceptions.Unresolvable as exc:
        problem = (
            f"cannot be checked: {_short(exc.ref)}, a $ref of the schema, does not resolve. Let it name a schema in its $defs"
        )
        raise errors.RegistrationError("", problem) from None
    finally:
        _steps_left.reset(given)


def _require_small(value: Any) -> None:
    """Raise RegistrationError unless the value is JSON that Postgres can store, within the bounds of this module.

    The bounds: at most MAX_BYTES, at most MAX_DEPTH levels, and no whole number beyond MAX_WHOLE_NUMBER.
    """
    _require_plain(value, MAX_DEPTH)
    try:
        size = len(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):  # YAML has values that JSON lacks, such as .nan
        raise errors.RegistrationError(
            "", "is not JSON: it has a value that JSON lacks, such as .nan or .inf. Remove the value, or put it in quotes"
        ) from None
    if size > MAX_BYTES:
        raise errors.RegistrationError(
            "", f"has {size} bytes as JSON, and at most {MAX_BYTES} can be stored or checked: shorten it"
        )


def _require_plain(value: Any, max_depth: int) -> None:
    least_bytes = 0  # aliases of YAML may name a part many times
    for part, level in _parts(value):
        if level > max_depth:
            raise errors.RegistrationError("", f"is nested deeper than {max_depth} levels: flatten it")
        least_bytes += len(part) if isinstance(part, str) else 1
        if least_bytes > 2 * MAX_BYTES:
            raise errors.RegistrationError(
                "", f"has more than {2 * MAX_BYTES} bytes as JSON, and at most {MAX_BYTES} can be stored or checked: shorten it"
            )
        if isinstance(part, str) and "\0" in part:
            raise errors.RegistrationError("", r"contains a NUL character (\u0000), which Postgres cannot store: remove it")
        if isinstance(part, str) and any("\ud800" <= letter <= "\udfff" for letter in part):
            raise errors.RegistrationError(
                "", "contains a lone surrogate (half of a character), which Postgres cannot store: remove it"
            )
        if isinstance(part, int) and abs(part) > MAX_WHOLE_NUMBER:
            raise errors.RegistrationError(
                "",
                "contains a whole number below -(2^63 - 1) or above 2^63 - 1: write the number as text, or the bound of a "
                "schema with an exponent, such as 1.8e+19",
            )


def _parts(value: Any, level: int = 0) -> Iterator[tuple[Any, int]]:
    """Yield a value, the names in it and all its parts, each with its level of nesting. A value comes before its parts.

    A name has the level of its mapping. Raise RegistrationError for a name that is not text.
    """
    yield value, level
    if isinstance(value, dict):
        for name, part in value.items():
            if not isinstance(name, str):
                raise errors.RegistrationError("", "has a name that is not text: put it in quotes")
            yield name, level
            yield from _parts(part, level + 1)
    elif isinstance(value, list):
        for part in value:
            yield from _parts(part, level + 1)


def _require_schema(schema: dict[str, Any]) -> None:
    if schema.get("$schema", DIALECT) != DIALECT:
        raise errors.RegistrationError("$schema", f"must be {DIALECT}, or be left out")
    try:
        jsonschema.Draft202012Validator.check_schema(schema, format_checker=None)
    except jsonschema.SchemaError as exc:
        raise errors.RegistrationError(_path_of(exc), _said(exc)) from None
    schema_patterns.require(_schemas(schema))
    resolver = referencing.Registry().with_resource("", dialects.DRAFT202012.create_resource(schema)).resolver()
    for path, name, value in _texts(schema, ""):
        if name in {"$schema", "$id"} and path != name:
            raise errors.RegistrationError(path, "is allowed at the top only: a schema is one document")
        if name in _REFERENCES:
            try:
                leads = _LOCAL.fullmatch(value) is not None and resolver.lookup(value).contents is not None
            except referencing.exceptions.Unresolvable:
                leads = False
            if not leads:
                raise errors.RegistrationError(
                    path, "does not resolve to # or to a schema directly in $defs: use # or #/$defs/NAME; nothing is fetched"
                )


def _schemas(schema: Any) -> Iterator[Any]:
    """Yield a schema and all its subschemas."""
    yield schema
    for subschema in dialects.DRAFT202012.subresources_of(schema):
        yield from _schemas(subschema)


def _texts(value: Any, path: str) -> Iterator[tuple[str, str, str]]:
    """Yield (path, key, text) for each text that is the value of a key, at any depth. Texts in lists are left out."""
    if isinstance(value, dict):
        for name, part in value.items():
            below = f"{path}.{name}" if path else name
            if isinstance(part, str):
                yield below, name, part
            else:
                yield from _texts(part, below)
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _texts(part, f"{path}[{number}]")


def _counted(name: str, keyword: Keyword) -> Keyword:
    """Return a function that takes the cost of a keyword from the steps that the whole check has left, then runs `keyword`.

    `keyword` is the function that checks the keyword `name`. The cost is about one step for each value that the keyword visits.
    The returned function raises _TooMuch if too few steps are left.
    """

    def checked(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        in_schema, in_payload = (len(part) if isinstance(part, list | dict) else 0 for part in (value, instance))
        # uniqueItems compares all pairs, patternProperties each name with each pattern; other keywords visit both values once.
        cost = {"uniqueItems": in_payload * in_payload // 20, "patternProperties": in_payload * in_schema}.get(
            name, in_payload + in_schema
        )
        cost += schema_patterns.cost(name, value, instance, schema)
        left = _steps_left.get() - cost - 1
        if left < 0:
            raise _TooMuch
        _steps_left.set(left)
        yield from keyword(validator, value, instance, schema) or ()

    return checked


_DRAFT: Any = jsonschema.Draft202012Validator
_KEYWORDS: dict[str, Keyword] = _DRAFT.VALIDATORS | schema_patterns.KEYWORDS
_Bounded: Any = validators.extend(_DRAFT, {name: _counted(name, keyword) for name, keyword in _KEYWORDS.items()})


def _said(error: Any) -> str:
    """Return what is wrong with a schema. For an invalid `type`, list the valid types, which jsonschema omits."""
    if str(error.json_path).endswith(".type") and not str(error.json_path).endswith(("properties.type", "$defs.type")):
        return f"must be one of {', '.join(_JSON_TYPES)}, or a list of them"
    return _short(error.message)


def _path_of(error: Any) -> str:
    return str(error.json_path).removeprefix("$").removeprefix(".")


def _short(message: str) -> str:
    return message if len(message) <= 200 else f"{message[:200]}…"  # noqa: PLR2004  # one line of text
