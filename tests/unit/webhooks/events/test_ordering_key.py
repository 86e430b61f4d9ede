"""The order key of an event is the value of a field of its payload."""

import orjson
import pytest

from delivery.webhooks.events import ordering_key


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ({"order": {"id": 7}}, "7"),
        ({"order": {"id": "7"}}, '"7"'),
        ({"order": {"id": ""}}, '""'),
        ({"order": {"id": None}}, "null"),
        ({"order": {"id": {"b": 1, "a": [2]}}}, '{"a":[2],"b":1}'),
        ({"order": {"id": "é"}}, '"é"'),
        ({"order": {}}, ordering_key.MISSING),
        ({"order": "id"}, ordering_key.MISSING),
        ({}, ordering_key.MISSING),
        ([{"order": {"id": 7}}], ordering_key.MISSING),
        (None, ordering_key.MISSING),
        ({"order": {"id": orjson.loads("[" * 900 + "]" * 900)}}, ordering_key.MISSING),  # read, and too deep to be written
    ],
)
def test_the_order_key_is_the_fields_value_as_json_or_empty(content, key):
    assert ordering_key.key_of(content, "order.id") == key


def test_long_values_have_short_order_keys_that_differ():
    first, second = (ordering_key.key_of({"id": "x" * 10_000 + end}, "id") for end in "ab")
    assert (first != second, len(first), len(second)) == (True, 32, 32)
