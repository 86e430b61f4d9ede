"""The CloudEvents attributes of an event reach the receiver unchanged, by every path and in every mode."""

import urllib.parse

import orjson
from hypothesis import given
from hypothesis import strategies as st

from delivery import errors
from delivery.model import LeaveReason, NextAttempt, Outcome, OutcomeKind
from delivery.registry_model import ContentMode
from delivery.webhooks.batching import segment
from delivery.webhooks.events import attributes, parsing
from delivery.webhooks.results import dead_letter_records, topic_rows
from delivery.webhooks.results.task_results import Results
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.routing import matching
from delivery.webhooks.sending import batch_payload, payload
from fanout.redrive import redrive_plan
from tests.support import batches, builders

NOW_MS = 1_700_000_000_000
TOPICS = topic_rows.Topics(attempts="attempts", dead_letters="dead", rejected="rejected", retries="retries")
CORE = {"specversion": "1.0", "id": "e1", "type": "x", "source": "/s", "tenantid": "t1", "time": "2026-05-01T10:00:00Z"}
STRUCTURED = (("content-type", b"application/cloudevents+json"),)

names = st.from_regex("[a-z0-9]{1,12}", fullmatch=True) | st.sampled_from(
    ["subject", "dataschema", "traceparent", "partitionkey", "timestamp", "attributes", "length", "type0"]
)
texts = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=20).filter(
    lambda text: not any(ord(sign) & 0xFFFE == 0xFFFE or 0xFDD0 <= ord(sign) <= 0xFDEF for sign in text)
)
values = texts | st.booleans() | st.integers(-(2**31), 2**31 - 1)
typed = st.dictionaries(names.filter(attributes.is_name), values, max_size=8).map(
    lambda found: {name: str(value) if name in {"subject", "dataschema"} else value for name, value in found.items()}
)
as_texts = typed.map(lambda found: {name: attributes.as_text(value) for name, value in found.items()})


def binary(found):
    headers = tuple((f"ce_{name}", value.encode()) for name, value in (CORE | found).items())
    return parsing.parse(builders.record(value=b'{"amount": 5}', headers=headers), parsing.Layout())


def structured(found):
    value = orjson.dumps(found | CORE | {"data": {"amount": 5}})
    return parsing.parse(builders.record(value=value, headers=STRUCTURED), parsing.Layout())


def seen_by_receivers(event, found):
    """Check that receivers of each mode get the attributes that the producer wrote."""
    standard = orjson.loads(payload.content(event, ContentMode.STANDARD).body)
    assert standard.pop("attributes", {}) == found
    assert standard == orjson.loads(payload.standard(event._replace(attributes=())))
    document = orjson.loads(payload.content(event, ContentMode.CLOUDEVENTS_STRUCTURED).body)
    assert {name: document[name] for name in document if name not in attributes.JSON_MEMBERS} == found
    assert {name: document[name] for name in CORE} == CORE
    headers = headers_of(payload.content(event, ContentMode.CLOUDEVENTS_BINARY).headers)
    assert headers == {f"ce-{name}": attributes.as_text(value) for name, value in (found | CORE).items()}


def headers_of(lines):
    """Return the headers as a receiver reads them. Check that each is there once, and is ours or begins with `ce-`."""
    content_type, *pairs = [line.split(": ", 1) for line in lines.decode("ascii").removesuffix("\r\n").split("\r\n")]
    assert content_type == ["content-type", "application/json"]
    read = {name: urllib.parse.unquote(value, errors="strict") for name, value in pairs}
    assert len(read) == len(pairs)
    return read


@given(as_texts)
def test_attributes_of_a_binary_event_reach_every_receiver(found):
    seen_by_receivers(binary(found), found)


@given(typed)
def test_attributes_of_a_structured_event_keep_their_types(found):
    event = structured(found)
    assert [(name, type(value), value) for name, value in event.attributes] == [
        (name, type(value), value) for name, value in found.items()
    ]
    seen_by_receivers(event, found)


@given(typed)
def test_filters_see_attributes_by_name_beside_the_platforms(found):
    event = structured(found)
    document = matching.filter_document(event)
    assert {name: document[name] for name in found} == found
    assert document.items() >= matching.filter_document(event._replace(attributes=())).items()


@given(typed, typed)
def test_attributes_pass_through_a_segment_and_a_batch(first, second):
    events = [structured(first), structured(second)]
    [lot] = segment.decoded(next(segment.encoded([batches.pending_batch(*events)]))[0])
    left = segment.decoded_batch(segment.encoded_batch(lot, LeaveReason.COUNT))
    packed = [segment.unpacked(written) for written in left.packed]
    assert [event.attributes for event in packed] == [event.attributes for event in events]
    for mode in (ContentMode.STANDARD, ContentMode.CLOUDEVENTS_STRUCTURED):
        body = batch_payload.content(packed, mode).body
        assert body == b"[%s]" % b",".join(payload.content(event, mode).body for event in events)
        assert len(body) <= sum(item.size for item in lot.items)


@given(typed)
def test_attributes_pass_through_the_retry_lane_and_a_lease(found):
    event = structured(found)
    postponed = Outcome(builders.delivery(event=event), OutcomeKind.POSTPONED, (), "slow", NextAttempt(NOW_MS, 0))
    [row, *_] = topic_rows.deferral_rows(Results(outcomes=[postponed]), TOPICS, now_ms=NOW_MS)
    message = retry_messages.message(row.value)
    lease = retry_messages.Lease(message.endpoint_id, message.customer_id, None, 1, None, message.entries)
    [entry] = retry_messages.lease(retry_messages.encoded(lease)).entries
    read = segment.unpacked(entry.packed[0])
    seen_by_receivers(read.event(), found)
    assert segment.unpacked(segment.packed(read)) == read  # as a batch that is postponed packs it again


@given(typed)
def test_attributes_pass_through_a_dead_letter_and_a_redrive(found):
    given_up = Outcome(builders.delivery(event=structured(found)), OutcomeKind.DEAD_LETTERED, (), "expired")
    [letter] = [
        row.value for row in topic_rows.rows(Results(outcomes=[given_up]), TOPICS, now_ms=NOW_MS) if row.topic == "dead"
    ]
    assert orjson.loads(letter).get("attributes", {}) == found
    waits = redrive_plan.entry_of([dead_letter_records.decode(letter)], now_ms=NOW_MS)
    seen_by_receivers(segment.unpacked(waits.packed[0]).event(), found)


hostile = st.text(max_size=12) | st.sampled_from(
    ["id", "ID", "Id", "x\r\ny", "x: y", "x y", "id\r\nwebhook-id", "-id", "_id", "data", "data_base64", "é", "\u212a"]
)
numbers = st.integers(-(2**63), 2**64 - 1) | st.floats()
anything = st.none() | st.booleans() | numbers | st.text(max_size=12) | st.lists(numbers, max_size=2)


@given(st.dictionaries(hostile, anything, max_size=4))
def test_a_hostile_attribute_is_refused_or_harmless(found):
    """An attribute becomes no header of ours, no further line, and no other value of an attribute that is ours."""
    for read in (structured, lambda given: binary({name: str(value) for name, value in given.items()})):
        try:
            event = read({name: value for name, value in found.items() if name.lower() not in CORE})
        except errors.EventRejected as exc:
            assert exc.reason in {"bad_attribute", "not_json"}  # noqa: PT017  # either is allowed, and so is none
            continue
        seen_by_receivers(event, dict(event.attributes))
