"""The records of an interrupted micro-batch say which deliveries are completed. All others are repeated."""

import asyncio
import dataclasses

import msgspec

from delivery.model import Attempt, LeaveReason, NextAttempt, Outcome, OutcomeKind, SkipReason
from delivery.webhooks.batching import segment
from delivery.webhooks.events import parsing
from delivery.webhooks.http import guard
from delivery.webhooks.lanes import batch_lane, direct_lane
from delivery.webhooks.policy import backoff
from delivery.webhooks.results import completed_work, topic_rows
from delivery.webhooks.results.task_results import Results
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.routing import registries
from delivery.webhooks.sending import batch_payload, sender
from tests.support import batches, builders, fakes
from tests.support.dispatching import fast_lane

TOPICS = topic_rows.Topics(attempts="attempts", dead_letters="dead", rejected="rejected", retries="retries")
ACCEPTED = Attempt(1, 0, 1.0, 200, None)
PACKED = [segment.item(builders.event(record=builders.record(offset=offset)), 0).packed for offset in range(3)]
FAILED = Attempt(1, 0, 1.0, 500, "server_error")


def key_of(outcome):
    return completed_work.key_of_event(outcome.delivery.event, outcome.delivery.subscription.subscription_id)


def read_back(*written, lane=completed_work.FastLaneLog, **bounds):
    """Return the keys of the completed work in rows of (topic, value)."""
    found = lane(**bounds)
    for topic, reader in found.readers(TOPICS).items():
        for row_topic, value in written:
            if row_topic == topic:
                found.add(value, reader, ("topic", 0, 0))
    return found.completed


def written(*outcomes, batches=()):
    results = Results(outcomes=list(outcomes), batches=list(batches))
    return [(row.topic, row.value) for row in topic_rows.rows(results, TOPICS, now_ms=0)]


def ended(kind, *attempts, reason=None, delivery=None):
    return Outcome(delivery or builders.delivery(), kind, attempts, reason)


def batch_ended(kind, *attempts, count=3, rejected=(), reason=None):
    events = [segment.unpacked(packed) for packed in PACKED[:count]]
    through = ["s1"] * count
    webhook_id = batch_payload.webhook_id("ep1", events, through)
    delivery = batch_payload.BatchDelivery(builders.endpoint(), webhook_id, b"", b"", b"", events, through, LeaveReason.COUNT)
    return batch_payload.BatchOutcome(Outcome(delivery, kind, attempts, reason), dict.fromkeys(rejected, "no"))


def keys_of(batch):
    delivery = batch.outcome.delivery
    return {
        completed_work.key_of_packed(event, name)
        for event, name in zip(delivery.events, delivery.subscription_ids, strict=True)
    }


def test_an_accepted_delivery_is_completed():
    outcome = ended(OutcomeKind.DELIVERED, FAILED, ACCEPTED)
    assert read_back(*written(outcome)) == {key_of(outcome)}


def test_a_failed_delivery_is_completed_by_its_dead_letter_only():
    """The attempt is written first. A process that dies before the dead letter would otherwise lose the delivery."""
    outcome = ended(OutcomeKind.DEAD_LETTERED, FAILED, reason="server_error")
    attempt, letter = written(outcome)
    assert read_back(attempt) == set()
    assert read_back(letter) == read_back(attempt, letter) == {key_of(outcome)}


def test_a_postponed_delivery_is_completed_by_its_entry():
    outcome = Outcome(builders.delivery(), OutcomeKind.POSTPONED, (FAILED,), "server_error", NextAttempt(1, 1))
    waiting = retry_messages.encoded(retry_messages.Postponed("ep1", "c1", [retry_messages.delivery_entry(outcome, now_ms=0)]))
    assert read_back(*written(outcome)) == set()
    assert read_back(("retries", waiting)) == {key_of(outcome)}


def test_a_replay_completes_no_due_delivery():
    """A replay may run beside an interrupted micro-batch. If its record counted, the due delivery would have none."""
    accepted = ended(OutcomeKind.DELIVERED, ACCEPTED)._replace(replay="rpl_1")
    dead = ended(OutcomeKind.DEAD_LETTERED, FAILED, reason="server_error")._replace(replay="rpl_1")
    batch = batch_ended(OutcomeKind.DELIVERED, ACCEPTED)
    batch = batch._replace(outcome=batch.outcome._replace(replay="rpl_1"))
    outcome = Outcome(builders.delivery(), OutcomeKind.POSTPONED, (FAILED,), "server_error", NextAttempt(1, 1))
    waits = msgspec.structs.replace(retry_messages.delivery_entry(outcome, now_ms=0), replay="rpl_1")
    handed_over = ("retries", retry_messages.encoded(retry_messages.Postponed("ep1", "c1", [waits])))
    assert read_back(*written(accepted, dead, batches=[batch]), handed_over) == set()


def test_a_skipped_delivery_is_recorded_again():
    assert read_back(*written(ended(OutcomeKind.SKIPPED, reason=SkipReason.SUBSCRIPTION_PAUSED))) == set()


def test_an_event_that_its_producer_repeats_is_two_deliveries():
    first = builders.delivery()
    again = first._replace(event=first.event._replace(record=builders.record(offset=8)))
    assert first.webhook_id == again.webhook_id
    assert completed_work.key_of_event(again.event, again.subscription.subscription_id) not in read_back(
        *written(ended(OutcomeKind.DELIVERED, ACCEPTED, delivery=first))
    )


def test_an_accepted_batch_is_completed():
    batch = batch_ended(OutcomeKind.DELIVERED, ACCEPTED)
    assert read_back(*written(batches=[batch])) == keys_of(batch)


def test_a_rejected_event_is_completed_by_its_dead_letter():
    batch = batch_ended(OutcomeKind.DELIVERED, ACCEPTED, rejected=(0, 2))
    log, *letters = written(batches=[batch])
    assert len(read_back(log)) == 1
    assert len(read_back(log, letters[0])) == 2
    assert read_back(log, *letters) == keys_of(batch)


def test_a_failed_batch_is_completed_by_its_dead_letters_only():
    log, *letters = written(batches=[batch_ended(OutcomeKind.DEAD_LETTERED, FAILED, reason="server_error")])
    assert read_back(log) == set()
    assert len(read_back(log, *letters)) == 3


def test_a_postponed_batch_is_completed_by_its_entry():
    batch = batch_ended(OutcomeKind.POSTPONED, FAILED, reason="server_error")
    outcome = batch.outcome._replace(next_attempt=NextAttempt(1, 1))
    waiting = retry_messages.encoded(
        retry_messages.Postponed("ep1", "c1", [retry_messages.batch_entry(outcome, PACKED, now_ms=0)])
    )
    assert read_back(("retries", waiting)) == keys_of(batch)


def test_an_unreadable_record_is_ignored_and_the_rest_counts(caplog):
    outcome = ended(OutcomeKind.DELIVERED, ACCEPTED)
    odd = [("attempts", b'{"entries": [{}]}'), ("dead", b"x"), ("retries", b"\xff")]
    assert read_back(*odd, *written(outcome)) == {key_of(outcome)}
    [first] = caplog.records  # a log of each would flood the driver at its start
    assert "could not be read" in first.message


def test_the_number_of_completed_keys_is_bounded():
    events = [builders.event(record=builders.record(offset=offset)) for offset in range(5)]
    log = [ended(OutcomeKind.DELIVERED, ACCEPTED, delivery=builders.delivery(event=event)) for event in events]
    rows_of_each = [row for outcome in log for row in written(outcome)]
    assert len(read_back(*rows_of_each, max_completed=2)) == 2


def test_a_lease_is_completed_by_its_report_and_a_delivery_accepted():
    accepted = ended(OutcomeKind.DELIVERED, FAILED, ACCEPTED)
    report = retry_messages.Report(
        "ep1", "c1", None, lease=7, delivered=0, failed=3, blocked=None, retry_after_s=None, requeued=[], entries=4
    )
    log = [*written(accepted), ("retries", retry_messages.encoded(report))]
    assert read_back(*log, lane=completed_work.RetryLaneLog) == {key_of(accepted), completed_work.key_of_lease("ep1", 7, 4)}
    assert completed_work.key_of_lease("ep1", 7, 4) not in {
        completed_work.key_of_lease("ep1", 8, 4),
        completed_work.key_of_lease("ep2", 7, 4),
        completed_work.key_of_lease("ep1", 7, 5),
    }


def test_entries_and_dead_letters_complete_nothing_in_the_retry_lane():
    """A dead letter may be redriven at once. If it completed the redrive, the event would be lost."""
    dead = ended(OutcomeKind.DEAD_LETTERED, FAILED, reason="server_error")
    outcome = Outcome(builders.delivery(), OutcomeKind.POSTPONED, (FAILED,), "server_error", NextAttempt(1, 1))
    handed_over = retry_messages.encoded(
        retry_messages.Postponed("ep1", "c1", [retry_messages.delivery_entry(outcome, now_ms=0)])
    )
    assert read_back(*written(dead), ("retries", handed_over), lane=completed_work.RetryLaneLog) == set()


def deliver(records, ended_before=frozenset()):
    """Deliver records in the direct lane. Return the results and the posted requests."""
    clock, network = fakes.Clock(), fakes.FakeTransport(200)
    registry = registries.WholeRegistry("base", builders.snapshot(builders.endpoint(), builders.subscription()))

    async def main():
        posting = sender.Sender(network, guard.Guard(), timeout_s=2, clock=clock)
        dispatcher, deferrals = fast_lane(posting, clock, quick_retry=backoff.QuickRetry())
        layout = parsing.Layout(topic_prefix="events.")
        delivering = direct_lane.DirectLane(registry, dispatcher, deferrals, layout, ended_before)
        first = await delivering.submit(records)
        rest = await delivering.finish()
        return dataclasses.replace(rest, outcomes=first.outcomes + rest.outcomes)

    return asyncio.run(main()), network.posted


def test_two_runs_around_a_crash_account_for_everything_once():
    records = [builders.record(offset=offset, value=b'{"tenant_id": "t1", "id": "e%d"}' % offset) for offset in range(10)]
    whole, posted = deliver(records)
    before = read_back(*written(*whole.outcomes[:6]))
    rest, posted_again = deliver(records, before)
    assert (len(posted), len(posted_again)) == (10, 4)
    completed, repeated = ({outcome.delivery.webhook_id for outcome in part} for part in (whole.outcomes[:6], rest.outcomes))
    assert completed.isdisjoint(repeated)
    assert len(before) + len(rest.outcomes) == sum(receipt.due for receipt in rest.receipts) == 10


def test_completed_events_are_left_out_of_a_new_batch():
    events = [builders.event(record=builders.record(offset=offset)) for offset in range(4)]
    clock, network = fakes.Clock(), fakes.FakeTransport(200)
    registry = registries.WholeRegistry("base", builders.snapshot(batches.endpoint(), builders.subscription()))

    async def send(ended_before):
        posting = sender.Sender(network, guard.Guard(), timeout_s=2, clock=clock)
        dispatcher, deferrals = fast_lane(posting, clock, quick_retry=backoff.QuickRetry())
        delivering = batch_lane.BatchLane(registry, dispatcher, deferrals, ended_before)
        first = await delivering.submit(
            [batches.sent(batches.pending_batch(*events[:2])), batches.sent(batches.pending_batch(*events[2:]))]
        )
        return first.batches + (await delivering.finish()).batches

    keys = [completed_work.key("s1", completed_work.KafkaPosition(*event.record[:3])) for event in events]
    sent = asyncio.run(send(set(keys[1:3])))  # in the run before, these two shared a batch
    assert [[event.offset for event in batch.outcome.delivery.events] for batch in sent] == [[0], [3]]
    assert asyncio.run(send(set(keys))) == []
    assert len(network.posted) == 2
