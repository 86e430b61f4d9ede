"""Fields of an audit entry are what `jsonb` accepts, whatever plain SQL has written into the row."""

import math

import psycopg.types.json
import pytest

from subscriptions_db.postgres import audit_entries


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("a\0b", "a\ufffdb"),
        ({"a\0": {"b\ud800": 1}}, {"a\ufffd": {"b\ufffd": 1}}),  # of columns of type json, which keep such escapes
        ([math.inf, frozenset({"b", "a"})], ["inf", ["a", "b"]]),
    ],
)
def test_a_value_that_jsonb_would_refuse_is_replaced(value, written):
    assert audit_entries._plain(value) == written
    psycopg.types.json.Jsonb(audit_entries._plain(value))
