"""Translate pydantic's errors into messages for the author of a document. Pure.

Runs in `fanout` commands and in the API. `delivery.config.refused_values` has the messages that settings and documents share.
This module has the messages of the documents' patterns, and adds the path of the field. The message about an unknown field
suggests the known field with the nearest name, or lists all known fields.
"""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterator
from typing import Any

import pydantic

from delivery import errors
from delivery.config import refused_values

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


def found(exc: pydantic.ValidationError, model: type[pydantic.BaseModel] | None) -> Iterator[errors.RegistrationError]:
    """Yield each of pydantic's errors as an error of the platform, with the path of the field and a message.

    `model` is the type that was validated; None: its fields are unknown.
    """
    for error in exc.errors(include_url=False):
        location = tuple(part for part in error["loc"] if part != "[key]")
        yield errors.RegistrationError(path_of(location), explained(error, model))


def explained(error: Any, model: type[pydantic.BaseModel] | None) -> str:
    """Return the message for one of pydantic's errors. `model` is the type that was validated; None: its fields are unknown."""
    if error["type"] == "extra_forbidden":
        return _unknown(str(error["loc"][-1]), [] if model is None else _names_at(model, error["loc"][:-1]))
    return refused_values.explained(error, WORDS)


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
