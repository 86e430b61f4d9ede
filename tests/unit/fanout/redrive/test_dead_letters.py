"""Which dead letters are meant, and what a redrive hands over. The letters are written by the job's own code."""

import itertools

import orjson
import pytest

from delivery import errors
from delivery.model import CustomerId, DeliveryMode, LeaveReason, Outcome, OutcomeKind
from delivery.webhooks.batching import segment
from delivery.webhooks.results import dead_letter_records, log_records, topic_rows
from delivery.webhooks.results.results import Results
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.sending import batch_payload, payload
from fanout.kafka.places import Place
from fanout.redrive import redrive_plan
from fanout.redrive.selection import Selection
from fanout.terminal import times
from tests.support import builders
from tests.unit.fanout.reconcile.test_ledger import TOPICS, attempt, batch

PLACE = Place("dead_letters", 0)
NOW_MS = 1_800_000_000_000
FAILED = (attempt(1, "server_error"), attempt(2, "timeout"))


def written(results):
    return [orjson.loads(row.value) for row in topic_rows.rows(results, TOPICS) if row.topic == "dead_letters"]


def letter(offset=0, *, at_ms=NOW_MS - 1000, **fields):
    event = builders.event(record=builders.record(offset=offset, headers=(("trace", b"\xff1"),)), **fields)
    delivery = builders.delivery(event=event)
    [one] = written(Results(outcomes=[Outcome(delivery, OutcomeKind.DEAD_LETTERED, FAILED, "timeout")]))
    return read(one | {"dead_lettered_at_ms": at_ms})


def letters_of_batch(*offsets):
    events = [packed(offset) for offset in offsets]
    failed = batch(*events, through=["s1", "s2"] * 2, kind=OutcomeKind.DEAD_LETTERED, attempts=FAILED, reason="timeout")
    failed = failed._replace(
        outcome=failed.outcome._replace(delivery=failed.outcome.delivery._replace(webhook_id=id_of(failed.outcome.delivery)))
    )
    return failed.outcome.delivery, [read(one) for one in written(Results(batches=[failed]))]


def id_of(delivery):
    return batch_payload.webhook_id(delivery.endpoint.endpoint_id, delivery.events, delivery.subscription_ids)


def packed(offset):
    return segment.unpacked(segment.item(builders.event(record=builders.record(offset=offset)), 0).packed)


def read(document):
    return dead_letter_records.decode(orjson.dumps(document))


def plan(*taken, selection=None, noted=()):
    redriven = redrive_plan.Redriven()
    for row in noted:
        redriven.add(log_records.decode(row))
    made = redrive_plan.Plan(selection or Selection(), redriven)
    for offset, one in enumerate(taken):
        made.add(one, PLACE, offset)
    return made


def chosen(made, limit=None):
    return [offset for _, offset in made.chosen(limit)]


def records(*requests):
    return list(redrive_plan.records(requests, now_ms=NOW_MS))


def test_a_letter_is_read_back_as_the_event_and_the_story_that_it_was_written_of():
    one = letter(7, data=b'{ "a": 1 }', sub_tenant_id="100")
    event = one.event()
    assert (event.data, event.record.headers, event.record.offset) == (b'{ "a": 1 }', (("trace", b"\xff1"),), 7)
    assert (event.sub_tenant_id, event.source, event.event_type) == ("100", "events.order.created", "order.created")
    assert one.history() == FAILED


@pytest.mark.parametrize(
    ("asked", "is_meant"),
    [
        ({}, True),
        ({"endpoint_id": "ep1"}, True),
        ({"endpoint_id": "ep2"}, False),
        ({"event_type": "order.created"}, True),
        ({"event_type": "order.*"}, True),
        ({"event_type": "*"}, True),
        ({"event_type": "order"}, False),
        ({"event_type": "user.*"}, False),
        ({"tenant_id": "t1"}, True),
        ({"tenant_id": "t2"}, False),
        ({"reason": "timeout"}, True),
        ({"reason": "gone"}, False),
        ({"since_ms": NOW_MS - 1000}, True),
        ({"since_ms": NOW_MS - 999}, False),
        ({"until_ms": NOW_MS - 999}, True),
        ({"until_ms": NOW_MS - 1000}, False),
        ({"endpoint_id": "ep1", "reason": "gone"}, False),
    ],
)
def test_a_letter_is_meant_when_everything_that_is_asked_for_is_so(asked, is_meant):
    assert Selection(**asked).matches(letter()) is is_meant


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("90m", NOW_MS - 90 * 60_000),
        ("7d", NOW_MS - 7 * 86_400_000),
        ("2027-01-15T08:00:00Z", 1_800_000_000_000),
        ("2027-01-15T08:00", 1_800_000_000_000),
        ("2027-01-15T10:00+02:00", 1_800_000_000_000),
    ],
)
def test_a_time_is_so_long_ago_or_a_moment(typed, expected):
    assert times.moment_ms("--since", typed, now_ms=NOW_MS) == expected


@pytest.mark.parametrize("typed", ["", "yesterday", "24", "-1h", "1w"])
def test_what_is_no_time_is_refused_with_the_option(typed):
    with pytest.raises(errors.SettingsError, match="--since"):
        times.moment_ms("--since", typed, now_ms=NOW_MS)


def test_a_redriven_event_has_the_webhook_id_payload_and_attempts_that_it_had():
    event = builders.event(data=b'{ "a": 1 }')
    delivery = builders.delivery(event=event)
    [one] = written(Results(outcomes=[Outcome(delivery, OutcomeKind.DEAD_LETTERED, FAILED, "timeout")]))
    [record] = records([read(one)])
    postponed = retry_messages.message(record.postponed)
    assert (record.key, postponed.endpoint_id, postponed.customer_id) == (b"ep1", "ep1", CustomerId("c1"))
    [waiting] = postponed.entries
    again = segment.unpacked(waiting.packed[0])
    assert payload.webhook_id(again, waiting.subscriptions[0]) == delivery.webhook_id == one["webhook_id"]
    assert payload.standard(again) == delivery.body
    assert (waiting.left_by, waiting.retries, waiting.attempts, waiting.history) == (None, 0, 2, FAILED)
    assert (waiting.again_at_ms, waiting.since_ms) == (NOW_MS, NOW_MS)
    assert waiting.expires_ms == NOW_MS + 3 * 86_400_000  # three days


def test_the_events_of_a_batch_go_in_one_again_with_its_webhook_id():
    delivery, failed = letters_of_batch(1, 2, 3, 4)
    [record] = records(*redrive_plan.requests_of(failed))
    [waiting] = retry_messages.message(record.postponed).entries
    events = [segment.unpacked(one) for one in waiting.packed]
    through = [waiting.subscriptions[place] for place in waiting.subscription_places]
    assert (waiting.left_by, through) == (LeaveReason.REDRIVE, ["s1", "s2", "s1", "s2"])
    assert batch_payload.webhook_id(delivery.endpoint.endpoint_id, events, through) == delivery.webhook_id
    assert orjson.loads(record.note)["mode"] == DeliveryMode.BATCH


def test_a_batch_that_is_larger_than_a_record_goes_in_several():
    failed = [
        letter(offset, data=b'"%s"' % (b"x" * 100_000)) for offset in range(4)
    ]  # 4 x 133 kB in base64: one and a bit to a record of 256 KiB
    requests = list(redrive_plan.requests_of(failed))
    assert [[one.offset for one in request] for request in requests] == [[0], [1], [2], [3]]


def test_letters_of_one_endpoint_share_records_that_kafka_takes():
    made = records(*[[letter(offset, data=b'"%s"' % (b"x" * 2_000))] for offset in range(40)])
    assert 1 < len(made) < 20
    assert max(len(record.postponed) + len(record.note) for record in made) < topic_rows.MAX_POSTPONED_BYTES
    entries = list(itertools.chain(*(retry_messages.message(record.postponed).entries for record in made)))
    assert [segment.unpacked(one.packed[0]).offset for one in entries] == list(range(40))


def test_a_letter_that_was_redriven_is_left_out():
    [record] = records([letter(3)])
    made = plan(letter(3), letter(4), noted=[record.note])
    assert (chosen(made), made.redriven_before) == ([1], 1)


def test_what_became_a_dead_letter_again_is_redriven_again():
    [record] = records([letter(3)])
    made = plan(letter(3), letter(3, at_ms=NOW_MS + 5), noted=[record.note])
    assert (chosen(made), made.redriven_before) == ([1], 1)


def test_of_one_delivery_only_the_newest_letter_is_redriven():
    assert chosen(plan(letter(3), letter(3, at_ms=NOW_MS), letter(4))) == [2, 1]


def test_an_older_letter_is_not_redriven_because_the_newest_is_not_asked_for():
    made = plan(letter(3), letter(3, at_ms=NOW_MS), selection=Selection(until_ms=NOW_MS - 1))
    assert chosen(made) == []


def test_of_more_than_the_limit_the_oldest_are_redriven():
    assert chosen(plan(letter(1, at_ms=30), letter(2, at_ms=10), letter(3, at_ms=20)), limit=2) == [1, 2]
