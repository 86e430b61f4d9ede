"""docs/filters.md says what the matcher does: every row of its tables is run."""

import json
import re

import pytest

from delivery import errors
from delivery.webhooks.filters import event_pattern, operators
from delivery.webhooks.filters.index import FilterIndex
from tests.support.reading import ROOT

PAGE = (ROOT / "docs" / "filters.md").read_text()
CODE = re.compile(r"`([^`]+)`")
MISSING = object()


def rows(heading):
    """Return the cells of the rows of all tables with this heading: its first columns, as written."""
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE):
        head, _, *body = [re.split(r"\s*\|\s*", line)[1:-1] for line in table.splitlines()]
        if head == heading:
            found += body
    assert found, heading
    return found


def matches(pattern, document):
    """Return the verdict of the matcher. The index may have no other: it keeps every filter that matches."""
    is_match = event_pattern.compile_pattern(pattern).matches(document)
    assert not is_match or FilterIndex([(pattern, "s1")]).candidates(document) == {"s1"}
    return is_match


def values(cell):
    """Return the JSON values in a cell; MISSING for the word `missing` outside of code."""
    found = [json.loads(text) for text in CODE.findall(cell)]
    return found + [MISSING] * CODE.sub("", cell).split().count("missing")


def alternatives():
    return rows(["alternative", "matches", "does not match"])


@pytest.mark.parametrize(("alternative", "accepted", "refused"), alternatives())
def test_values_match_an_alternative_as_documented(alternative, accepted, refused):
    [wanted] = values(alternative)
    for cell, is_match in ((accepted, True), (refused, False)):
        assert values(cell)
        for value in values(cell):
            document = {} if value is MISSING else {"x": value}
            assert matches({"x": [wanted]}, document) is is_match, value


@pytest.mark.parametrize(("pattern", "accepted", "refused"), rows(["filter", "matches", "does not match"]))
def test_events_match_a_filter_as_documented(pattern, accepted, refused):
    [wanted] = values(pattern)
    assert [document for document in values(accepted) if not matches(wanted, document)] == []
    assert [document for document in values(refused) if matches(wanted, document)] == []


@pytest.mark.parametrize(("document", "pattern", "verdict"), rows(["event", "filter", "matches"]))
def test_a_filter_sees_an_event_as_documented(document, pattern, verdict):
    ([event], [wanted]) = values(document), values(pattern)
    assert matches(wanted, event) is (verdict == "yes")


@pytest.mark.parametrize(("pattern", "place", "problem"), rows(["filter", "place", "problem"]))
def test_a_filter_is_refused_as_documented(pattern, place, problem):
    with pytest.raises(errors.FilterError) as refused:
        event_pattern.compile_pattern(values(pattern)[0])
    assert (refused.value.path, problem in refused.value.problem) == ("".join(CODE.findall(place)), True)


@pytest.mark.parametrize(("pattern", "document", "here", "there"), rows(["filter", "event", "here", "EventBridge"]))
def test_a_difference_from_eventbridge_is_as_documented(pattern, document, here, there):
    ([wanted], [event]) = values(pattern), values(document)
    assert there
    assert matches(wanted, event) is here.startswith("matches")


def test_every_operator_has_a_row():
    named = {
        name
        for row in alternatives()
        for alternative in values(row[0])
        if isinstance(alternative, dict)
        for name in alternative
    }
    assert named == set(operators._OPERATORS)
    compared = {text for row in alternatives() for text in re.findall(r'"(<=|>=|=|<|>)"', row[0])}
    assert compared == set(operators._COMPARISONS)


def test_the_bounds_are_those_of_the_matcher():
    written = re.findall(r"^\| [^|]+ \| (16 KiB|16|300) \|$", PAGE, re.MULTILINE)
    bounds = [f"{event_pattern.MAX_PATTERN_BYTES // 1024} KiB", str(event_pattern.MAX_DEPTH), str(event_pattern.MAX_OPERANDS)]
    assert written == bounds
