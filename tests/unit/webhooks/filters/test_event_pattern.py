"""The filter language, case by case. tests/properties/test_filters.py has the rules for all patterns."""

import json

import orjson
import pytest

from delivery import errors
from delivery.webhooks.filters import event_pattern
from delivery.webhooks.filters.index import FilterIndex


def matches(pattern, document):
    return event_pattern.compile_pattern(pattern).matches(document)


def accepts(alternative, value):
    return matches({"x": [alternative]}, {"x": value})


@pytest.mark.parametrize(
    ("alternative", "accepted", "refused"),
    [
        ("paid", ["paid", ["open", "paid"], [[["paid"]]]], ["Paid", "paid ", None, [], {"paid": 1}, [{"x": "paid"}]]),
        ("", [""], [None, " "]),
        (None, [None], ["null", "", 0, False, []]),
        (True, [True], [1, 1.0, "true", False]),
        (False, [False], [0, None, ""]),
        (1, [1, 1.0], [True, "1", 2]),
        (300, [300, 300.0, 3.0e2], ["300", 300.5]),
        (3.0e2, [300, 300.0], ["3.0e2"]),
        (2**53 + 1, [2**53 + 1], [2**53, float(2**53)]),
        ("10.0.0.1", ["10.0.0.1"], ["010.0.0.1"]),
        ({"prefix": "order."}, ["order.", "order.paid"], ["Order.paid", "preorder.", 1, None]),
        ({"prefix": ""}, ["", "x"], [0, None, True]),
        ({"prefix": {"equals-ignore-case": "ORDER."}}, ["order.paid", "Order."], ["preorder.", 1]),
        ({"suffix": ".png"}, [".png", "a.png"], ["a.PNG", "png", 1]),
        ({"suffix": {"equals-ignore-case": ".Png"}}, ["a.png", "a.PNG"], ["a.png ", None]),
        ({"equals-ignore-case": "Straße"}, ["strasse", "STRASSE", "straße"], ["stras", None, 1]),
        ({"numeric": ["=", 5]}, [5, 5.0, [1, 5]], [4, "5", True, None]),
        ({"numeric": ["<", 5]}, [4.999, -1e300, [9, 4]], [5, "4", False, None]),
        ({"numeric": ["<=", 5]}, [5, 5.0], [5.001]),
        ({"numeric": [">", 5]}, [5.001, 10**18], [5, True]),
        ({"numeric": [">=", 5]}, [5], [4.999]),
        ({"numeric": [">", 0, "<=", 5]}, [0.001, 5], [0, 5.001, [0, 6]]),
        ({"exists": True}, ["", None, 0, False, [None]], [[], [[]], {}, {"y": 1}, [{"y": 1}]]),
        ({"exists": False}, [[], [[]], {}, {"y": 1}, [{"y": 1}]], ["", None, 0, False, [None]]),
        ({"cidr": "10.0.0.0/8"}, ["10.0.0.0", "10.255.255.255"], ["11.0.0.0", "9.255.255.255", "::ffff:10.0.0.1", 10]),
        ({"cidr": "10.0.0.77/24"}, ["10.0.0.0", "10.0.0.255"], ["10.0.1.0"]),
        ({"cidr": "10.0.0.1/32"}, ["10.0.0.1"], ["10.0.0.2", "10.0.0.1/32", "10.0.0.01", "ten", "", "10.0.0.1\0"]),
        ({"cidr": "0.0.0.0/0"}, ["255.255.255.255"], ["::1", "1"]),
        ({"cidr": "2001:db8::/32"}, ["2001:db8::1", "2001:0DB8:0:0::ffff"], ["2001:db9::", "10.0.0.1", "2001:db8::1%eth0"]),
        ({"wildcard": "*"}, ["", "x"], [1, None]),
        ({"wildcard": "paid"}, ["paid"], ["paid*", "unpaid"]),
        ({"wildcard": "dir/*.png"}, ["dir/a.png", "dir/.png", "dir/b/c.png"], ["dir/a.PNG", "a/dir/a.png", "dir/a.png/"]),
        ({"wildcard": "ab*ba"}, ["abba", "ab-ba"], ["aba"]),  # the ends may not share a letter
        ({"wildcard": "a*b*c"}, ["abc", "a-b-b-c"], ["ac", "acb", "abcd"]),
        ({"wildcard": "*ab*ab*"}, ["abab", "-ab-ab-"], ["aab", "abb"]),
        ({"wildcard": r"2\*2*"}, ["2*2", "2*2=4"], ["2x2", r"2\*2"]),
        ({"wildcard": r"c:\\*"}, ["c:\\", "c:\\temp"], ["c:", "c:temp"]),
        ({"anything-but": "open"}, ["paid", None, True, 1, ["open", "paid"]], ["open", ["open"], [], {}, {"y": "paid"}]),
        ({"anything-but": ["open", "sent"]}, ["paid", 1], ["open", "sent", ["open", "sent"]]),
        ({"anything-but": 100}, [101, "100", True, None], [100, 100.0]),
        ({"anything-but": [1, 2.5]}, [2, True], [1, 1.0, 2.5]),
        ({"anything-but": {"prefix": "or"}}, ["paid", "", 1, None], ["order", "or"]),
        ({"anything-but": {"prefix": ["or", "in"]}}, ["paid"], ["order", "invoice"]),
        ({"anything-but": {"suffix": [".png", ".jpg"]}}, ["a.txt", 1], ["a.png", "a.jpg"]),
        ({"anything-but": {"equals-ignore-case": ["Open", "SENT"]}}, ["paid", 1], ["OPEN", "sent"]),
        ({"anything-but": {"wildcard": "*/lib/*"}}, ["/bin/sh", 1], ["/usr/lib/x"]),
        ({"anything-but": {"wildcard": ["*.jar", "*.class"]}}, ["a.py"], ["a.jar", "a.class"]),
    ],
    ids=str,
)
def test_an_alternative_accepts_its_values_and_no_others(alternative, accepted, refused):
    assert [value for value in accepted if not accepts(alternative, value)] == []
    assert [value for value in refused if accepts(alternative, value)] == []


BEYOND = "18446744073709551617"  # 2^64 + 1: the parser of events returns the double 2^64


@pytest.mark.parametrize(
    "alternative",
    [
        BEYOND,
        f'{{"numeric": ["=", {BEYOND}]}}',
        f'{{"numeric": [">=", {BEYOND}]}}',
        f'{{"numeric": [">", 0, "<=", {BEYOND}]}}',
        f'{{"numeric": ["<", 1{"0" * 400}]}}',
        f'{{"numeric": [">", -1{"0" * 400}]}}',
    ],
)
def test_an_integer_of_more_than_64_bits_equals_itself(alternative):
    """Regression: a filter kept such an integer, and an event has the nearest double. The two never were equal."""
    pattern, event = json.loads(f'{{"x": [{alternative}]}}'), orjson.loads(f'{{"x": {BEYOND}}}')

    assert matches(pattern, event)
    assert FilterIndex([(pattern, "s1")]).candidates(event) == {"s1"}


def test_an_integer_of_more_than_64_bits_is_excluded():
    event = orjson.loads(f'{{"x": {BEYOND}}}')
    assert not matches({"x": [{"anything-but": int(BEYOND)}]}, event)
    assert not matches({"x": [{"anything-but": [1, int(BEYOND)]}]}, event)


def test_only_absence_matches_a_missing_field():
    for alternative in ("a", None, {"anything-but": "a"}, {"anything-but": {"prefix": "a"}}, {"exists": True}, {"prefix": ""}):
        assert not matches({"x": [alternative]}, {})
    assert matches({"x": [{"exists": False}]}, {})
    assert matches({"x": ["a", {"exists": False}]}, {})
    assert matches({"x": ["a", {"exists": False}]}, {"x": "a"})
    assert not matches({"x": ["a", {"exists": False}]}, {"x": "b"})


@pytest.mark.parametrize("document", [{}, {"x": None}, {"x": 1}, {"x": []}, {"x": [1]}, {"x": {}}, {"x": {"y": {}}}])
def test_fields_below_a_value_that_is_no_object_are_missing(document):
    assert matches({"x": {"y": {"z": [{"exists": False}]}}}, document)
    assert not matches({"x": {"y": {"z": [{"exists": True}]}}}, document)


def test_all_fields_must_match_and_one_alternative_of_each():
    pattern = {
        "type": ["order.paid", {"prefix": "invoice."}],
        "data": {"amount": [{"numeric": [">", 10]}], "test": [False, None]},
    }

    assert matches(pattern, {"type": "invoice.sent", "data": {"amount": 11, "test": None, "more": 1}})
    assert not matches(pattern, {"type": "invoice.sent", "data": {"amount": 10, "test": None}})
    assert not matches(pattern, {"type": "order.sent", "data": {"amount": 11, "test": None}})


def test_a_dot_in_a_field_name_is_part_of_the_name():
    assert matches({"a.b": [1]}, {"a.b": 1})
    assert not matches({"a.b": [1]}, {"a": {"b": 1}})


PEOPLE = {"staff": [[{"first": "Ann", "last": "Ray"}, {"first": "Bo", "last": "Lee"}], {"first": "Cy", "tel": [1, 2]}, "none"]}


@pytest.mark.parametrize(
    ("person", "expected"),
    [
        ({"first": ["Bo"]}, True),
        ({"first": ["Ann"], "last": ["Ray"]}, True),
        ({"first": ["Ann"], "last": ["Lee"]}, False),  # each is there, but not in one object
        ({"first": ["Cy"], "last": [{"exists": False}]}, True),
        ({"first": ["Ann"], "last": [{"exists": False}]}, False),
        ({"last": [{"exists": False}]}, False),  # two of three have one
        ({"age": [{"exists": False}]}, True),
        ({"age": [{"exists": False}], "tel": [{"exists": False}]}, False),
        ({"first": [{"anything-but": "Ann"}]}, True),
        ({"tel": [2]}, True),
        ({"tel": [{"numeric": [">", 1, "<", 2]}]}, False),
        ({"$or": [{"first": ["Ann"]}, {"tel": [2]}], "last": ["Lee"]}, False),
        ({"$or": [{"first": ["Ann"]}, {"tel": [2]}], "last": ["Ray"]}, True),
    ],
)
def test_fields_named_together_are_found_in_one_object_of_an_array(person, expected):
    assert matches({"staff": person}, PEOPLE) is expected


def test_in_an_array_one_match_by_value_outweighs_absence():
    pattern = {"items": {"discount": ["10%", {"exists": False}]}}

    assert matches(pattern, {"items": [{"discount": "10%"}, {"discount": "5%"}]})
    assert matches(pattern, {"items": [{}, {}]})
    assert not matches(pattern, {"items": [{}, {"discount": "5%"}]})


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"source": "shop", "metric": "cpu"}, True),
        ({"source": "shop", "kind": "a", "name": "x", "id": 1}, True),
        ({"source": "shop", "kind": "a", "name": "x", "space": 2}, True),
        ({"source": "shop", "kind": "a", "name": "x", "space": 3}, False),
        ({"source": "shop", "name": "x", "id": 1}, False),
        ({"source": "bank", "metric": "cpu"}, False),
        ({"metric": "cpu"}, False),
    ],
)
def test_or_needs_one_branch_and_all_other_fields(document, expected):
    # As a formula: the source, and the metric or else kind and name with one of id and space.
    pattern = {
        "source": ["shop"],
        "$or": [{"metric": ["cpu"]}, {"kind": ["a"], "name": ["x"], "$or": [{"id": [1]}, {"space": [2]}]}],
    }
    assert matches(pattern, document) is expected


def test_or_works_below_a_field_and_with_missing_fields():
    pattern = {"data": {"$or": [{"a": [1]}, {"b": [{"exists": False}]}]}}

    assert matches(pattern, {"data": {"a": 1, "b": 1}})
    assert matches(pattern, {"data": {"a": 2}})
    assert matches(pattern, {})
    assert not matches(pattern, {"data": {"a": 2, "b": 1}})


def test_a_field_beside_and_inside_or_must_match_both():
    pattern = {"x": [{"prefix": "a"}], "$or": [{"x": [{"suffix": "b"}]}, {"x": [{"suffix": "c"}]}]}

    assert matches(pattern, {"x": "ab"})
    assert not matches(pattern, {"x": "xb"})
    assert not matches(pattern, {"x": "ad"})


@pytest.mark.parametrize(
    ("pattern", "path", "problem"),
    [
        ([], "", "must be an object"),
        ({}, "", "at least one field"),
        ({"x": float("nan")}, "", "cannot be written as JSON"),
        ({"x": ["\ud800"]}, "", "cannot be written as JSON"),
        ({"x": [{1, 2}]}, "", "cannot be written as JSON"),
        ({"data": {}}, "data", "at least one field"),
        ({"data": {"amount": 5}}, "data.amount", "list"),
        ({"data": {"amount": []}}, "data.amount", "at least one"),
        ({"data": {"amount": [5, [6]]}}, "data.amount[1]", "no lists"),
        ({"x": [{}]}, "x[0]", "has 0 operators: write one"),
        ({"x": ["a", {"prefix": "a", "suffix": "b"}]}, "x[1]", "has 2 operators: write one"),
        ({"x": [{"prefx": "a"}]}, "x[0].prefx", "did you mean prefix?"),
        ({"x": [{"anything_but": "a"}]}, "x[0].anything_but", "did you mean anything-but?"),
        ({"x": [{"regex": "a"}]}, "x[0].regex", "known are prefix, suffix,"),
        ({"x": [{"prefix": 1}]}, "x[0].prefix", "string"),
        ({"x": [{"suffix": ["a"]}]}, "x[0].suffix", "string"),
        ({"x": [{"prefix": {"wildcard": "a"}}]}, "x[0].prefix", "equals-ignore-case"),
        ({"x": [{"suffix": {"equals-ignore-case": 1}}]}, "x[0].suffix.equals-ignore-case", "string"),
        ({"x": [{"equals-ignore-case": None}]}, "x[0].equals-ignore-case", "string"),
        ({"x": [{"wildcard": "a**b"}]}, "x[0].wildcard", "side by side"),
        ({"x": [{"wildcard": r"a\b"}]}, "x[0].wildcard", "backslash"),
        ({"x": [{"wildcard": "a\\"}]}, "x[0].wildcard", "backslash"),
        ({"x": [{"exists": "true"}]}, "x[0].exists", "true or false"),
        ({"data": {"amount": [{"numeric": 5}]}}, "data.amount[0].numeric", '["<", 10]'),
        ({"x": [{"numeric": []}]}, "x[0].numeric", '["<", 10]'),
        ({"x": [{"numeric": [">", 1, "<", 2, "=", 3]}]}, "x[0].numeric", '["<", 10]'),
        ({"x": [{"numeric": ["!=", 5]}]}, "x[0].numeric", "known are = < <= > >="),
        ({"x": [{"numeric": [["<"], 5]}]}, "x[0].numeric", "known are"),
        ({"x": [{"numeric": ["<", "5"]}]}, "x[0].numeric", "number"),
        ({"x": [{"numeric": ["<", True]}]}, "x[0].numeric", "number"),
        ({"x": [{"numeric": ["<", 5, ">", 0]}]}, "x[0].numeric", "lower bound"),
        ({"x": [{"numeric": ["=", 0, "<", 5]}]}, "x[0].numeric", "lower bound"),
        ({"x": [{"numeric": [">", 5, "<", 5]}]}, "x[0].numeric", "above"),
        ({"x": [{"cidr": "10.0.0.0"}]}, "x[0].cidr", "10.0.0.0/8"),
        ({"x": [{"cidr": "10.0.0.0/33"}]}, "x[0].cidr", "10.0.0.0/8"),
        ({"x": [{"cidr": "10.0.0.0/255.0.0.0"}]}, "x[0].cidr", "10.0.0.0/8"),
        ({"x": [{"cidr": "localhost/8"}]}, "x[0].cidr", "10.0.0.0/8"),
        ({"x": [{"cidr": 10}]}, "x[0].cidr", "string"),
        ({"x": [{"anything-but": None}]}, "x[0].anything-but", "list of strings"),
        ({"x": [{"anything-but": True}]}, "x[0].anything-but", "list of strings"),
        ({"x": [{"anything-but": []}]}, "x[0].anything-but", "list of strings"),
        ({"x": [{"anything-but": ["a", 1]}]}, "x[0].anything-but", "list of strings"),
        ({"x": [{"anything-but": [["a"]]}]}, "x[0].anything-but", "list of strings"),
        ({"x": [{"anything-but": {"numeric": ["<", 1]}}]}, "x[0].anything-but", "prefix, suffix,"),
        ({"x": [{"anything-but": {}}]}, "x[0].anything-but", "exactly one"),
        ({"x": [{"anything-but": {"prefix": []}}]}, "x[0].anything-but.prefix", "list of strings"),
        ({"x": [{"anything-but": {"prefix": ["a", 1]}}]}, "x[0].anything-but.prefix[1]", "string"),
        ({"x": [{"anything-but": {"wildcard": ["**"]}}]}, "x[0].anything-but.wildcard[0]", "side by side"),
        ({"data": {1: [1]}}, "data", "a field name that is no text"),  # regression: `fanout apply` wrote it each time
        ({"$or": {"x": [1]}}, "$or", "two or more"),
        ({"data": {"$or": [{"x": [1]}]}}, "data.$or", "two or more"),
        ({"data": {"$or": [{"x": [1]}, {"y": [{"like": 1}]}]}}, "data.$or[1].y[0].like", "unknown operator"),
        ({"data": {"$or": [{"x": [1]}, {}]}}, "data.$or[1]", "at least one field"),
        ({"data": {"$or": [{"x": [1]}, "y"]}}, "data.$or[1]", "must be an object"),
    ],
)
def test_a_refusal_names_the_place_and_the_correction(pattern, path, problem):
    with pytest.raises(errors.FilterError) as refusal:
        event_pattern.compile_pattern(pattern)
    assert refusal.value.path == path
    assert problem in refusal.value.problem


def nested(levels):
    pattern = ["a"]
    for _ in range(levels):
        pattern = {"x": pattern}
    return pattern


def test_objects_nest_up_to_the_limit():
    event_pattern.compile_pattern(nested(event_pattern.MAX_DEPTH))
    with pytest.raises(errors.FilterError, match="nested deeper"):
        event_pattern.compile_pattern(nested(event_pattern.MAX_DEPTH + 1))
    with pytest.raises(errors.FilterError, match="nested deeper"):
        event_pattern.compile_pattern(nested(100_000))


def test_or_counts_as_a_level():
    either = {"y": [1]}
    for _ in range(event_pattern.MAX_DEPTH):
        either = {"$or": [either, {"z": [1]}]}
    with pytest.raises(errors.FilterError, match="nested deeper"):
        event_pattern.compile_pattern(either)


@pytest.mark.parametrize(
    "alternatives",
    [
        [*range(event_pattern.MAX_OPERANDS)],
        [{"anything-but": [*range(event_pattern.MAX_OPERANDS)]}],
        [{"wildcard": "*" + "a*" * (event_pattern.MAX_OPERANDS - 2)}],  # 1 + 298 asterisks and the text itself
    ],
    ids=["literals", "anything-but", "asterisks"],
)
def test_operands_are_counted_in_all_alternatives(alternatives):
    event_pattern.compile_pattern({"x": alternatives})
    with pytest.raises(errors.FilterError, match=f"has {event_pattern.MAX_OPERANDS + 1} values"):
        event_pattern.compile_pattern({"x": alternatives, "y": ["one more"]})


def test_the_size_of_a_pattern_is_counted_in_utf_8():
    overhead = len('{"x": [""]}')
    letters = (event_pattern.MAX_PATTERN_BYTES - overhead) // len("é".encode())

    event_pattern.compile_pattern({"x": ["é" * letters]})
    with pytest.raises(errors.FilterError, match="bytes"):
        event_pattern.compile_pattern({"x": ["é" * (letters + 1)]})


@pytest.mark.parametrize("number", [1e16, 1e23, -1e300])
def test_the_size_of_a_pattern_counts_the_digits_that_postgres_returns(number):
    """Regression: 1e300 counted as 6 bytes when it was registered, and as 301 at the next read."""
    returned = int(f"{number:.0e}".split("e")[0]) * 10 ** int(f"{number:e}".split("e")[1])
    overhead = len(json.dumps({"x": ["", returned]}))

    event_pattern.compile_pattern({"x": ["a" * (event_pattern.MAX_PATTERN_BYTES - overhead), number]})
    with pytest.raises(errors.FilterError, match=f"has {event_pattern.MAX_PATTERN_BYTES + 1} bytes"):
        event_pattern.compile_pattern({"x": ["a" * (event_pattern.MAX_PATTERN_BYTES - overhead + 1), number]})


def test_a_document_may_nest_deeper_than_the_stack():
    deep = "a"
    for _ in range(100_000):
        deep = [deep]

    assert matches({"x": ["a"]}, {"x": deep})
    assert not matches({"x": {"y": ["a"]}}, {"x": deep})
