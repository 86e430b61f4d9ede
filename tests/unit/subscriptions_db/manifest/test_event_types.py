"""Schemas and examples of the catalogue are checked in bounded steps, and no check fetches anything."""

import json
import socket

import jsonschema
import pytest

from delivery import errors
from subscriptions_db.manifest import event_types
from subscriptions_db.manifest.event_types import MAX_BYTES, MAX_DEPTH, check, problems

ORDER = {
    "$schema": event_types.DIALECT,
    "$id": "https://schemas.example.com/order",
    "type": "object",
    "required": ["amount"],
    "properties": {"amount": {"$ref": "#/$defs/money"}, "lines": {"type": "array", "items": {"required": ["sku"]}}},
    "$defs": {"money": {"type": "number", "minimum": 0}},
}
TOO_LARGE = "contains a whole number below -(2^63 - 1) or above 2^63 - 1: write the number as text, or the bound of a"


def nested(levels):
    value = 1
    for _ in range(levels):
        value = {"not": value}
    return value


def doubling(levels):
    """Return a schema of few lines that examines a payload 2^levels times."""
    defs = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": defs | {f"d{levels}": {"type": "string"}}}


def test_a_valid_schema_with_matching_examples_is_accepted():
    check(ORDER, [{"amount": 5}, {"amount": 0.5, "lines": [{"sku": "a"}]}])
    check(None, ["anything", None])
    check({"pattern": r"^\p{L}+$"}, ["Größe"])
    check({}, [5])
    check({"properties": {"$ref": {"type": "string"}, "$id": True}}, [{"$ref": "x"}])


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "nonsense"}, "json_schema.type: must be one of array, boolean"),
        ({"properties": {"a": {"minimum": "x"}}}, "json_schema.properties.a.minimum: 'x' is not of type 'number'"),
        ({"pattern": "("}, "json_schema: '(' is not an RE2 regular expression"),
        ({"pattern": "a{1001}"}, "json_schema: 'a{1001}' is not an RE2 regular expression"),
        ({"title": "\ud800"}, "json_schema: contains a lone surrogate"),
        ({"items": {"pattern": "a(?=b)"}}, "json_schema: 'a(?=b)' is not an RE2 regular expression"),
        ({"patternProperties": {r"(a)\1": True}}, r"json_schema: '(a)\\1' is not an RE2 regular expression"),
        (
            {"patternProperties": {"^a": True}, "anyOf": [{"unevaluatedProperties": False}]},
            "json_schema: has both patternProperties and unevaluatedProperties",
        ),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#"},
            "json_schema.$schema: must be https://json-schema.org/draft/2020-12",
        ),
        ({"type": "text"}, "json_schema.type: must be one of array"),
        # Regression: the types were listed for a property with the name `type` too.
        ({"properties": {"type": 5}}, "json_schema.properties.type: 5 is not of type"),
        ({"$ref": "https://example.com/a.json"}, "json_schema.$ref: does not resolve"),
        ({"items": {"$ref": "file:///etc/passwd"}}, "json_schema.items.$ref: does not resolve"),
        ({"allOf": [{"$ref": event_types.DIALECT}]}, "json_schema.allOf[0].$ref: does not resolve"),
        ({"$ref": "#/$defs/missing"}, "json_schema.$ref: does not resolve"),
        ({"$ref": "#/title", "title": "x"}, "json_schema.$ref: does not resolve"),
        ({"$dynamicRef": "#elsewhere"}, "json_schema.$dynamicRef: does not resolve"),
        ({"$defs": {"a": {"$id": "https://example.com/"}}}, "json_schema.$defs.a.$id: is allowed at the top only"),
        ({"not": {"$schema": event_types.DIALECT}}, "json_schema.not.$schema: is allowed at the top only"),
        (
            {"title": "x" * MAX_BYTES},
            f"json_schema: has {MAX_BYTES + 13} bytes as JSON, and at most {MAX_BYTES} can be stored or checked: shorten it",
        ),
        (nested(MAX_DEPTH + 1), f"json_schema: is nested deeper than {MAX_DEPTH} levels"),
        ({"title": "\0"}, "json_schema: contains a NUL"),
        ({"maximum": 2**63}, f"json_schema: {TOO_LARGE}"),
        ({"minimum": -(2**63)}, f"json_schema: {TOO_LARGE}"),
        ({"maximum": 2**64}, f"json_schema: {TOO_LARGE}"),
        ({1: True}, "json_schema: has a name that is not text: put it in quotes"),
        ({"const": float("nan")}, "json_schema: is not JSON"),
    ],
)
def test_an_invalid_schema_is_refused_with_its_path(schema, said):
    with pytest.raises(errors.RegistrationError) as refused:
        check(schema, [])
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize(
    ("examples", "said"),
    [
        ([{"amount": 1}, {"amount": -1}], "examples[1].amount: -1 is less than the minimum of 0"),
        ([{"amount": 1, "lines": [{"sku": 1}, {}]}], "examples[0].lines[1]: 'sku' is a required property"),
        ([[]], "examples[0]: [] is not of type 'object'"),
        ([{"amount": "x" * MAX_BYTES}], f"examples: has {MAX_BYTES + 16} bytes as JSON, and at most {MAX_BYTES} can"),
        ([{"amount": 1}, {"amount": 2**63}], f"examples[1]: {TOO_LARGE}"),
        ([{"amount": 1}, {"amount": "\ud800"}], "examples[1]: contains a lone surrogate"),
        ([{"amount": 1}, nested(MAX_DEPTH)], f"examples[1]: is nested deeper than {MAX_DEPTH - 1} levels"),
        ([{"amount": "x" * 1000}], "examples[0].amount: 'xxx"),
    ],
)
def test_an_example_that_violates_the_schema_is_refused_with_path(examples, said):
    with pytest.raises(errors.RegistrationError) as refused:
        check(ORDER, examples)
    assert str(refused.value).startswith(said)
    assert len(str(refused.value)) < 300


def test_an_example_of_aliases_that_double_at_each_level_is_refused_at_once():
    """Regression: the command took twice the time and memory with each level, up to 31 levels."""
    part = ["x"]
    for _ in range(28):
        part = [part, part]
    with pytest.raises(errors.RegistrationError, match=r"has more than \d+ bytes as JSON, and at most \d+"):
        check(None, [part])


def test_violations_of_a_payload_are_listed_up_to_a_maximum():
    assert problems(ORDER, {"amount": 1}) == []
    assert [found.path for found in problems(ORDER, {"amount": "x", "lines": [{}, {}]})] == ["amount", "lines[0]", "lines[1]"]
    assert len(problems(ORDER, {"amount": 1, "lines": [{}] * 50})) == event_types.MAX_PROBLEMS


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        (doubling(20), 1),
        ({"$ref": "#"}, 1),
        ({"type": "object", "anyOf": [{"additionalProperties": {"$ref": "#"}}] * 2}, json.loads('{"a":' * 30 + "1" + "}" * 30)),
        ({"uniqueItems": True}, [{"n": n} for n in range(5000)]),
        ({"contains": {"enum": list(range(3000))}}, [-1] * 3000),
        ({"items": {"pattern": "((x?){300}){3}y"}}, ["x" * 6200] * 10),
        ({"patternProperties": {"((x?){300}){3}y": True}}, {f"{n}" + "x" * 6200: n for n in range(10)}),
        (
            {"additionalProperties": False, "patternProperties": {"((x?){300}){3}y": True}},
            {f"{n}" + "x" * 6200: n for n in range(10)},
        ),
    ],
)
def test_a_check_with_too_many_steps_is_refused(schema, payload):
    check(schema, [])
    with pytest.raises(errors.RegistrationError, match="takes too many steps"):
        problems(schema, payload)
    assert problems({"type": "integer"}, 1) == []


GOES_BACK = "^(a+)+$"
"""A regular expression for which Python's `re` takes a second with 25 letters, and twice as long for each further letter."""
NOT_ALL_A = "a" * 60 + "!"


@pytest.mark.parametrize(
    ("schema", "payload", "said"),
    [
        ({"pattern": GOES_BACK}, NOT_ALL_A, f"'{NOT_ALL_A}' does not match '{GOES_BACK}'"),
        ({"patternProperties": {GOES_BACK: False}}, {NOT_ALL_A: 1}, None),
        (
            {"patternProperties": {GOES_BACK: True}, "additionalProperties": False},
            {NOT_ALL_A: 1, "aa": 2},
            f"Additional properties are not allowed ('{NOT_ALL_A}' was unexpected)",
        ),
        ({"propertyNames": {"pattern": GOES_BACK}}, {NOT_ALL_A: 1}, f"'{NOT_ALL_A}' does not match '{GOES_BACK}'"),
    ],
)
def test_a_regular_expression_takes_linear_time(schema, payload, said):
    check(schema, [])
    assert [found.problem for found in problems(schema, payload)] == ([] if said is None else [said])


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        ({"pattern": "^[a-z]{2,4}$"}, "ab"),
        ({"pattern": "b"}, "abc"),
        ({"pattern": "^x"}, 5),
        ({"patternProperties": {"^s_": {"type": "string"}, "_n$": {"type": "integer"}}}, {"s_1": "x", "a_n": 1, "other": []}),
        ({"patternProperties": {"^s_": True}, "additionalProperties": {"type": "integer"}}, {"s_1": "x", "other": 1}),
        ({"properties": {"a": True}, "patternProperties": {"^s_": True}, "additionalProperties": False}, {"a": 1, "s_": 2}),
        ({"const": {"pattern": "(?=x)"}}, {"pattern": "(?=x)"}),
    ],
)
def test_regular_expressions_match_as_the_specification_says(schema, payload):
    check(schema, [payload])
    jsonschema.Draft202012Validator(schema).validate(payload)
    for wrong in ("abcde", {"s_1": 5, "other": "x"}, {"a": 1, "b": 2}, {"s__n": 1.5}, "x"):
        found = {error.json_path for error in jsonschema.Draft202012Validator(schema).iter_errors(wrong)}
        assert {f"$.{problem.path}".rstrip(".") for problem in problems(schema, wrong)} == found


def test_an_unchecked_schema_is_not_matched_without_re2():
    with pytest.raises(errors.RegistrationError, match="is not an RE2 regular expression"):
        problems({"pattern": "a(?=b)"}, "ab")


def test_a_reference_in_an_unchecked_schema_is_not_fetched(monkeypatch):
    def opened(*_, **__):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", opened)
    with pytest.raises(errors.RegistrationError, match="does not resolve"):
        problems({"$ref": "http://127.0.0.1:9/a.json"}, 1)
