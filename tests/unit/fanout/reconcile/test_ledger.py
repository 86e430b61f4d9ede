"""The ledger collects the records that the job's own code writes."""

import itertools

import msgspec

from delivery.model import Attempt, LeaveReason, Outcome, OutcomeKind
from delivery.registry_model import DeliveryMode, Revision
from delivery.webhooks.batching import segment
from delivery.webhooks.results import dead_letter_records, log_records, rejected_records, topic_rows
from delivery.webhooks.results.log_entries import Due, RedrivenEntry
from delivery.webhooks.results.task_results import Results
from delivery.webhooks.routing import intake
from delivery.webhooks.sending import batch_payload
from fanout.kafka import places
from fanout.reconcile import ledger
from tests.support import builders, records
from tests.support.batches import endpoint

TOPICS = topic_rows.Topics(attempts="attempts", dead_letters="dead_letters", rejected="rejected", retries="retries")
_offsets = itertools.count(100)


def add(found, topic, written):
    """Add a record to the ledger, as its reader does."""
    if topic == "attempts":
        found.add_log(log_records.decode(written))
    elif topic == "dead_letters":
        found.add_dead_letter(dead_letter_records.decode(written))
    else:
        found.add_rejected(rejected_records.decode(written))


def read(*all_results, into=None):
    found = into or ledger.Ledger()
    for results in all_results:
        for row in topic_rows.rows(results, TOPICS, now_ms=0):
            add(found, row.topic, row.value)
    return found


def attempt(number=1, error_class=None):
    return Attempt(number=number, started_at_ms=5000 * number, duration_ms=20.0, status=200, error_class=error_class)


def packed(offset, *, topic="events.order.created", partition=0):
    event = builders.event(record=builders.record(topic=topic, partition=partition, offset=offset))
    return segment.unpacked(segment.item(event, 0).packed)


def batch(*events, through=None, kind=OutcomeKind.DELIVERED, attempts=None, rejected=(), reason=None):
    delivery = batch_payload.BatchDelivery(
        endpoint=endpoint(),
        webhook_id=f"batch_{next(_offsets)}",
        body=b"",
        signed=b"",
        content_headers=b"",
        events=events,
        subscription_ids=through or ["s1"] * len(events),
        left_by=LeaveReason.COUNT,
    )
    outcome = Outcome(delivery, kind, attempts if attempts is not None else (attempt(),), reason)
    return batch_payload.BatchOutcome(outcome, dict.fromkeys(rejected, "no"))


def receipt(mode, first, last, *, due=0, revision=1):
    return intake.Receipt(
        lane=mode,
        topic="events.order.created",
        partition=0,
        revision=Revision(revision),
        first_offset=first,
        last_offset=last,
        due=due,
    )


def due(offset, subscription_id="s1", topic="events.order.created", partition=0):
    return Due(topic, partition, offset, subscription_id)


def test_each_event_of_an_accepted_batch_is_delivered_by_its_own_subscription():
    events = [packed(1), packed(2), packed(1, partition=3), packed(7, topic="events.other")]
    found = read(Results(batches=[batch(*events, through=["s1", "s2", "s1", "s1"])]))
    assert found.delivered == dict.fromkeys([due(1), due(2, "s2"), due(1, partition=3), due(7, topic="events.other")], 5020.0)
    assert (found.attempts, list(found.batches.values())) == (1, ["count"])


def test_single_and_batched_deliveries_are_recorded_alike():
    single = Outcome(delivery=builders.delivery(), kind=OutcomeKind.DELIVERED, attempts=(attempt(1, "timeout"), attempt(2)))
    found = read(Results(outcomes=[single], batches=[batch(packed(9))]))
    assert found.delivered == {due(7, "s1"): 10_020.0, due(9): 5020.0}
    assert (found.attempts, len(found.batches)) == (3, 1)


def test_the_first_accepted_request_of_a_delivery_counts():
    event = packed(1)
    found = read(
        Results(batches=[batch(event, attempts=(attempt(1, "timeout"), attempt(2)))]),
        Results(batches=[batch(event, attempts=(attempt(5),))]),
    )
    assert found.delivered == {due(1): 10_020.0}


def test_a_batch_that_failed_is_given_up_event_by_event():
    failed = (attempt(1, "server_error"), attempt(2, "server_error"))
    found = read(Results(batches=[batch(packed(1), packed(2), kind=OutcomeKind.DEAD_LETTERED, attempts=failed)]))
    assert (found.delivered, found.dead(), found.attempts) == ({}, {due(1), due(2)}, 2)


def test_an_event_rejected_in_the_answer_is_a_dead_letter():
    found = read(Results(batches=[batch(packed(1), packed(2), packed(3), rejected=[1])]))
    assert found.dead() == {due(2)}
    [letter] = found.dead_letters.values()
    assert letter.reason == "rejected_by_endpoint"


def test_a_skipped_batch_is_no_request():
    found = read(Results(batches=[batch(packed(1), kind=OutcomeKind.SKIPPED, attempts=(), reason="endpoint_deleted")]))
    assert (found.skipped, found.attempts, found.batches) == ({due(1): "endpoint_deleted"}, 0, {})


def test_a_postponed_delivery_has_its_reason_and_has_not_ended():
    single = Outcome(builders.delivery(), OutcomeKind.POSTPONED, (), "circuit_open")
    found = read(Results(outcomes=[single], receipts=[receipt(DeliveryMode.DIRECT, 1, 9, due=2)]))
    assert (found.postponed, found.ended(), found.pending()) == ({due(7): "circuit_open"}, set(), 2)
    read(Results(batches=[batch(packed(1), packed(2), kind=OutcomeKind.POSTPONED, attempts=(), reason="gone")]), into=found)
    assert found.postponed == {due(7): "circuit_open", due(1): "gone", due(2): "gone"}


def test_a_redriven_dead_letter_counts_only_if_given_up_again():
    failed = Results(batches=[batch(packed(1), kind=OutcomeKind.DEAD_LETTERED, reason="timeout")])
    found = read(failed)
    [letter] = found.dead_letters.values()
    at_ms = letter.dead_lettered_at_ms
    found.add_log(records.log(records.entry(RedrivenEntry, offset=1, dead_lettered_at_ms=at_ms)))
    assert found.dead() == set()
    found.add_dead_letter(msgspec.structs.replace(letter, dead_lettered_at_ms=at_ms + 1))
    assert found.dead() == {due(1)}


def test_a_repeated_micro_batch_does_not_change_pending():
    collected = Results(receipts=[receipt(DeliveryMode.BATCH, 1, 3, due=3)])
    found = read(collected, collected)
    assert found.pending() == 3
    read(Results(batches=[batch(packed(1), packed(2), rejected=[0])]), into=found)
    assert found.pending() == 1
    read(Results(batches=[batch(packed(3), kind=OutcomeKind.SKIPPED, attempts=(), reason="endpoint_paused")]), into=found)
    assert found.pending() == 0


def test_each_lane_has_its_own_offsets_and_revision():
    place = places.Place("events.order.created", 0)
    found = read(
        Results(
            receipts=[
                receipt(DeliveryMode.DIRECT, 0, 9, revision=4),
                receipt(DeliveryMode.BATCH, 0, 4, revision=3),
                receipt(DeliveryMode.BATCH, 5, 6, revision=5),
            ]
        )
    )
    assert [found.handled_until(name) for name in ("direct", "batch")] == [{place: 9}, {place: 6}]
    assert [found.revision_at("batch", place, offset) for offset in (0, 5, 7)] == [3, 5, None]
    assert found.revision_at("direct", place, 7) == 4


def test_a_record_that_both_lanes_reject_is_counted_once():
    rejection = intake.Rejection(record=builders.record(value=b"?"), reason="not_json", detail="")
    other = intake.Rejection(record=builders.record(value=b"?", offset=8), reason="not_json", detail="")
    found = read(Results(rejections=[rejection, other]), Results(rejections=[rejection]))
    assert len(found.rejected) == 2
