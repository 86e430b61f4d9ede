"""Read the tables of docs/filters.md, and ask our matcher about their rows."""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

from delivery import errors
from delivery.webhooks.filters import event_pattern
from delivery.webhooks.filters.index import FilterIndex
from tests.support.reading import ROOT

PAGE = (ROOT / "docs" / "filters.md").read_text()
CODE = re.compile(r"`([^`]+)`")
OF_THE_SERVICE = "(the service, not event-ruler)"
"""Marks a verdict that the service EventBridge gives, and its library event-ruler does not."""
_VERDICTS = {"matches": True, "does not match": False, "refuses the filter": None}


def rows(heading: list[str]) -> list[list[str]]:
    """Return the rows of all tables whose heading has exactly these columns. A row is the list of its cells, as written."""
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE):
        head, _, *body = [re.split(r"\s*\|\s*", line)[1:-1] for line in table.splitlines()]
        if head == heading:
            found += body
    assert found, heading
    return found


def code(cell: str) -> str:
    """Return the only JSON text in a cell."""
    [text] = CODE.findall(cell)
    return text


def events_with(cell: str) -> list[str]:
    """Return an event for each value in a cell, with this value in the field `x`. For the word `missing`, return `{}`."""
    events = [f'{{"x": {value}}}' for value in CODE.findall(cell)]
    return events + ["{}"] * CODE.sub("", cell).split().count("missing")


def alternatives() -> list[list[str]]:
    return rows(["alternative", "matches", "does not match"])


def differences() -> list[list[str]]:
    return rows(["filter", "event", "here", "EventBridge"])


def cases() -> list[tuple[str, str]]:
    """Return (filter, event) for each filter in the tables and each of its events. The table of differences is left out."""
    found = []
    for alternative, *cells in alternatives():
        found += [(f'{{"x": [{code(alternative)}]}}', event) for cell in cells for event in events_with(cell)]
    for pattern, *cells in rows(["filter", "matches", "does not match"]):
        found += [(code(pattern), event) for cell in cells for event in CODE.findall(cell)]
    for event, pattern, _ in rows(["event", "filter", "matches"]):
        found.append((code(pattern), code(event)))
    for pattern, *_ in rows(["filter", "place", "problem"]):
        found.append((code(pattern), "{}"))
    return found


def said(cell: str) -> bool | None:
    """Return the verdict that a cell of the table of differences begins with. None: the filter is refused."""
    [words] = [words for words in _VERDICTS if cell.startswith(words)]
    return _VERDICTS[words]


def verdict(pattern: str, event: str) -> bool | None:
    """Return the verdict of our matcher on a filter and an event as JSON. None: the filter is refused.

    The event is parsed as in the job. Also assert that the index keeps the filter as a candidate if the filter matches.
    """
    wanted, document = json.loads(pattern), orjson.loads(event)
    try:
        is_match = event_pattern.compile_pattern(wanted).matches(document)
    except errors.FilterError:
        return None
    assert not is_match or FilterIndex([(wanted, "s1")]).candidates(document) == {"s1"}
    return is_match


def refusal(pattern: str) -> tuple[Any, Any]:
    """Return the place and the problem for which our matcher refuses a filter."""
    try:
        event_pattern.compile_pattern(json.loads(pattern))
    except errors.FilterError as exc:
        return exc.path, exc.problem
    raise AssertionError(f"{pattern} is accepted")
