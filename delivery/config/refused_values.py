"""Say in plain words why pydantic refused a value. Pure.

Runs where settings, manifests or requests are checked: in the job, in the API and in `fanout` commands. pydantic's own
messages show regular expressions and Python types, and may quote a secret. So no message of pydantic is passed on. The texts
that validators of the platform raise as ValueError are passed on. The messages of this module name the kind of a refused value,
never the value.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

_TYPES: dict[str, str] = {
    "string_type": "text",
    "string_sub_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping (`name: value`)",
    "model_type": "a mapping (`name: value`)",
    "model_attributes_type": "a mapping (`name: value`)",
}
_BOUNDS = {
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must have {min_length} or more characters",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
}
_TIME = "must be a time with its offset from UTC, such as 2026-01-31T12:00:00Z"
_OTHERS = {
    "missing": "is missing: add it",
    "int_from_float": "must be a whole number: remove the fraction",
    "int_parsing_size": "has too many digits: use a smaller number",
    "finite_number": "must be a finite number, not inf or nan",
    "invalid_key": "is a name that is not text: put it in quotes",
    "string_unicode": "has a character that UTF-8 cannot encode: remove it",
    "datetime_type": _TIME,
    "datetime_parsing": _TIME,
    "datetime_from_date_parsing": _TIME,
    "timezone_aware": _TIME,
}
"""pydantic's error type → the message, which does not depend on the refused value."""
_NO_FORM = "does not have the required form"


def explained(error: Any, words: Mapping[str, str]) -> str:
    """Return the message for one of pydantic's errors.

    `words` maps a field's pattern to the message for a value that does not match it.
    """
    kind, context = error["type"], error.get("ctx", {})
    if kind in _OTHERS:
        return _OTHERS[kind]
    if kind in _TYPES:
        given = _kind_of(error["input"], is_text_wanted=_TYPES[kind] == "text")
        # A text such as "8" counts as a number, and an environment variable is always text.
        return f"must be {_TYPES[kind]}, but is {'other text' if kind.endswith('_parsing') and given == 'text' else given}"
    if kind in {"too_short", "too_long"} and isinstance(error["input"], str):
        kind = f"string_{kind}"  # of a SecretStr, pydantic says the same as of a list
    if kind in _BOUNDS:
        return _BOUNDS[kind].format(**{name: _number(bound) for name, bound in context.items()})
    if kind == "string_pattern_mismatch":
        return words.get(context["pattern"], _NO_FORM)
    if kind in {"literal_error", "enum"}:
        values = re.findall("'([^']*)'", context["expected"])  # a Literal of enum members has <Granularity.HOUR: 'hour'>
        meant = _meant(error["input"], values)
        return f"must be one of {', '.join(value or '(empty)' for value in values)}{meant}"
    return str(error["msg"]).removeprefix("Value error, ") if kind == "value_error" else _NO_FORM


def _meant(given: object, values: list[str]) -> str:
    if not isinstance(given, str):
        return f", but is {_kind_of(given, is_text_wanted=True)}"
    close = difflib.get_close_matches(given, values, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _kind_of(value: object, *, is_text_wanted: bool) -> str:
    """Return the kind of a value, never the value. For a boolean or a number in place of text, add the advice to quote it."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true or false" + (": put it in quotes" if is_text_wanted else "")
    if isinstance(value, int | float):
        return "a number" + (": put it in quotes" if is_text_wanted else "")
    names = ((str, "text"), (list, "a list"), (dict, "a mapping"))
    return next((name for kind, name in names if isinstance(value, kind)), "something else")


def _number(bound: object) -> object:
    return int(bound) if isinstance(bound, float) and bound.is_integer() else bound
