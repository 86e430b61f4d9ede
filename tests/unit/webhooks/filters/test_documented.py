"""docs/filters.md says what the matcher does: every row of its tables is run."""

import json
import re

import pytest

from delivery.webhooks.filters import event_pattern, operators
from tests.support import filter_tables
from tests.support.filter_tables import CODE, alternatives, code, events_with, rows, verdict


@pytest.mark.parametrize(("alternative", "accepted", "refused"), alternatives())
def test_values_match_an_alternative_as_documented(alternative, accepted, refused):
    for cell, is_match in ((accepted, True), (refused, False)):
        assert events_with(cell)
        assert [event for event in events_with(cell) if verdict(f'{{"x": [{code(alternative)}]}}', event) is not is_match] == []


@pytest.mark.parametrize(("pattern", "accepted", "refused"), rows(["filter", "matches", "does not match"]))
def test_events_match_a_filter_as_documented(pattern, accepted, refused):
    assert [event for event in CODE.findall(accepted) if verdict(code(pattern), event) is not True] == []
    assert [event for event in CODE.findall(refused) if verdict(code(pattern), event) is not False] == []


@pytest.mark.parametrize(("event", "pattern", "answer"), rows(["event", "filter", "matches"]))
def test_a_filter_sees_an_event_as_documented(event, pattern, answer):
    assert verdict(code(pattern), code(event)) is (answer == "yes")


@pytest.mark.parametrize(("pattern", "place", "problem"), rows(["filter", "place", "problem"]))
def test_a_filter_is_refused_as_documented(pattern, place, problem):
    path, said = filter_tables.refusal(code(pattern))
    assert (path, problem in said) == ("".join(CODE.findall(place)), True)


@pytest.mark.parametrize(("pattern", "event", "here", "there"), filter_tables.differences())
def test_a_difference_from_eventbridge_is_as_documented(pattern, event, here, there):
    """The test asks our matcher. tests/integration/test_event_ruler.py asks the matcher of AWS about the same rows."""
    assert verdict(code(pattern), code(event)) is filter_tables.said(here)
    assert filter_tables.said(there) is not filter_tables.said(here)


def test_every_operator_has_a_row():
    named = {
        name for row in alternatives() if isinstance(alternative := json.loads(code(row[0])), dict) for name in alternative
    }
    assert named == set(operators._OPERATORS)
    compared = {text for row in alternatives() for text in re.findall(r'"(<=|>=|=|<|>)"', row[0])}
    assert compared == set(operators._COMPARISONS)


def test_the_bounds_are_those_of_the_matcher():
    written = re.findall(r"^\| [^|]+ \| (16 KiB|16|300) \|$", filter_tables.PAGE, re.MULTILINE)
    bounds = [f"{event_pattern.MAX_PATTERN_BYTES // 1024} KiB", str(event_pattern.MAX_DEPTH), str(event_pattern.MAX_OPERANDS)]
    assert written == bounds
