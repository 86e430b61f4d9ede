"""Deliveries in the retry lane are pending. Redrives stay in the account of due deliveries; replays are counted apart."""

import pytest

from delivery.model import OutcomeKind
from delivery.registry_model import DeliveryMode
from delivery.webhooks.results.log_entries import RedrivenEntry
from delivery.webhooks.routing import intake
from fanout.reconcile.findings import Kind
from tests.support import builders, records
from tests.support.written_topics import (
    HOUR_MS,
    NOW_MS,
    TOPIC,
    WrittenTopics,
    dead,
    kinds,
    outcome,
    packed,
    postponed,
    receipt,
    rejection,
    retry_message,
    skipped,
)
from tests.unit.fanout.reconcile.test_ledger import batch


def test_an_unreadable_retry_entry_is_missed_as_overdue():
    unreadable = rejection(3, intake.UNREADABLE)
    topics = WrittenTopics().write(postponed(7), rejections=[unreadable], receipts=[receipt(0, 9, due=1)])
    assert topics.account().holds
    assert kinds(topics.account(now_ms=2**50)) == {"overdue": (7, 7, 1)}


def test_a_delivery_overdue_in_the_retry_lane_is_named():
    topics = WrittenTopics().write(postponed(7), receipts=[receipt(0, 9, due=1)])
    max_age_ms = round(builders.endpoint().retrying.max_age_s * 1000)
    assert topics.account(now_ms=NOW_MS + max_age_ms).holds
    late = topics.account(now_ms=NOW_MS + max_age_ms + 8 * HOUR_MS)
    assert kinds(late) == {"overdue": (7, 7, 1)}
    assert late.lanes["direct"].counts.pending == 1


def test_a_delivery_overdue_for_its_batch_is_named():
    topics = WrittenTopics().write(
        batches=[batch(*[packed(offset) for offset in range(9)])], receipts=[receipt(0, 9, due=10, mode=DeliveryMode.BATCH)]
    )
    assert topics.account(now_ms=NOW_MS + 59_000, max_wait_s=60).holds
    [finding] = topics.account(now_ms=NOW_MS + 61_000, max_wait_s=60).findings.kept
    assert (finding.kind, finding.first, finding.subscription_id) == (Kind.OVERDUE, 9, "s1")


def redriven(topics, offset, until_ms):
    note = records.entry(RedrivenEntry, topic=TOPIC, offset=offset, dead_lettered_at_ms=until_ms)
    topics.evidence.add_log_record(records.log(note), until_ms)


def test_a_redriven_and_delivered_dead_letter_is_no_contradiction():
    topics = WrittenTopics().write(dead(7), receipts=[receipt(0, 9, due=1)])
    redriven(topics, 7, 2**50)
    topics.evidence.add_retry_message(retry_message(postponed(7)))
    assert topics.account().lanes["direct"].counts.pending == 1
    topics.write(outcome(7))
    account = topics.account()
    assert (account.holds, account.lanes["direct"].counts.delivered) == (True, 1)


def test_a_delivery_given_up_again_is_a_dead_letter():
    topics = WrittenTopics().write(dead(7), receipts=[receipt(0, 9, due=1)])
    redriven(topics, 7, 5)  # its letter is of later
    assert topics.account().lanes["direct"].counts.dead_lettered == 1


def replayed(ended, replay="rpl_1"):
    return ended._replace(replay=replay)


@pytest.mark.parametrize("first", [outcome(7), dead(7), skipped(7), postponed(7)], ids=lambda ended: ended.kind)
@pytest.mark.parametrize("again", [outcome(7), dead(7), skipped(7), postponed(7)], ids=lambda ended: ended.kind)
def test_a_replay_is_counted_apart_from_due_deliveries(first, again):
    alone = WrittenTopics().write(first, receipts=[receipt(0, 9, due=1)]).account()
    account = WrittenTopics().write(first, replayed(again), receipts=[receipt(0, 9, due=1)]).account()
    assert account.holds
    accepted = again.kind is OutcomeKind.DELIVERED
    assert account.lanes["direct"].counts.document() == alone.lanes["direct"].counts.document() | {"replayed": int(accepted)}


def test_a_replay_makes_no_surplus_and_hides_no_loss():
    topics = WrittenTopics().write(outcome(0), replayed(outcome(1)), receipts=[receipt(0, 9, due=1)])
    assert topics.account().holds
    topics = WrittenTopics().write(outcome(0), replayed(outcome(1)), receipts=[receipt(0, 9, due=2)])
    assert (kinds(topics.account())["lost"][2], topics.account().lanes["direct"].counts.lost) == (1, 1)


def test_a_repeated_acceptance_is_counted_beside_a_replay():
    topics = WrittenTopics().write(outcome(0), outcome(0), replayed(outcome(0)), receipts=[receipt(0, 9, due=1)])
    counts = topics.account().lanes["direct"].counts
    assert (counts.delivered, counts.repeated, counts.replayed) == (1, 1, 1)
