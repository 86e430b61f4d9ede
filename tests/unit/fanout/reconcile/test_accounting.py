"""The account of records that the job's own code writes. Each kind of finding has a test that produces it."""

import re
from pathlib import Path

import orjson
import pytest

from delivery.model import Outcome as Ended
from delivery.model import OutcomeKind
from delivery.registry_model import DeliveryMode
from fanout.reconcile import evidence
from fanout.reconcile.findings import MEANINGS, Kind
from tests.support import builders
from tests.support.batches import endpoint as batch_endpoint
from tests.support.written_topics import (
    FAILED,
    HOUR_MS,
    NOW_MS,
    PLACE,
    TOPIC,
    WrittenTopics,
    all_of,
    dead,
    event,
    kinds,
    outcome,
    packed,
    postponed,
    receipt,
    rejection,
    skipped,
)
from tests.unit.fanout.reconcile.test_ledger import batch

ROOT = Path(__file__).parents[4]


def test_due_deliveries_add_up_by_lane_type_and_endpoint():
    topics = WrittenTopics(no_event={9})
    topics.write(outcome(0), outcome(1), dead(2), skipped(3), postponed(4), outcome(0, subscription="s2"),
               rejections=[rejection(9)], receipts=[receipt(0, 9, due=6, rejected=1)])  # fmt: skip
    account = topics.account()
    assert account.holds
    [(group, counts)] = account.groups.items()
    assert group == ("direct", "order.created", "ep1")
    assert counts.document() == {
        "due": 6, "delivered": 3, "pending": 1, "dead_lettered": 1, "lost": 0, "repeated": 0, "replayed": 0,
        "skipped": {"subscription_paused": 1},
    }  # fmt: skip
    direct = account.lanes["direct"]
    assert (direct.records, direct.rejected, direct.behind) == (10, 1, 0)
    assert orjson.loads(orjson.dumps(account.document()))["holds"]


def test_a_batch_is_accounted_event_by_event():
    topics = WrittenTopics()
    topics.write(batches=[batch(packed(0), packed(1), packed(2), rejected=[1])],
               receipts=[receipt(0, 9, due=5, mode=DeliveryMode.BATCH)])  # fmt: skip
    account = topics.account()
    assert account.holds
    counts = account.lanes["batch"].counts
    assert (counts.due, counts.delivered, counts.dead_lettered, counts.pending) == (5, 2, 1, 2)


def test_a_skip_before_batching_is_in_the_batch_lanes_account():
    topics = WrittenTopics()
    paused = Ended(
        delivery=builders.delivery(event=event(0), endpoint=batch_endpoint()),
        kind=OutcomeKind.SKIPPED,
        reason="subscription_paused",
    )
    topics.write(paused, receipts=[receipt(0, 9, due=1, mode=DeliveryMode.BATCH), receipt(0, 9, due=0)])
    account = topics.account()
    assert account.holds
    assert [lane.counts.skipped.total() for lane in account.lanes.values()] == [0, 1]


def test_a_repeated_micro_batch_counts_once_and_shows_repeats():
    topics = WrittenTopics()
    for _ in range(2):
        topics.write(*all_of(10), receipts=[receipt(0, 9, due=10)])
    account = topics.account()
    assert account.holds
    assert (account.lanes["direct"].counts.due, account.lanes["direct"].counts.repeated) == (10, 10)
    assert account.lanes["direct"].records == 10


def test_a_postponed_delivery_that_was_delivered_later_is_delivered():
    topics = WrittenTopics()
    topics.write(*all_of(9), postponed(9), receipts=[receipt(0, 9, due=10)])
    topics.write(outcome(9))
    assert (topics.account().holds, topics.account().lanes["direct"].counts.delivered) == (True, 10)


def test_records_after_the_last_receipt_are_no_finding():
    topics = WrittenTopics(records=15).write(*all_of(10), receipts=[receipt(0, 9, due=10)])
    assert (topics.account().holds, topics.account().lanes["direct"].behind) == (True, 5)


def test_outcomes_after_the_last_receipt_are_a_finding_if_stopped():
    topics = WrittenTopics(records=15).write(*all_of(13), receipts=[receipt(0, 9, due=10)])
    assert topics.account().holds
    assert kinds(topics.account(is_stopped=True)) == {"unfinished": (10, 12, 3)}
    assert kinds(WrittenTopics().write(*all_of(3)).account(is_stopped=True)) == {"unfinished": (0, 2, 3)}


def test_receipts_of_the_last_seconds_are_not_judged():
    topics = WrittenTopics(records=20)
    topics.write(*all_of(10), receipts=[receipt(0, 9, due=10)], at_ms=NOW_MS - 60_000)
    topics.write(receipts=[receipt(10, 19, due=10)], at_ms=NOW_MS)
    assert topics.account(until_ms=NOW_MS - 10_000).holds
    assert topics.account(until_ms=NOW_MS - 10_000).lanes["direct"].behind == 10
    assert not topics.account().holds


def test_receipts_before_since_are_not_judged():
    topics = WrittenTopics(records=20)
    topics.write(receipts=[receipt(0, 9, due=10)], at_ms=NOW_MS - HOUR_MS)
    topics.write(*[outcome(offset) for offset in range(10, 20)], receipts=[receipt(10, 19, due=10)])
    account = topics.account(since_ms=NOW_MS - 1000, from_first=False)
    assert (account.holds, account.lanes["direct"].counts.due) == (True, 10)


def test_a_transaction_marker_between_two_ranges_is_no_finding():
    topics = WrittenTopics(records=11, no_record={5})
    topics.write(*[outcome(n) for n in range(11) if n != 5], receipts=[receipt(0, 4, due=5), receipt(6, 10, due=5)])
    assert topics.account().holds


@pytest.mark.parametrize("gone", range(10))
def test_a_delivery_without_a_recorded_outcome_is_lost_by_name(gone):
    topics = WrittenTopics().write(
        *[outcome(offset) for offset in range(10) if offset != gone], receipts=[receipt(0, 9, due=10)]
    )
    account = topics.account()
    assert not account.holds
    [finding] = account.findings.kept
    assert (finding.kind, finding.first, finding.last) == (Kind.LOST, gone, gone)
    assert (finding.subscription_id, finding.endpoint_id) == ("s1", "ep1")
    assert f"direct, {TOPIC}:0:{gone}, subscription s1 to ep1" in finding.text()
    assert (account.lanes["direct"].counts.lost, account.lanes["direct"].counts.due) == (1, 10)


def test_a_loss_without_a_name_lists_the_probable_deliveries():
    topics = WrittenTopics().write(outcome(0), outcome(1, subscription="s2"), receipts=[receipt(0, 9, due=3)])
    [finding] = topics.account().findings.kept
    assert (finding.first, finding.last, finding.total) == (0, 9, 1)
    assert "Probably among: 0 s2, 1 s1" in finding.text()


def test_a_range_without_any_recorded_outcome_is_lost():
    topics = WrittenTopics().write(receipts=[receipt(0, 9, due=20)])
    assert kinds(topics.account()) == {"lost": (0, 9, 20)}


def test_records_that_no_receipt_covers_are_named():
    topics = WrittenTopics().write(receipts=[receipt(0, 2, due=0), receipt(6, 9, due=0)])
    assert kinds(topics.account()) == {"unhandled": (3, 5, 3)}


def test_records_before_the_first_receipt_are_named_if_required():
    topics = WrittenTopics().write(receipts=[receipt(4, 9, due=0)])
    assert kinds(topics.account()) == {"unhandled": (0, 3, 4)}
    assert topics.account(from_first=False).holds


def test_records_that_expired_unread_are_named():
    topics = WrittenTopics(first=6, records=4).write(receipts=[receipt(0, 2, due=0), receipt(7, 9, due=0)])
    account = topics.account()
    assert [(f.kind.value, f.first, f.last, f.total) for f in account.findings.kept] == [
        ("expired", 3, 5, 3), ("unhandled", 6, 6, 1),
    ]  # fmt: skip


def test_a_record_that_was_skipped_within_a_range_is_named():
    topics = WrittenTopics().write(receipts=[receipt(0, 9, due=0, records=9)])
    assert kinds(topics.account()) == {"unread": (0, 9, 1)}


def test_records_dropped_by_compaction_are_no_finding():
    assert WrittenTopics(no_record={3, 4}).write(receipts=[receipt(0, 9, due=0)]).account().holds


def test_a_range_that_is_partly_read_again_is_a_finding():
    topics = WrittenTopics().write(*all_of(10), receipts=[receipt(0, 9, due=10)])
    topics.write(receipts=[receipt(0, 4, due=5)])
    assert kinds(topics.account()) == {"read_again": (0, 9, 10)}
    topics.write(receipts=[receipt(5, 9, due=5)])
    assert topics.account().holds


def test_a_surplus_is_a_finding_unless_an_earlier_run_explains_it():
    topics = WrittenTopics().write(*all_of(10), receipts=[receipt(0, 9, due=8)])
    assert kinds(topics.account()) == {"surplus": (0, 9, 2)}
    topics = WrittenTopics().write(receipts=[receipt(0, 9, due=10)]).write(*all_of(10), receipts=[receipt(0, 9, due=8)])
    assert topics.account().holds


def test_an_outcome_of_a_record_that_is_no_event_is_a_finding():
    topics = WrittenTopics(no_event={3}).write(outcome(3), receipts=[receipt(0, 9, due=1)])
    assert kinds(topics.account()) == {"no_event": (3, 3, 1)}


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (outcome, dead, "dead-lettered and delivered"),
        (outcome, skipped, "delivered and skipped"),
        (dead, skipped, "dead-lettered and skipped"),
    ],
)
def test_a_delivery_with_two_outcomes_is_named(first, second, said):
    topics = WrittenTopics().write(first(7), second(7), receipts=[receipt(0, 9, due=1)])
    [finding] = topics.account().findings.kept
    assert (finding.kind, finding.first, finding.subscription_id) == (Kind.CONTRADICTION, 7, "s1")
    assert said in finding.text()
    assert topics.account().lanes["direct"].counts.due == 1


@pytest.mark.parametrize("attempts", [FAILED, ()])
def test_a_postponed_delivery_not_in_the_retries_topic_is_lost(attempts):
    topics = WrittenTopics().write(postponed(7, attempts), receipts=[receipt(0, 9, due=1)], without={"retries"})
    account = topics.account()
    assert kinds(account) == {"not_handed_over": (7, 7, 1)}
    assert account.lanes["direct"].counts.lost == 1
    assert topics.account(retries_complete=False).lanes["direct"].counts.pending == 1
    assert topics.account(retries_complete=False).holds


def test_a_dead_letter_missing_from_its_topic_is_named():
    topics = WrittenTopics().write(dead(7, ()), receipts=[receipt(0, 9, due=1)], without={"dead_letters"})
    account = topics.account()
    assert kinds(account) == {"no_letter": (7, 7, 1)}
    assert account.lanes["direct"].counts.dead_lettered == 1
    assert topics.account(letters_complete=False).holds


def test_an_attempted_delivery_without_its_dead_letter_is_named():
    topics = WrittenTopics().write(dead(7), receipts=[receipt(0, 9, due=1)], without={"dead_letters"})
    assert kinds(topics.account()) == {"not_handed_over": (7, 7, 1)}


@pytest.mark.parametrize(
    ("written", "counted", "kind"), [([], 1, Kind.REJECTED_UNTOLD), ([3, 4], 1, Kind.REJECTED_UNCOUNTED), ([3], 1, None)]
)
def test_counts_of_rejected_records_are_compared_with_the_topic(written, counted, kind):
    topics = WrittenTopics(no_event={3, 4})
    topics.write(rejections=[rejection(offset) for offset in written], receipts=[receipt(0, 9, due=0, rejected=counted)])
    assert [finding.kind for finding in topics.account().findings.kept] == ([kind] if kind else [])


@pytest.mark.parametrize("reason", ["unknown_tenant", "unknown_schema"])
def test_a_record_that_only_one_lane_rejected_is_no_finding(reason):
    """Regression: a schema registered after one lane had rejected its record gave the finding `rejected_uncounted`."""
    topics = WrittenTopics().write(
        rejections=[rejection(3, reason)],
        receipts=[receipt(0, 9, due=0, rejected=1), receipt(0, 9, due=0, mode=DeliveryMode.BATCH)],
    )
    assert topics.account().holds


def test_distant_offsets_and_subscriptions_are_kept_apart():
    topics = WrittenTopics(records=1)
    far = (1 << 40) + 70_000
    topics.evidence.events[PLACE] = evidence.Events(far)
    for offset in (far, far + 1):
        topics.evidence.add_event(PLACE, offset, "order.created")
    topics.write(outcome(far), outcome(far + 1), outcome(far, subscription="s2"), receipts=[receipt(far, far + 1, due=3)])
    account = topics.account()
    assert (account.holds, account.lanes["direct"].counts.delivered) == (True, 3)


def test_findings_beyond_the_maximum_are_counted():
    count = 1200
    topics = WrittenTopics(records=count).write(
        *all_of(count), *all_of(count, dead), receipts=[receipt(0, count - 1, due=count)]
    )
    account = topics.account()
    assert (len(account.findings.kept), account.findings.by_kind) == (1000, {"contradiction": count})


def test_every_kind_of_finding_has_a_meaning_and_a_document():
    assert set(MEANINGS) == set(Kind)
    section = (ROOT / "docs" / "operations.md").read_text().partition("| finding |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == sorted(Kind, key=section.index)
