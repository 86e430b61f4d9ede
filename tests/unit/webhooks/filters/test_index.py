"""The filter index returns every filter that a document may match, and few others."""

import pytest

from delivery.webhooks.filters import event_pattern
from delivery.webhooks.filters.index import FilterIndex
from tests.benchmarks import filter_index as kinds
from tests.support import cpu


def candidates(document, *patterns):
    """Return the patterns that are candidates for `document`. Every pattern must compile."""
    for pattern in patterns:
        event_pattern.compile_pattern(pattern)
    return [
        patterns[number]
        for number in sorted(FilterIndex((pattern, n) for n, pattern in enumerate(patterns)).candidates(document))
    ]


def test_a_filter_without_its_value_in_the_document_is_no_candidate():
    paid, sent = {"status": ["paid"]}, {"status": ["sent", "lost"]}
    assert candidates({"status": "paid"}, paid, sent) == [paid]
    assert candidates({"status": "lost"}, paid, sent) == [sent]
    assert candidates({"status": {"paid": "paid"}}, paid, sent) == []
    assert candidates({}, paid, sent) == []


def test_a_number_equals_no_boolean_text_or_null():
    number, true, text, null = {"p": [1]}, {"p": [True]}, {"p": ["1"]}, {"p": [None]}
    assert candidates({"p": 1}, number, true, text, null) == [number]
    assert candidates({"p": 1.0}, number, true, text, null) == [number]
    assert candidates({"p": True}, number, true, text, null) == [true]
    assert candidates({"p": "1"}, number, true, text, null) == [text]
    assert candidates({"p": None}, number, true, text, null) == [null]


def test_a_value_is_found_in_nested_arrays():
    pattern = {"lines": {"sku": ["a"]}}
    assert candidates({"lines": [{"sku": "b"}, [[{"sku": ["c", ["a"]]}]]]}, pattern) == [pattern]
    assert candidates({"lines": [{"sku": "b"}, []]}, pattern) == []


def test_arrays_of_a_document_may_nest_deeper_than_the_stack():
    nested = "a"
    for _ in range(5000):
        nested = [nested]
    assert candidates({"p": nested}, {"p": ["a"]}, {"p": ["b"]}) == [{"p": ["a"]}]


def test_each_branch_of_an_or_leads_to_the_filter():
    pattern = {"$or": [{"p": ["a"]}, {"q": {"$or": [{"r": [1]}, {"s": [{"prefix": "b"}]}]}}]}
    for document in ({"p": "a"}, {"q": {"r": 1}}, {"q": {"s": "bc"}}):
        assert candidates(document, pattern) == [pattern]
    assert candidates({"p": "b", "q": {"r": 2, "s": "cb"}}, pattern) == []


def test_an_or_branch_without_a_key_leaves_the_fields_beside_the_or():
    open_ended = {"$or": [{"p": ["a"]}, {"q": [{"exists": False}]}]}
    assert candidates({"q": 1}, open_ended, {"r": [1], **open_ended}) == [open_ended]


@pytest.mark.parametrize("alternatives", [[{"exists": False}], ["a", {"exists": False}]])
def test_a_filter_that_takes_a_missing_field_is_always_a_candidate(alternatives):
    assert candidates({"p": "b"}, {"p": alternatives}) == [{"p": alternatives}]


@pytest.mark.parametrize(
    "alternative",
    [{"anything-but": ["a"]}, {"cidr": "10.0.0.0/8"}, {"exists": True}, {"wildcard": "*b*"}, {"prefix": ""}, {"suffix": ""}],
)
def test_a_filter_without_literals_is_a_candidate_for_any_value(alternative):
    assert candidates({"p": "a"}, {"p": [alternative]}) == [{"p": [alternative]}]
    assert candidates({"p": []}, {"p": [alternative]}) == []
    assert candidates({"q": "a"}, {"p": [alternative]}) == []


def test_a_filter_is_kept_under_the_field_with_the_fewest_filters():
    patterns = [{"status": ["paid"], "customer": [f"c{n}"], "amount": [{"numeric": [">", n]}]} for n in range(10)]
    assert candidates({"status": "paid", "customer": "c3", "amount": 100}, *patterns) == [patterns[3]]


@pytest.mark.parametrize(
    ("alternative", "element"),
    [
        (lambda n: {"anything-but": f"x{n}"}, lambda _: "a"),
        (lambda n: {"numeric": [">", -n]}, lambda n: n + 1),
        (lambda n: {"prefix": "x" * (1 + n % 200)}, lambda _: "ab"),
    ],
    ids=["any value", "ranges", "lengths"],
)
def test_an_element_hardly_costs_more_for_many_filters_of_one_field(alternative, element):
    """Regression: each element of an array added all filters of its key again, and was cut to each length of a prefix."""
    few, many = (FilterIndex(({"x": [alternative(n)]}, n) for n in range(count)) for count in (20, 2000))
    document = {"x": [element(n) for n in range(40_000)]}
    assert cpu.ratio(lambda: many.candidates(document), lambda: few.candidates(document)) < 5  # measured: 1 to 1.4


@pytest.mark.parametrize("kind", kinds.CANNOT_MATCH)
def test_filters_that_cannot_match_are_no_candidates(kind):
    patterns = [kinds.CANNOT_MATCH[kind](n) for n in range(1000)]
    assert candidates(kinds.CONTENT, *patterns) == []
