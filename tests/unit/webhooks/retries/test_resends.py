"""A resend of a delivery that waits in the retry lane brings its next attempt forward. Nothing is delivered twice."""

import pytest

from delivery.model import SkipReason
from delivery.registry_model import CustomerId, EndpointId
from delivery.webhooks.batching import segment
from delivery.webhooks.policy import retry_reasons
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.retries.leasing_bounds import LeasingBounds
from tests.support import builders
from tests.support.retries import (
    DAY_MS,
    NOW,
    Shard,
    accepted,
    entry,
    events_of,
    failed_attempt,
    ids,
    postponed,
    refused,
    reported,
    requeue,
)

HOUR_MS = 3_600_000
SCHEDULED = NOW + 10 * HOUR_MS


def waiting(**fields):
    """Return an entry that waits for its fourth attempt in ten hours, beside others of the same endpoint."""
    defaults = {"again_at_ms": SCHEDULED, "attempts": 3, "retries": 3, "history": (failed_attempt(3),)}
    return entry(**defaults | fields)


def resend_of(of, replay="rpl_1", **fields):
    """Return the message of a resend, as `fanout archive` writes it: the same event and subscription, a new entry."""
    again = entry(
        packed=of.packed,
        subscriptions=of.subscriptions,
        order_key=of.order_key,
        since_ms=NOW + 1000,
        reason=retry_reasons.REPLAYED,
        replay=replay,
        **fields,
    )
    return postponed(again, resends=True)


def split(leases):
    """Return the leases to attempt, and the entries of resends that ended because their delivery waits."""
    ended = [lease for lease in leases if lease.given_up == SkipReason.BROUGHT_FORWARD]
    assert all(lease.number == 0 for lease in ended)
    return [lease for lease in leases if lease.given_up is None], [entry for lease in ended for entry in lease.entries]


def test_the_scheduled_attempt_is_brought_forward_and_is_the_only_one():
    shard, others = Shard(), [waiting() for _ in range(5)]
    scheduled = waiting()
    shard.step(postponed(*others[:3], scheduled, *others[3:]), now_ms=NOW)
    [lease], [ended] = split(shard.step(resend_of(scheduled), now_ms=NOW + 1000))
    [leased] = lease.entries
    assert (leased.packed, leased.attempts, leased.retries, leased.replay) == (scheduled.packed, 3, 3, None)
    assert (leased.history, leased.expires_ms) == (scheduled.history, scheduled.expires_ms)
    assert (ended.packed, ended.replay) == (scheduled.packed, "rpl_1")
    shard.step(accepted(lease), now_ms=NOW + 2000)
    assert shard.backlog.events == 5
    left = []
    while not shard.is_empty():
        left += shard.wait()[1]
        shard.step(accepted(left[-1]), now_ms=SCHEDULED + 1)
    assert sorted(ids(*left)) == sorted(events_of(others))


def test_the_backlog_forgets_the_age_of_an_entry_that_was_brought_forward():
    """Regression: the bucket of the timer wheel kept the age of its oldest entry until it opened, up to ten hours later."""
    shard, oldest, other = Shard(), waiting(since_ms=NOW - HOUR_MS), waiting()
    shard.step(postponed(oldest, other), now_ms=NOW)
    [lease], _ = split(shard.step(resend_of(oldest), now_ms=NOW + 1000))
    assert shard.backlog.oldest_ms == NOW - HOUR_MS
    shard.step(accepted(lease), now_ms=NOW + 2000)
    assert (shard.backlog.events, shard.backlog.oldest_ms) == (1, NOW)


def test_a_resend_of_what_does_not_wait_is_an_attempt_of_its_own():
    shard, delivered, other = Shard(), waiting(), waiting()
    shard.step(postponed(other), now_ms=NOW)
    [lease], ended = split(shard.step(resend_of(delivered), now_ms=NOW + 1000))
    assert ([each.replay for each in lease.entries], events_of(lease.entries), ended) == (["rpl_1"], events_of([delivered]), [])
    shard.step(accepted(lease), now_ms=NOW + 2000)
    assert shard.backlog.events == 1


def test_a_repeated_resend_changes_nothing_more():
    """`fanout archive` died before it could record the resend, and writes the message again."""
    shard, scheduled = Shard(), waiting()
    shard.step(postponed(scheduled), now_ms=NOW)
    again = resend_of(scheduled)
    [lease], ended = split(shard.step(again, again, now_ms=NOW + 1000))
    assert len(ended) == 2
    leases, ended = split(shard.step(again, now_ms=NOW + 1001))
    assert (leases, len(ended)) == ([], 1)
    shard.step(accepted(lease), now_ms=NOW + 2000)
    assert shard.is_empty()


def test_two_resends_of_what_does_not_wait_are_one_attempt():
    shard, delivered = Shard(), waiting()
    both = resend_of(delivered, "rpl_1"), resend_of(delivered, "rpl_2")
    [lease], [ended] = split(shard.step(*both, now_ms=NOW))
    assert ([each.replay for each in lease.entries], ended.replay) == (["rpl_1"], "rpl_2")
    shard.step(accepted(lease), now_ms=NOW + 1)
    assert shard.is_empty()


def test_a_killed_decision_is_made_again_in_the_same_way():
    shard, scheduled = Shard(), waiting()
    shard.step(postponed(scheduled, waiting()), now_ms=NOW)
    lost = shard.decided([resend_of(scheduled)], now_ms=NOW + 1000)
    again = shard.decided([resend_of(scheduled)], now_ms=NOW + 1000)
    assert (lost.leases, lost.append, lost.drop, lost.index) == (again.leases, again.append, again.drop, again.index)


@pytest.mark.parametrize("is_resend_first", [False, True])
def test_a_resend_finds_an_entry_that_a_report_has_just_put_back(is_resend_first):
    """The endpoint asked to wait for five seconds, so the attempt is its next probe."""
    shard, first = Shard(), entry()
    [lease] = shard.step(postponed(first), now_ms=NOW)
    messages = [reported(lease, requeue(0, SCHEDULED, failed_attempt()), retry_after_s=5.0), resend_of(first)]
    leases, [_] = split(shard.step(*(reversed(messages) if is_resend_first else messages), now_ms=NOW + 1000))
    assert leases == []
    [leased] = shard.step(now_ms=NOW + 6000)
    assert (events_of(leased.entries), leased.entries[0].attempts) == (events_of([first]), 1)
    shard.step(accepted(leased), now_ms=NOW + 7000)
    assert shard.is_empty()


def test_a_leased_entry_is_the_delivery_that_the_resend_asks_for():
    shard, leased = Shard(), entry()
    [lease] = shard.step(postponed(leased), now_ms=NOW)
    assert split(shard.step(resend_of(leased), now_ms=NOW + 1))[0] == []
    shard.step(accepted(lease), now_ms=NOW + 2)
    assert shard.is_empty()


@pytest.mark.parametrize("fields", [{}, {"order_key": "k"}, {"again_at_ms": NOW}])
def test_a_resend_of_an_expired_entry_is_an_attempt_of_its_own(fields):
    """Regression: after a stop of the job, the resend was skipped for an entry that then became a dead letter."""
    shard, expired = Shard(), waiting(**{"expires_ms": NOW + 60_000, "reason": retry_reasons.CIRCUIT_OPEN} | fields)
    shard.step(postponed(expired), now_ms=NOW)
    ended, lease = shard.step(resend_of(expired), now_ms=NOW + 100_000)
    assert (ended.given_up, events_of(ended.entries)) == (retry_reasons.EXPIRED, events_of([expired]))
    assert (lease.given_up, [each.replay for each in lease.entries]) == (None, ["rpl_1"])
    shard.step(accepted(lease), now_ms=NOW + 100_001)
    assert shard.is_empty()


def test_a_leased_entry_that_has_expired_is_what_the_resend_asks_for():
    shard, leased = Shard(), entry(expires_ms=NOW + 1000)
    other = entry(expires_ms=NOW + 1000, again_at_ms=NOW + 500)
    [lease] = shard.step(postponed(leased, other), now_ms=NOW)
    shard.step(now_ms=NOW + 1500)  # the other waits behind the lease
    leases, [ended] = split(shard.step(resend_of(leased), resend_of(other), now_ms=NOW + 2000))
    assert (leases, events_of([ended])) == ([], events_of([leased]))
    [given_up, again] = shard.step(accepted(lease), now_ms=NOW + 3000)
    assert (given_up.given_up, events_of(given_up.entries)) == (retry_reasons.EXPIRED, events_of([other]))
    assert (events_of(again.entries), again.entries[0].replay) == (events_of([other]), "rpl_1")


def test_an_attempt_in_flight_is_the_delivery_that_the_resend_asks_for():
    shard, name = Shard(), b"attempt"
    in_flight = waiting(background_attempt=name)
    shard.step(postponed(in_flight), now_ms=NOW)
    leases, [ended] = split(shard.step(resend_of(in_flight), now_ms=NOW + 1000))
    assert (leases, events_of([ended])) == ([], events_of([in_flight]))
    [lease] = shard.step(now_ms=SCHEDULED)
    assert events_of(lease.entries) == events_of([in_flight])


def test_an_attempt_in_flight_counts_although_its_entry_has_expired():
    shard = Shard()
    in_flight = waiting(background_attempt=b"attempt", expires_ms=NOW + 500)
    shard.step(postponed(in_flight), now_ms=NOW)
    leases, [ended] = split(shard.step(resend_of(in_flight), now_ms=NOW + 1000))
    assert (leases, events_of([ended])) == ([], events_of([in_flight]))


@pytest.mark.parametrize("is_same_decision", [False, True])
def test_a_resend_after_a_completed_background_attempt_is_delivered(is_same_decision):
    """Regression: the entry of a completed attempt stays in the timer wheel, and the resend was skipped because of it."""
    shard, name = Shard(), b"attempt"
    ended = waiting(background_attempt=name)
    completed = retry_messages.encoded(retry_messages.Postponed.completion(EndpointId("ep1"), CustomerId("c1"), [name]))
    shard.step(postponed(ended, waiting()), now_ms=NOW)
    if not is_same_decision:
        shard.step(completed, now_ms=NOW + 500)
    arrived = [completed] if is_same_decision else []
    [lease], skipped = split(shard.step(*arrived, resend_of(ended), now_ms=NOW + 1000))
    assert ([each.replay for each in lease.entries], events_of(lease.entries), skipped) == (["rpl_1"], events_of([ended]), [])
    shard.step(accepted(lease), now_ms=NOW + 2000)
    assert shard.backlog.events == 1


def test_an_order_key_keeps_its_order_and_its_first_entry_is_due_now():
    shard, entries = Shard(), [entry(order_key="k") for _ in range(3)]
    [lease] = shard.step(postponed(*entries), now_ms=NOW)
    shard.step(refused(lease, SCHEDULED), now_ms=NOW)
    leases, [_] = split(shard.step(resend_of(entries[1]), now_ms=NOW + 1000))
    assert leases == []
    [lease], [_] = split(shard.step(resend_of(entries[0]), now_ms=NOW + 2000))
    assert ids(lease) == events_of(entries)
    shard.step(accepted(lease), now_ms=NOW + 3000)
    assert shard.is_empty()


@pytest.mark.parametrize("fields", [{"source": "/other"}, {"event_id": "another"}, {"offset": 8}, {"subscription": "s2"}])
def test_only_the_delivery_that_was_resent_is_brought_forward(fields):
    """A recreated topic has other events at the same offsets, and another subscription is another delivery."""
    record, subscription = builders.record(offset=fields.pop("offset", 7)), fields.pop("subscription", "s1")
    mine, similar = (
        segment.item(builders.event(**({"event_id": "e1", "source": "/shop"} | given)), NOW).packed
        for given in ({}, {"record": record, **fields})
    )
    shard = Shard()
    shard.step(postponed(waiting(packed=[similar], subscriptions=[subscription])), now_ms=NOW)
    [lease], ended = split(shard.step(resend_of(waiting(packed=[mine])), now_ms=NOW + 1000))
    assert (lease.entries[0].packed, ended) == ([mine], [])
    assert shard.backlog.events == 2


def test_entries_of_other_endpoints_and_batches_are_left_alone():
    shard, scheduled = Shard(), waiting()
    batch = waiting(packed=[*scheduled.packed, *entry().packed], left_by="time")
    shard.step(postponed(scheduled, endpoint="ep2"), postponed(batch), now_ms=NOW)
    [lease], ended = split(shard.step(resend_of(scheduled), now_ms=NOW + 1000))
    assert (events_of(lease.entries), ended) == (events_of([scheduled]), [])
    assert shard.backlog.events == 4


def test_a_batch_of_a_resend_is_delivered_as_before():
    """The endpoint has turned to batches since, so the resend is a batch of one event."""
    shard, scheduled = Shard(), waiting()
    shard.step(postponed(scheduled), now_ms=NOW)
    [lease], ended = split(shard.step(resend_of(scheduled, left_by="redrive"), now_ms=NOW + 1000))
    assert ([each.left_by for each in lease.entries], ended) == (["redrive"], [])


def test_an_unreadable_entry_disturbs_no_resend():
    shard, scheduled = Shard(), waiting()
    shard.step(postponed(waiting(packed=[b"?"]), scheduled), now_ms=NOW)
    [lease], [_] = split(shard.step(resend_of(scheduled), now_ms=NOW + 1000))
    assert events_of(lease.entries) == events_of([scheduled])


def test_the_search_is_bounded_and_begins_with_what_is_due_first():
    """Beyond the bound, a resend is an entry beside the one that waits: each goes out."""
    shard = Shard(bounds=LeasingBounds(max_searched_bytes=1))
    soon, late = waiting(again_at_ms=NOW + HOUR_MS), waiting(again_at_ms=NOW + 2 * DAY_MS)
    shard.step(postponed(late, soon), now_ms=NOW)
    [first], [_] = split(shard.step(resend_of(soon), now_ms=NOW + 1000))
    shard.step(accepted(first), now_ms=NOW + 1000)
    shard.step(postponed(waiting(again_at_ms=NOW + HOUR_MS)), now_ms=NOW + 1000)
    [second], ended = split(shard.step(resend_of(late), now_ms=NOW + 1000))
    assert (events_of(second.entries), ended) == (events_of([late]), [])
