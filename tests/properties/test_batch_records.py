"""The events of a batch record are the elements of its array, byte for byte and in order."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery import errors
from delivery.webhooks.events import batch_records, parsing
from tests.support import builders

TAKEN_APART = parsing.Layout(takes_batches_apart=True)
CONTENT_TYPE = ("content-type", b"application/cloudevents-batch+json")
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
spaces = st.text(" \t\r\n", max_size=3).map(str.encode)


@given(st.lists(st.tuples(spaces, json_values, spaces), min_size=1, max_size=20), st.none() | st.binary(max_size=9))
def test_each_element_becomes_one_record_in_order(elements, key):
    written = [orjson.dumps(value) for _, value, _ in elements]
    array = b",".join(before + text + after for (before, _, after), text in zip(elements, written, strict=True))
    record = builders.record(value=b"[%s]" % array, headers=(CONTENT_TYPE, ("trace", b"a")), partition=3, key=key)
    with pytest.raises(errors.BatchFound) as found:
        parsing.parse(record, TAKEN_APART)
    assert found.value.events == len(written)
    batch = batch_records.BatchRecord(record, found.value.events, found.value.written_bytes)
    made = list(batch_records.event_records(batch))
    headers = sum(len(name) + len(content) for name, content in made[0].headers[:-1])
    assert found.value.written_bytes == sum(len(event.value) + headers for event in made)
    assert [event.value for event in made] == written
    assert {(event.topic, event.partition, event.key) for event in made} == {(record.topic, 3, key)}
    assert {event.headers for event in made} == {(("trace", b"a"), ("content-type", batch_records.EVENT_CONTENT_TYPE))}
