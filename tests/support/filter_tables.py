"""Read the tables of docs/filters.md, and ask our matcher about their rows."""

from __future__ import annotations

import json
import re
from typing import Any

from delivery.webhooks.filters import event_pattern
from delivery.webhooks.filters.index import FilterIndex
from tests.support.reading import ROOT

PAGE = (ROOT / "docs" / "filters.md").read_text()
CODE = re.compile(r"`([^`]+)`")
MISSING = object()


def rows(heading: list[str]) -> list[list[str]]:
    """Return the cells of the rows of all tables with this heading: its first columns, as written."""
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE):
        head, _, *body = [re.split(r"\s*\|\s*", line)[1:-1] for line in table.splitlines()]
        if head == heading:
            found += body
    assert found, heading
    return found


def values(cell: str) -> list[Any]:
    """Return the JSON values in a cell; MISSING for the word `missing` outside of code."""
    found = [json.loads(text) for text in CODE.findall(cell)]
    return found + [MISSING] * CODE.sub("", cell).split().count("missing")


def alternatives() -> list[list[str]]:
    return rows(["alternative", "matches", "does not match"])


def differences() -> list[list[str]]:
    return rows(["filter", "event", "here", "EventBridge"])


def cases() -> list[tuple[Any, Any]]:
    """Return each filter of the tables beside each event with which they show it. The table of differences is left out."""
    found = []
    for alternative, *cells in alternatives():
        [wanted] = values(alternative)
        shown = [value for cell in cells for value in values(cell)]
        found += [({"x": [wanted]}, {} if value is MISSING else {"x": value}) for value in shown]
    for pattern, *cells in rows(["filter", "matches", "does not match"]):
        [wanted] = values(pattern)
        found += [(wanted, event) for cell in cells for event in values(cell)]
    for document, pattern, _ in rows(["event", "filter", "matches"]):
        ([event], [wanted]) = values(document), values(pattern)
        found.append((wanted, event))
    return found


def matches(pattern: Any, event: Any) -> bool:
    """Return the verdict of our matcher. The index may have no other: it keeps every filter that matches."""
    is_match = event_pattern.compile_pattern(pattern).matches(event)
    assert not is_match or FilterIndex([(pattern, "s1")]).candidates(event) == {"s1"}
    return is_match
