"""The keywords of JSON Schema that hold regular expressions, by RE2, which never goes back and tries again.

Runs in the command and in the API. Pure. A schema is the operator's, but the payload may be anybody's: by Python's `re`,
`^(a+)+$` takes a second for 25 letters, and twice as long for each further one. RE2 takes time in proportion to the text and to
the expression; it has neither references back nor looks ahead or behind.
Source: JSON Schema 2020-12, "Validation" (6.3.3) and "Core" (10.3.2.2, 10.3.2.3).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jsonschema
import re2

from delivery import errors

STATES_A_STEP = 10_000
"""Letters times states of the expression that take as long as a step of a check: 50 µs where RE2 is at its slowest."""
_MAX_BYTES = 1024 * 1024
"""Of an expression as RE2 keeps it, and of what it remembers while it runs."""
_DRAFT: Any = jsonschema.Draft202012Validator
_additional = _DRAFT.VALIDATORS["additionalProperties"]


def require(schemas: Iterable[Any]) -> None:
    """Raise RegistrationError for an expression in a schema, or in those within it, that cannot be checked by RE2.

    `unevaluatedProperties` looks for `patternProperties` by itself, with Python's `re`: so no schema has both.
    """
    keywords: set[str] = set()
    for schema in schemas:
        if isinstance(schema, dict):
            keywords.update(schema)
            for expression in (*schema.get("patternProperties", ()), *([schema["pattern"]] if "pattern" in schema else ())):
                compiled(expression)
    if keywords >= {"patternProperties", "unevaluatedProperties"}:
        raise errors.RegistrationError("", "has both patternProperties and unevaluatedProperties: use additionalProperties")


@functools.lru_cache(maxsize=128)  # each may take _MAX_BYTES
def compiled(expression: str) -> Any:
    """Return an expression, ready to search with; raise RegistrationError when it is none of RE2."""
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_BYTES
    try:
        return re2.compile(expression, options)
    except re2.error as exc:
        why = exc.args[0].decode() if isinstance(exc.args[0], bytes) else exc.args[0]
        lacks = "no references back, no looking ahead, at most 1000 repetitions"
        told = f"{expression[:100]!r} is no regular expression of RE2 ({lacks}): {why}"
        raise errors.RegistrationError("", told) from None


def cost(keyword: str, value: Any, instance: Any, schema: Mapping[str, Any]) -> int:
    """Return how many steps of a check a keyword's expressions take, beside what all keywords do."""
    if keyword == "pattern" and isinstance(instance, str):
        expressions, letters = [value], len(instance)
    elif keyword in {"patternProperties", "additionalProperties"} and isinstance(instance, dict):
        expressions, letters = list(schema.get("patternProperties", ())), sum(map(len, instance))
    else:
        return 0
    states: int = sum(compiled(one).programsize for one in expressions)
    return letters * states // STATES_A_STEP


def pattern(validator: Any, expression: str, instance: Any, _: Any) -> Iterator[jsonschema.ValidationError]:
    """Yield what is wrong with a text."""
    if validator.is_type(instance, "string") and not compiled(expression).search(instance):
        yield jsonschema.ValidationError(f"{instance!r} does not match {expression!r}")


def pattern_properties(
    validator: Any, schemas: Mapping[str, Any], instance: Any, _: Any
) -> Iterator[jsonschema.ValidationError]:
    """Yield what is wrong with the values whose names match."""
    if validator.is_type(instance, "object"):
        for expression, schema in schemas.items():
            for name in _matching(expression, instance):
                yield from validator.descend(instance[name], schema, path=name, schema_path=expression)


def additional_properties(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
    """Yield what is wrong with the values whose names neither stand in the schema nor match."""
    if validator.is_type(instance, "object") and "patternProperties" in schema:
        named = {name: True for one in schema["patternProperties"] for name in _matching(one, instance)}
        schema = {"properties": {**schema.get("properties", {}), **named}}
    yield from _additional(validator, allowed, instance, schema)


def _matching(expression: str, instance: Mapping[str, Any]) -> Iterator[str]:
    search = compiled(expression).search
    return (name for name in instance if search(name))


KEYWORDS = {"pattern": pattern, "patternProperties": pattern_properties, "additionalProperties": additional_properties}
"""In the place of those of jsonschema."""
