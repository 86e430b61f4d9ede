"""What a filter costs: hardly more for many alternatives than for few, and never more than its limit."""

import time

import pytest

from delivery.webhooks.filters import event_pattern
from tests.support import cpu

LONG = 40_000


@pytest.mark.parametrize(
    ("alternatives", "element"),
    [
        (lambda count: [{"cidr": f"10.{n // 256}.{n % 256}.0/24"} for n in range(count)], "192.168.100.200"),
        (lambda count: [{"prefix": f"x{n}"} for n in range(count)], "a"),
        (lambda count: [{"suffix": f"x{n}"} for n in range(count)], "a"),
        (lambda count: [{"prefix": {"equals-ignore-case": f"x{n}"}} for n in range(count)], "a"),
        (lambda count: [{"suffix": {"equals-ignore-case": f"x{n}"}} for n in range(count)], "a"),
        (lambda count: [{"equals-ignore-case": f"x{n}"} for n in range(count)], "a"),
        (lambda count: [{"anything-but": {"prefix": [f"x{n}" for n in range(count - 1)] + ["a"]}}], "a"),
        (lambda count: [{"numeric": ["<", -n]} for n in range(count // 2)], 1),
    ],
    ids=["cidr", "prefix", "suffix", "prefix-folded", "suffix-folded", "folded", "anything-but", "numeric"],
)
def test_many_alternatives_hardly_take_a_long_array_longer_than_few(alternatives, element):
    """Regression: each element was tested with each alternative. One event of 256 KiB took up to 7 seconds of CPU."""
    few, many = (event_pattern.compile_pattern({"x": alternatives(count)}) for count in (6, 300))
    document = {"x": [element] * LONG}
    assert not many.matches(document)
    assert cpu.ratio(lambda: many.matches(document), lambda: few.matches(document)) < 10  # measured: 1 to 4


BRANCHES = [{"x": [n]} for n in range(1, 251)]
TESTS_OF_BRANCHES = 2 * 250  # a branch, and the values of its field


@pytest.mark.parametrize(
    ("pattern", "element", "tests"),
    [
        ({"$or": BRANCHES}, 0, 250),  # each branch goes through the array by itself
        ({"x": {"$or": BRANCHES}}, {}, 1 + TESTS_OF_BRANCHES),
        ({"x": {"y": {"$or": BRANCHES}}}, {"y": {"x": 0}}, 2 + TESTS_OF_BRANCHES),
        ({"x": {f"f{n}": [{"exists": False}] for n in range(250)} | {"y": [1]}}, {}, 252),
        ({"x": [{"wildcard": f"*x{n}*"} for n in range(100)]}, "a", 101),
        ({"x": [{"anything-but": {"wildcard": ["a", "b*"]}}, {"anything-but": {"prefix": ["a", "b"]}}]}, "a", 5),
        ({"x": ["b", "c", {"prefix": "b"}, {"prefix": "c"}, {"cidr": "10.0.0.0/8"}]}, "a", 3),
    ],
    ids=["branches", "below", "deeper", "fields", "wildcards", "anything-but", "operators"],
)
def test_a_filter_that_needs_too_many_tests_of_elements_does_not_match(pattern, element, tests):
    """Regression: the tests for one event had no limit. One event and one filter could stall a worker for seconds."""
    compiled = event_pattern.compile_pattern(pattern)
    most = event_pattern.MAX_ELEMENT_TESTS // tests

    assert not compiled.is_too_costly({"x": [element] * most})
    assert compiled.is_too_costly({"x": [element] * (most + 1)})
    assert not compiled.matches({"x": [element] * (most + 1)})


def test_arrays_in_arrays_count_among_the_tests_of_elements():
    compiled = event_pattern.compile_pattern({"x": {"y": [{"wildcard": f"*x{n}*"} for n in range(100)]}})
    few, many = [{"y": ["a"] * 5000}], [{"y": ["a"] * 5000}, {"y": ["a"] * 5000}]

    assert not compiled.is_too_costly({"x": few})
    assert compiled.is_too_costly({"x": many})
    assert compiled.is_too_costly({"x": [[], [[]] * 10_000]})


def test_a_wildcard_made_for_backtracking_takes_linear_time():
    # With 140 asterisks a matcher that tries again would need longer than the universe is old.
    hostile = event_pattern.compile_pattern({"x": [{"wildcard": "*a" * 140 + "*b*"}]})
    document = {"x": "a" * 100_000}

    began = time.process_time()
    assert not hostile.matches(document)
    assert time.process_time() - began < 1
