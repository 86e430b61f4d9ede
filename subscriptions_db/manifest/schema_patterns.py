"""Check the JSON Schema keywords that have regular expressions. RE2 runs the expressions, and does not backtrack.

Runs in `fanout` commands and in the API. Pure. Operators write schemas, but any customer may have a payload checked against
them, with `POST /v1/endpoints/{endpoint_id}/explain`. With Python's `re`, `^(a+)+$` takes a second for 25 letters, and twice as
long for each further letter. RE2 takes linear time; it has neither backreferences nor lookaround. Source: JSON Schema 2020-12,
"Validation" (6.3.3) and "Core" (10.3.2.2, 10.3.2.3).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jsonschema
import re2

from delivery import errors

STATES_A_STEP = 10_000
"""Product of letters and RE2 states that counts as one step of a check. One step takes 50 µs in RE2's slowest case."""
_MAX_BYTES = 1024 * 1024
"""Memory of a compiled expression, including its cache while it runs."""
_DRAFT: Any = jsonschema.Draft202012Validator
_additional = _DRAFT.VALIDATORS["additionalProperties"]


def require(schemas: Iterable[Any]) -> None:
    """Raise RegistrationError for a regular expression in these schemas that RE2 does not support.

    A subschema is checked only if `schemas` contains it. Raise RegistrationError too if both `unevaluatedProperties` and
    `patternProperties` occur, in one schema or in different ones. The check of `unevaluatedProperties` would evaluate
    `patternProperties` with Python's `re`.
    """
    keywords: set[str] = set()
    for schema in schemas:
        if isinstance(schema, dict):
            keywords.update(schema)
            for expression in (*schema.get("patternProperties", ()), *([schema["pattern"]] if "pattern" in schema else ())):
                compiled(expression)
    if keywords >= {"patternProperties", "unevaluatedProperties"}:
        raise errors.RegistrationError(
            "", "has both patternProperties and unevaluatedProperties: use additionalProperties instead"
        )


@functools.lru_cache(maxsize=128)  # each may take _MAX_BYTES
def compiled(expression: str) -> Any:
    """Return a compiled expression; raise RegistrationError if RE2 does not support it."""
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_BYTES
    try:
        return re2.compile(expression, options)
    except re2.error as exc:
        why = exc.args[0].decode() if isinstance(exc.args[0], bytes) else exc.args[0]
        lacks = "no backreferences, no lookaround, at most 1000 repetitions"
        problem = f"{expression[:100]!r} is not an RE2 regular expression ({lacks}): {why}"
        raise errors.RegistrationError("", problem) from None


def cost(keyword: str, value: Any, instance: Any, schema: Mapping[str, Any]) -> int:
    """Return the steps that the regular expressions of a keyword add to the cost of its check."""
    if keyword == "pattern" and isinstance(instance, str):
        expressions, letters = [value], len(instance)
    elif keyword in {"patternProperties", "additionalProperties"} and isinstance(instance, dict):
        expressions, letters = list(schema.get("patternProperties", ())), sum(map(len, instance))
    else:
        return 0
    states: int = sum(compiled(expression).programsize for expression in expressions)
    return letters * states // STATES_A_STEP


def pattern(validator: Any, expression: str, instance: Any, _: Any) -> Iterator[jsonschema.ValidationError]:
    """Check the keyword `pattern`: yield an error if a text does not match the expression."""
    if validator.is_type(instance, "string") and not compiled(expression).search(instance):
        yield jsonschema.ValidationError(f"{instance!r} does not match {expression!r}")


def pattern_properties(
    validator: Any, schemas: Mapping[str, Any], instance: Any, _: Any
) -> Iterator[jsonschema.ValidationError]:
    """Check the keyword `patternProperties`: yield the errors of values whose names match an expression."""
    if validator.is_type(instance, "object"):
        for expression, schema in schemas.items():
            for name in _matching(expression, instance):
                yield from validator.descend(instance[name], schema, path=name, schema_path=expression)


def additional_properties(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
    """Check the keyword `additionalProperties`: yield the errors of the values that it applies to.

    These are the values whose names are not in `properties` and match no expression of `patternProperties`.
    """
    if validator.is_type(instance, "object") and "patternProperties" in schema:
        named = {name: True for expression in schema["patternProperties"] for name in _matching(expression, instance)}
        schema = {"properties": {**schema.get("properties", {}), **named}}
    yield from _additional(validator, allowed, instance, schema)


def _matching(expression: str, instance: Mapping[str, Any]) -> Iterator[str]:
    search = compiled(expression).search
    return (name for name in instance if search(name))


KEYWORDS = {"pattern": pattern, "patternProperties": pattern_properties, "additionalProperties": additional_properties}
"""Keyword → the function that checks it in place of jsonschema's."""
