"""Translate pydantic's errors into messages for the author of a document. Pure.

Runs in `fanout` commands and in the API. pydantic's own messages show regular expressions and Python types, and may quote a
secret. So none of them is passed on, except the texts that validators of the platform raise as ValueError. The messages of this
module name the kind of a refused value, never the value.
"""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Iterator
from typing import Any

import pydantic

from delivery import errors

ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$"
EVENT_TYPE_PATTERN = r"^(\*|[A-Za-z0-9][A-Za-z0-9_:/-]*(\.[A-Za-z0-9_:/-]+)*(\.\*)?)$"
USERNAME_PATTERN = "^[^:]+$"
CLIENT_ID_PATTERN = r"^[ -~]{1,256}$"
SCOPE_WORDS_PATTERN = r"^[!#-\[\]-~]+( [!#-\[\]-~]+)*$"
HEADER_PATTERN = r"^[A-Za-z0-9-]{1,128}$"
METADATA_NAME_PATTERN = r"^[A-Za-z0-9_./-]{1,64}$"
METADATA_ENTRY_PATTERN = r"^[A-Za-z0-9_./-]{1,64}:[^\x00]*$"
FIELD_PATH_PATTERN = r"^[^.\s]+(\.[^.\s]+)*$"
CONSUMER_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
LETTER_ID_PATTERN = r"^[0-9]{1,19}$"
TOPIC_NAME_PATTERN = r"^[A-Za-z0-9._-]{1,249}$"
VISIBLE_ASCII_PATTERN = r"^[!-~]+$"
NO_NULL_PATTERN = r"^[^\x00]*$"
WORDS = {
    ID_PATTERN: "is not a valid id: use 1 to 128 letters, digits, `_` `.` `:` or `-`, and begin with a letter or digit",
    EVENT_TYPE_PATTERN: "is not a valid event type: write one type (order.created), a prefix (order.*), or * for all. "
    "Parts between dots have letters, digits, `_` `:` `/` `-`",
    HEADER_PATTERN: "must be a header name: 1 to 128 letters, digits or `-`",
    USERNAME_PATTERN: "must not contain a colon, because HTTP ends the user name there",
    CLIENT_ID_PATTERN: "must be 1 to 256 printable ASCII characters",
    SCOPE_WORDS_PATTERN: 'must be words separated by single spaces, without `"` or `\\`',
    METADATA_NAME_PATTERN: "is not a valid name: use 1 to 64 letters, digits, `_` `.` `/` or `-`",
    METADATA_ENTRY_PATTERN: "must be a name of the metadata, a colon and its text, such as team:billing",
    FIELD_PATH_PATTERN: "must be the path of a payload field, such as account.number: names joined by dots, without spaces",
    CONSUMER_NAME_PATTERN: "is not a valid name: use 1 to 64 letters, digits, `_` `.` or `-`, and begin with a letter or digit",
    LETTER_ID_PATTERN: "is not the id of a dead letter: send the `id` that the list of dead letters shows, 1 to 19 digits",
    TOPIC_NAME_PATTERN: "is not the name of a topic: use 1 to 249 letters, digits, `_` `.` or `-`",
    VISIBLE_ASCII_PATTERN: "must be printable ASCII characters without spaces",
    NO_NULL_PATTERN: "must not contain the null character (U+0000): remove it",
}
"""Pattern → the message for a value that does not match."""
_TYPES: dict[str, str] = {
    "string_type": "text",
    "string_sub_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
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
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
}
_TIME = "must be a time with its offset from UTC, such as 2026-01-31T12:00:00Z"
_OTHERS = {
    "missing": "is missing: add it",
    "int_parsing_size": "has too many digits: use a smaller number",
    "string_unicode": "has a character that UTF-8 cannot encode: remove it",
    "datetime_type": _TIME,
    "datetime_parsing": _TIME,
    "datetime_from_date_parsing": _TIME,
    "timezone_aware": _TIME,
}
"""pydantic's error type → the message, which is the same for each value."""
_NO_FORM = "does not have the required form"


def found(exc: pydantic.ValidationError, model: type[pydantic.BaseModel] | None) -> Iterator[errors.RegistrationError]:
    """Yield each of pydantic's errors as an error of the platform, with the path of the field and a message."""
    for error in exc.errors(include_url=False):
        location = tuple(part for part in error["loc"] if part != "[key]")
        yield errors.RegistrationError(path_of(location), explained(error, model))


def explained(error: Any, model: type[pydantic.BaseModel] | None) -> str:
    """Return the message for one of pydantic's errors. `model` is the type that was validated; None: its fields are unknown."""
    kind, context = error["type"], error.get("ctx", {})
    if kind in _OTHERS:
        return _OTHERS[kind]
    if kind == "extra_forbidden":
        return _unknown(str(error["loc"][-1]), [] if model is None else _names_at(model, error["loc"][:-1]))
    if kind in _TYPES:
        return f"must be {_TYPES[kind]}, but is {_kind_of(error['input'], is_text_wanted=_TYPES[kind] == 'text')}"
    if kind in _BOUNDS:
        return _BOUNDS[kind].format(**{name: _number(bound) for name, bound in context.items()})
    if kind == "string_pattern_mismatch":
        return WORDS.get(context["pattern"], _NO_FORM)
    if kind in {"literal_error", "enum"}:
        words = re.findall("'([^']*)'", context["expected"])  # a Literal of enum members has <Granularity.HOUR: 'hour'>
        return f"must be one of {', '.join(words)}{_meant(error['input'], words)}"
    return str(error["msg"]).removeprefix("Value error, ") if kind == "value_error" else _NO_FORM


def path_of(location: tuple[int | str, ...]) -> str:
    """Return the path of a field, such as `retry.schedule_s[2]`."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path


def _unknown(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"is not a known field; did you mean {close[0]}?"
    return f"is not a known field; known fields: {', '.join(known)}" if known else "is not a known field"


def _meant(given: object, words: list[str]) -> str:
    if not isinstance(given, str):
        return f", but is {_kind_of(given, is_text_wanted=True)}"
    close = difflib.get_close_matches(given, words, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _kind_of(value: object, *, is_text_wanted: bool) -> str:
    """Return the kind of a value, never the value, and what to do if YAML read text as another kind."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true or false (YAML reads yes, no, on and off as these)" + (": put it in quotes" if is_text_wanted else "")
    if isinstance(value, int | float):
        return "a number" + (": put it in quotes" if is_text_wanted else "")
    names = ((str, "text"), (list, "a list"), (dict, "a mapping"))
    return next((name for kind, name in names if isinstance(value, kind)), "something else")


def _number(bound: object) -> object:
    return int(bound) if isinstance(bound, float) and bound.is_integer() else bound


def _names_at(model: type[pydantic.BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Return the known field names at a location of a document."""
    for part in location:
        if part not in model.model_fields:
            continue  # an index, or a key that the author chose
        inner = _model_in(model.model_fields[str(part)].annotation)
        if inner is None:
            return []
        model = inner
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[pydantic.BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return annotation
    return next((inner for part in typing.get_args(annotation) if (inner := _model_in(part)) is not None), None)
