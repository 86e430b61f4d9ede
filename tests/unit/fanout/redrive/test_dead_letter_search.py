"""The selection of dead letters, and the retry entries of a redrive. The job's own code writes the dead letters."""

import base64
import contextlib
import itertools

import msgspec
import orjson
import pytest

from delivery import errors
from delivery.config import settings
from delivery.model import LeaveReason, NextAttempt, Outcome, OutcomeKind, SkipReason
from delivery.payload_form import PayloadForm
from delivery.registry_model import CustomerId, DeliveryMode, Revision
from delivery.webhooks.batching import segment
from delivery.webhooks.events import parsing
from delivery.webhooks.leases import lease_triage
from delivery.webhooks.leases.lease_triage import RegistryView, ToEnd, ToRequeue
from delivery.webhooks.policy import retry_reasons
from delivery.webhooks.results import dead_letter_records, log_records, topic_rows
from delivery.webhooks.results.task_results import Results
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.routing import registries
from delivery.webhooks.sending import batch_payload, payload
from fanout.kafka import publishing
from fanout.kafka.places import Place
from fanout.redrive import redrive_plan
from fanout.redrive.selection import Selection
from tests.support import builders
from tests.support.leases import lease
from tests.unit.fanout.reconcile.test_ledger import TOPICS, attempt, batch

PLACE = Place("dead_letters", 0)
NOW_MS = 1_800_000_000_000
FAILED = (attempt(1, "server_error"), attempt(2, "timeout"))


def written(results):
    return [orjson.loads(row.value) for row in topic_rows.rows(results, TOPICS, now_ms=NOW_MS) if row.topic == "dead_letters"]


def letter(offset=0, *, at_ms=NOW_MS - 1000, **fields):
    record = builders.record(offset=offset, headers=(("trace", b"\xff1"),))
    event = builders.event(**{"event_id": f"e{offset}", "record": record, **fields})
    delivery = builders.delivery(event=event)
    [document] = written(Results(outcomes=[Outcome(delivery, OutcomeKind.DEAD_LETTERED, FAILED, "timeout")]))
    return read(document | {"dead_lettered_at_ms": at_ms})


def letters_of_batch(*offsets):
    events = [packed(offset) for offset in offsets]
    failed = batch(*events, through=["s1", "s2"] * 2, kind=OutcomeKind.DEAD_LETTERED, attempts=FAILED, reason="timeout")
    failed = failed._replace(
        outcome=failed.outcome._replace(delivery=failed.outcome.delivery._replace(webhook_id=id_of(failed.outcome.delivery)))
    )
    return failed.outcome.delivery, [read(document) for document in written(Results(batches=[failed]))]


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
    made = redrive_plan.Plan(selection or Selection(), redriven, fault_of=redrive_plan.fault_of)
    for offset, dead_letter in enumerate(taken):
        made.add(dead_letter, (PLACE, offset))
    return made


def chosen(made, limit=None):
    return [offset for _, offset in made.chosen(limit)]


def records(*requests):
    return list(redrive_plan.records(requests, now_ms=NOW_MS))


@pytest.mark.parametrize(("revision", "waits"), [(redrive_plan.ANY_REVISION, True), (Revision(5), False), (Revision(6), True)])
def test_a_redrive_waits_for_a_worker_whose_registry_is_older(revision, waits):
    """Regression: a worker that did not know a subscription, registered again, ended its redriven deliveries as deleted."""
    entry = redrive_plan.entry_of([letter()], now_ms=NOW_MS, revision=revision)
    lacking = RegistryView(registries.Destination(builders.endpoint(), {}), 5, 100.0)
    ended = ToEnd({SkipReason.SUBSCRIPTION_DELETED: range(1)})
    behind = ToRequeue(NextAttempt(NOW_MS + 5000, 0), retry_reasons.REGISTRY_BEHIND)
    assert lease_triage.triage(lease(entry), lacking, frozenset(), NOW_MS).decisions == [behind if waits else ended]


def test_a_dead_letter_gives_back_its_event_and_its_history():
    dead_letter = letter(7, data=b'{ "a": 1 }', sub_tenant_id="100")
    event = dead_letter.event()
    assert (event.data, event.record.headers, event.record.offset) == (b'{ "a": 1 }', (("trace", b"\xff1"),), 7)
    assert (event.sub_tenant_id, event.source, event.event_type) == ("100", "events.order.created", "order.created")
    assert dead_letter.history() == FAILED


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
def test_a_dead_letter_is_selected_if_it_meets_all_conditions(asked, is_meant):
    assert Selection(**asked).matches(letter()) is is_meant


@pytest.mark.parametrize(
    "fields",
    [
        {"payload_base64": "no base64!"},
        {"payload_form": PayloadForm.BYTES, "payload_base64": base64.b64encode(b'"no base64!"').decode()},
        {"headers": [dead_letter_records.Header(name="h", value_base64="no base64!")]},
        {"appended_at_ms": 2**64},
        {"attempts": [dead_letter_records.LetterAttempt(attempt=2**64, started_at_ms=0, duration_ms=0.0)]},
        {"attempts": [dead_letter_records.LetterAttempt(attempt=1, started_at_ms=2**64, duration_ms=0.0)]},
        {"attributes": {"a": 2**64}},
    ],
)
def test_only_a_chosen_dead_letter_of_another_program_has_a_fault(fields):
    foreign = msgspec.structs.replace(letter(1), **fields)
    made = plan(letter(0, at_ms=1), foreign)
    assert [bool(newest.fault) for newest in made.chosen().values()] == [False, True]
    assert [newest.fault for newest in made.chosen(1).values()] == [""]
    assert [newest.fault for newest in plan(foreign, letter(1)).chosen().values()] == [""]  # a newer one replaces it


def test_a_redriven_event_keeps_webhook_id_payload_and_attempts():
    event = builders.event(data=b'{ "a": 1 }')
    delivery = builders.delivery(event=event)
    [document] = written(Results(outcomes=[Outcome(delivery, OutcomeKind.DEAD_LETTERED, FAILED, "timeout")]))
    [record] = records([read(document)])
    postponed = retry_messages.message(record.postponed)
    assert (record.key, postponed.endpoint_id, postponed.customer_id) == (b"ep1", "ep1", CustomerId("c1"))
    [waiting] = postponed.entries
    again = segment.unpacked(waiting.packed[0])
    assert payload.webhook_id(again, waiting.subscriptions[0]) == delivery.webhook_id == document["webhook_id"]
    assert payload.standard(again) == delivery.body
    assert (waiting.left_by, waiting.retries, waiting.attempts, waiting.history) == (None, 0, 2, FAILED)
    assert (waiting.again_at_ms, waiting.since_ms) == (NOW_MS, NOW_MS)
    assert waiting.expires_ms == NOW_MS + 3 * 86_400_000  # three days


def test_a_redriven_batch_keeps_its_events_and_its_webhook_id():
    delivery, failed = letters_of_batch(1, 2, 3, 4)
    [record] = records(*redrive_plan.requests_of(failed))
    [waiting] = retry_messages.message(record.postponed).entries
    events = [segment.unpacked(packed_event) for packed_event in waiting.packed]
    through = [waiting.subscriptions[place] for place in waiting.subscription_places]
    assert (waiting.left_by, through) == (LeaveReason.REDRIVE, ["s1", "s2", "s1", "s2"])
    assert batch_payload.webhook_id(delivery.endpoint.endpoint_id, events, through) == delivery.webhook_id
    assert orjson.loads(record.note)["mode"] == DeliveryMode.BATCH


def test_a_batch_larger_than_a_record_is_split():
    failed = [letter(offset, data=b'"%s"' % (b"x" * 100_000)) for offset in range(4)]  # two and a bit to 256 KiB
    requests = list(redrive_plan.requests_of(failed))
    assert [[dead_letter.offset for dead_letter in request] for request in requests] == [[0, 1], [2, 3]]


def test_a_thousand_small_events_of_a_batch_go_in_one_request_again():
    """Regression: each event counted with an attempt history of its own, so batches of more than 18 events were split.

    Their parts had new webhook-ids, and a receiver that had handled the batch handled its events again.
    """
    [together] = redrive_plan.requests_of([letter(offset, data=b'"%s"' % (b"x" * 200)) for offset in range(1000)])
    [record] = records(together)
    assert len(record.postponed) + len(record.note) < 1_000_000


@pytest.mark.parametrize("fields", [{}, {"source": "s" * 1000}, {"event_id": "i" * 1000, "subscription_id": "s" * 255}])
def test_a_batch_of_many_events_is_split_so_that_kafka_takes_each_record(fields):
    letters = [msgspec.structs.replace(letter(offset), **fields) for offset in range(5000)]
    requests = list(redrive_plan.requests_of(letters))
    assert sum(map(len, requests)) == 5000
    made = records(*requests)
    assert max(len(record.key + record.postponed + record.note) for record in made) < publishing.MAX_RECORD_BYTES


def test_dead_letters_of_an_endpoint_share_records_of_bounded_size():
    made = records(*[[letter(offset, data=b'"%s"' % (b"x" * 2_000))] for offset in range(40)])
    assert 1 < len(made) < 20
    assert max(len(record.postponed) + len(record.note) for record in made) < topic_rows.MAX_POSTPONED_BYTES
    entries = list(itertools.chain(*(retry_messages.message(record.postponed).entries for record in made)))
    assert [segment.unpacked(entry.packed[0]).offset for entry in entries] == list(range(40))


@pytest.mark.parametrize(
    "bulk",
    [
        pytest.param({"headers": [dead_letter_records.Header(name="h", value_base64="x" * 20_000)]}, id="headers"),
        pytest.param({"attributes": {"subject": "x" * 20_000}}, id="attributes"),
    ],
)
def test_headers_and_attributes_count_in_the_bounds_of_records(bulk):
    """Regression: records and requests were larger than their bounds, because only payloads were counted."""
    letters = [msgspec.structs.replace(letter(offset), **bulk) for offset in range(20)]
    assert max(map(len, redrive_plan.requests_of(letters))) * 20_000 < redrive_plan.MAX_REQUEST_BYTES
    made = records(*[[dead_letter] for dead_letter in letters])
    assert max(len(record.postponed) + len(record.note) for record in made) < topic_rows.MAX_POSTPONED_BYTES


def test_a_dead_letter_with_a_note_is_left_out():
    [record] = records([letter(3)])
    made = plan(letter(3), letter(4), noted=[record.note])
    assert (chosen(made), made.redriven_before) == ([1], 1)


def test_a_delivery_that_was_given_up_again_is_redriven_again():
    [record] = records([letter(3)])
    made = plan(letter(3), letter(3, at_ms=NOW_MS + 5), noted=[record.note])
    assert (chosen(made), made.redriven_before) == ([1], 1)


def test_only_the_newest_dead_letter_of_a_delivery_is_redriven():
    assert chosen(plan(letter(3), letter(3, at_ms=NOW_MS), letter(4))) == [2, 1]


def test_two_events_at_one_place_are_two_deliveries():
    """Regression: the older event was lost. Its topic was recreated, and another event has the same place now.

    Both counted as one delivery. A redrive enqueued the newer dead letter only, and the older one counted as redriven too.
    """
    older, newer = letter(3, event_id="e1"), letter(3, event_id="e2", at_ms=NOW_MS)
    assert chosen(plan(older, newer)) == [0, 1]
    [record] = records([newer])
    made = plan(older, newer, noted=[record.note])
    assert (chosen(made), made.redriven_before) == ([0], 1)


def test_an_older_dead_letter_does_not_stand_for_the_newest():
    made = plan(letter(3), letter(3, at_ms=NOW_MS), selection=Selection(until_ms=NOW_MS - 1))
    assert chosen(made) == []


def test_the_limit_selects_the_oldest_dead_letters():
    assert chosen(plan(letter(1, at_ms=30), letter(2, at_ms=10), letter(3, at_ms=20)), limit=2) == [1, 2]


@pytest.mark.parametrize(("payload_bytes", "can"), [(parsing.MAX_KEPT_BYTES, True), (publishing.MAX_RECORD_BYTES, False)])
def test_a_letter_is_redriven_unless_kafkas_client_refuses_its_record(payload_bytes, can):
    """Regression: the archive tried to enqueue such a dead letter again and again, and enqueued no others."""
    large = letter(data=b'"%s"' % (b"x" * payload_bytes))
    [record] = records([large])
    message = publishing.Message(topic="r", key=record.key, value=record.postponed, headers=((redrive_plan.NOTE, record.note),))
    publisher = publishing.Publisher(settings.KafkaSettings(bootstrap_servers="127.0.0.1:1"))
    with contextlib.nullcontext() if can else pytest.raises(errors.KafkaUnavailable, match="too large"):
        publisher.publish(message)
    assert (redrive_plan.fault_of(large) == "") is can
