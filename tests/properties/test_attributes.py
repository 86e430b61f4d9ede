"""Whatever CloudEvents attributes an event has, they reach the receiver as they are, by every path and in every mode."""

import urllib.parse

import orjson
from hypothesis import given
from hypothesis import strategies as st

from delivery import errors
from delivery.model import ContentMode, LeaveReason, NextAttempt, Outcome, OutcomeKind
from delivery.webhooks.batching import segment
from delivery.webhooks.events import attributes, parsing
from delivery.webhooks.results import dead_letter_records, topic_rows
from delivery.webhooks.results.results import Results
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
    lambda text: not any(ord(one) & 0xFFFE == 0xFFFE or 0xFDD0 <= ord(one) <= 0xFDEF for one in text)
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
    """Hold what receivers of each mode get against what the producer said."""
    standard = orjson.loads(payload.content(event, ContentMode.STANDARD).body)
    assert standard.pop("attributes", {}) == found
    assert standard == orjson.loads(payload.standard(event._replace(attributes=())))
    document = orjson.loads(payload.content(event, ContentMode.CLOUDEVENTS_STRUCTURED).body)
    assert {name: document[name] for name in document if name not in attributes.JSON_MEMBERS} == found
    assert {name: document[name] for name in CORE} == CORE
    headers = headers_of(payload.content(event, ContentMode.CLOUDEVENTS_BINARY).headers)
    assert headers == {f"ce-{name}": attributes.as_text(value) for name, value in (found | CORE).items()}


def headers_of(lines):
    """Read header lines as a receiver does; none stands twice, and none but ours and `ce-` is there."""
    content_type, *pairs = [line.split(": ", 1) for line in lines.decode("ascii").removesuffix("\r\n").split("\r\n")]
    assert content_type == ["content-type", "application/json"]
    read = {name: urllib.parse.unquote(value, errors="strict") for name, value in pairs}
    assert len(read) == len(pairs)
    return read


@given(as_texts)
def test_from_binary_mode_every_attribute_reaches_the_receiver_in_every_mode(found):
    seen_by_receivers(binary(found), found)


@given(typed)
def test_from_structured_mode_every_attribute_keeps_its_type(found):
    event = structured(found)
    assert [(name, type(value), value) for name, value in event.attributes] == [
        (name, type(value), value) for name, value in found.items()
    ]
    seen_by_receivers(event, found)


@given(typed)
def test_filters_see_attributes_under_their_names_and_they_hide_none_of_ours(found):
    event = structured(found)
    document = matching.filter_document(event)
    assert {name: document[name] for name in found} == found
    assert document.items() >= matching.filter_document(event._replace(attributes=())).items()


@given(typed, typed)
def test_through_a_segment_a_batch_and_the_reckoned_size(first, second):
    events = [structured(first), structured(second)]
    [lot] = segment.decoded(next(segment.encoded([batches.pending_batch(*events)]))[0])
    left = segment.decoded_batch(segment.encoded_batch(lot, LeaveReason.COUNT))
    packed = [segment.unpacked(one) for one in left.packed]
    assert [one.attributes for one in packed] == [one.attributes for one in events]
    for mode in (ContentMode.STANDARD, ContentMode.CLOUDEVENTS_STRUCTURED):
        body = batch_payload.content(packed, mode).body
        assert body == b"[%s]" % b",".join(payload.content(event, mode).body for event in events)
        assert len(body) <= sum(one.size for one in lot.items)


@given(typed)
def test_through_the_retry_lane_and_a_lease(found):
    event = structured(found)
    postponed = Outcome(builders.delivery(event=event), OutcomeKind.POSTPONED, (), "slow", NextAttempt(NOW_MS, 0))
    [row, *_] = topic_rows.deferral_rows(Results(outcomes=[postponed]), TOPICS, now_ms=NOW_MS)
    told = retry_messages.message(row.value)
    turn = retry_messages.Lease(told.endpoint_id, told.customer_id, None, 1, None, told.entries)
    [waits] = retry_messages.lease(retry_messages.encoded(turn)).entries
    read = segment.unpacked(waits.packed[0])
    seen_by_receivers(read.event(), found)
    assert segment.unpacked(segment.packed(read)) == read  # as a batch that is postponed packs it again


@given(typed)
def test_through_a_dead_letter_and_its_redrive(found):
    given_up = Outcome(builders.delivery(event=structured(found)), OutcomeKind.DEAD_LETTERED, (), "expired")
    [letter] = [row.value for row in topic_rows.rows(Results(outcomes=[given_up]), TOPICS) if row.topic == "dead"]
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
    """It never becomes a header of ours, another line, or another value of an attribute that is ours."""
    for read in (structured, lambda some: binary({name: str(value) for name, value in some.items()})):
        try:
            event = read({name: value for name, value in found.items() if name.lower() not in CORE})
        except errors.EventRejected as exc:
            assert exc.reason in {"bad_attribute", "not_json"}  # noqa: PT017  # either is allowed, and so is none
            continue
        seen_by_receivers(event, dict(event.attributes))
