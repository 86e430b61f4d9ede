"""docs/filters.md says what the matcher does: every row of its tables is run."""

import re

import pytest

from delivery import errors
from delivery.webhooks.filters import event_pattern, operators
from tests.support import filter_tables
from tests.support.filter_tables import MISSING, alternatives, matches, rows, values


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
    assert (refused.value.path, problem in refused.value.problem) == ("".join(filter_tables.CODE.findall(place)), True)


@pytest.mark.parametrize(("pattern", "document", "here", "there"), filter_tables.differences())
def test_a_difference_from_eventbridge_is_as_documented(pattern, document, here, there):
    """The test asks our matcher. tests/integration/test_event_ruler.py asks the matcher of AWS about the same rows."""
    ([wanted], [event]) = values(pattern), values(document)
    assert matches(wanted, event) is here.startswith("matches")
    assert there.startswith("matches") is not here.startswith("matches")


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
    written = re.findall(r"^\| [^|]+ \| (16 KiB|16|300) \|$", filter_tables.PAGE, re.MULTILINE)
    bounds = [f"{event_pattern.MAX_PATTERN_BYTES // 1024} KiB", str(event_pattern.MAX_DEPTH), str(event_pattern.MAX_OPERANDS)]
    assert written == bounds
