"""Describe the records of the four topics that the job writes, field by field, from the types that write and read them.

The text is docs/record-formats.md. Runs in `python -m fanout.documents.generate` and the tests.
"""

from __future__ import annotations

import ast
import enum
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from delivery import model, payload_form
from delivery.webhooks.batching import segment
from delivery.webhooks.results import dead_letter_records, log_records, rejected_records
from delivery.webhooks.retries import retry_messages

HEAD = """\
# Record formats

<!-- Generated from delivery/webhooks/results/, delivery/webhooks/retries/retry_messages.py and
delivery/webhooks/batching/segment.py by `make docs`. -->

The job writes its results to four topics of its own. This page describes their records field by field. One module for each
kind of record both writes and reads it. This page is generated from the types in these modules.
[Storage formats](storage-formats.md) describes the state and the checkpoint.

| topic (setting) | key | value |
|---|---|---|
| `delivery.attempts_topic` | the endpoint's id | [LogRecord](#logrecord), JSON |
| `delivery.attempts_topic` | `topic:partition` | [OffsetReceipt](#offsetreceipt), JSON |
| `delivery.dead_letter_topic` | the endpoint's id | [DeadLetter](#deadletter), JSON |
| `delivery.rejected_topic` | the name of the record's topic | [RejectedRecord](#rejectedrecord), JSON |
| `delivery.retries_topic` | the endpoint's id | [Postponed](#postponed) or [Report](#report): a byte 1, then msgpack |

A record of the retries topic without a value is padding. It stands for 4 KiB of the record before it, because Spark limits a
micro-batch by its number of records. The header `redriven` of a Postponed record holds a LogRecord, with a RedrivenEntry for
each dead letter that the record enqueues.

How formats change:

* A reader ignores fields that it does not know. In the attempts topic it also ignores records and entries of unknown kinds.
* The column *written* says `always` where every version wrote the field. With a date, records since that date have the field,
  and readers use its default for older records. `where set`: the field is left out when it has no value.
* Fields are written in the order of their tables. In JSON, find a field by its name: a new field may stand anywhere in its
  table. It has a default, or is left out when it has no value.
* In JSON, a number has its shortest form. A value in base64 is standard base64 with padding.
* A record of the retries topic is an array, so the order of its elements is its format. A new element comes at the end and has
  a default. The first byte, the version of the format, changes only when that is not enough.

Times in `ms since 1970` are in UTC.
"""
GROUPS: tuple[tuple[str, str, tuple[type, ...]], ...] = (
    ("The attempts topic", "", (log_records.LogRecord, log_records.OffsetReceipt)),
    ("Entries of a LogRecord", "`kind` comes first in each.", log_records.ENTRY_TYPES),
    (
        "The dead-letter topic",
        "",
        (dead_letter_records.DeadLetter, dead_letter_records.LetterAttempt, dead_letter_records.Header),
    ),
    ("The topic of rejected records", "", (rejected_records.RejectedRecord,)),
    (
        "The retries topic",
        "Each is an array. Postponed and Report begin with their name as text, `postponed` or `report`.",
        (
            retry_messages.Postponed,
            retry_messages.Report,
            retry_messages.RetryEntry,
            retry_messages.Requeue,
            model.Attempt,
            model.NextAttempt,
            segment.Packed,
            payload_form.Opaque,
        ),
    ),
)
"""Title, note and record types of each section of the page."""
_SINCE = re.compile(r" Since (\d{4}-\d\d-\d\d)\.$")
_PLAIN = {str: "text", int: "integer", float: "number", bool: "boolean", bytes: "bytes", types.NoneType: "null"}
_UNITS = (
    (re.compile(r"((_|^)at|^since|^expires)_ms$"), "ms since 1970"),
    (re.compile(r"_ms$"), "ms"),
    (re.compile(r"_s$"), "s"),
    (re.compile(r"_bytes$"), "bytes"),
    (re.compile(r"_base64$"), "base64"),
)


class Field(NamedTuple):
    """A field of a record: a row of the record's table."""

    name: str
    type: str
    unit: str
    written: str
    """`always`, `where set`, or the date since which records have the field, such as `since 2026-11-21`."""
    meaning: str


def document() -> str:
    """Return the text of docs/record-formats.md."""
    parts = [HEAD]
    for title, note, records in GROUPS:
        parts.append(f"\n## {title}\n" + (f"\n{note}\n" if note else ""))
        parts += map(_section, records)
    return "".join(parts)


def fields(record: type) -> list[Field]:
    """Return the fields of a record, in the order in which they are written."""
    meanings = dict(_meanings(record))
    return [_field(name, type_, is_left_out, meanings.get(name, "")) for name, type_, is_left_out in _declared(record)]


def _section(record: type) -> str:
    tag = getattr(record, "__struct_config__", None) and record.__struct_config__.tag  # type: ignore[attr-defined]
    is_json = not issubclass(record, tuple) and not record.__struct_config__.array_like  # type: ignore[attr-defined]
    kind = f" `kind`: `{tag}`." if tag and is_json else ""
    rows = [
        f"| `{field.name}` | {field.type} | {field.unit} | {field.written} | {field.meaning} |\n" for field in fields(record)
    ]
    return (
        f"\n### {record.__name__}\n\n{_one_line(inspect.getdoc(record) or '')}{kind}\n\n"
        f"| {'field' if is_json else 'element'} | type | unit | written | meaning |\n|---|---|---|---|---|\n{''.join(rows)}"
    )


def _declared(record: type) -> Iterator[tuple[str, Any, bool]]:
    """Yield the name and the type of each field, and whether it may be left out."""
    if issubclass(record, msgspec.Struct):
        for field in msgspec.structs.fields(record):
            yield field.encode_name, field.type, field.default is msgspec.UNSET
    else:
        for name, type_ in typing.get_type_hints(record).items():
            yield name, type_, False


def _field(name: str, type_: Any, is_left_out: bool, text: str) -> Field:  # noqa: FBT001  # as `_declared` yields it
    since = _SINCE.search(text)
    written = "where set" if is_left_out else "always"
    if since:
        written = f"where set, since {since[1]}" if is_left_out else f"since {since[1]}"
    unit = next((unit for pattern, unit in _UNITS if pattern.search(name)), "")
    return Field(name, _type(type_), unit, written, _SINCE.sub("", text).replace("None:", "Null:").replace("|", "\\|"))


def _meanings(record: type) -> Iterator[tuple[str, str]]:
    """Yield the name and the docstring of each field that has one, including fields of base types in `delivery`."""
    for base in reversed(record.__mro__):
        if base.__module__.split(".")[0] != "delivery":
            continue
        [made] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(made, ast.ClassDef)  # noqa: S101
        for field, text in zip(made.body, made.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                yield ast.unparse(field.target), _one_line(str(text.value.value))


def _type(type_: Any) -> str:
    """Return the text for a type in the table of a record."""
    origin, arguments = typing.get_origin(type_), typing.get_args(type_)
    if origin in {typing.Union, types.UnionType}:
        known = [member for member in arguments if member is not msgspec.UnsetType]
        return "an entry" if set(known) == set(log_records.ENTRY_TYPES) else " or ".join(map(_type, known))
    if origin is dict:
        return f"object of {_type(arguments[1])}"
    if origin in {list, tuple}:
        return f"array of {_type(arguments[0])}"
    named = getattr(type_, "__supertype__", type_)  # a NewType
    if named in _PLAIN:
        return _PLAIN[named]
    return "text" if issubclass(named, enum.Enum) else f"[{named.__name__}](#{named.__name__.lower()})"


def _one_line(text: str) -> str:
    return " ".join(text.split())
