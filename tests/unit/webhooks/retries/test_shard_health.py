"""A shard of the retry lane reports its suppressed and its failing endpoints."""

import itertools

import msgspec
import pytest

from delivery.webhooks.leases import lease_triage
from delivery.webhooks.policy import error_classes, retry_reasons
from delivery.webhooks.retries import endpoint_state, health_hints, retry_messages, shard_scheduler
from tests.support.retries import (
    DAY_MS,
    NOW,
    Shard,
    accepted,
    blocked,
    entry,
    failed_attempt,
    postponed,
    refused,
    reported,
    requeue,
)

AN_HOUR = {"disable_after_s": 3200}
"""With an eighth more, because other lanes report acceptances that late."""
ACCEPTED = retry_messages.encoded(retry_messages.Postponed("ep1", "c1", [], accepts=True, at_ms=NOW))


def test_an_endpoint_with_entries_is_suppressed_until_it_has_recovered():
    shard = Shard()
    shard.step(postponed(entry(reason=retry_reasons.CIRCUIT_OPEN)), postponed(entry(), endpoint="ep2"), now_ms=NOW)
    assert shard.backlog.suppressed == {"ep1"}
    [probe] = shard.step(now_ms=NOW + 5000)
    assert shard.backlog.suppressed == {"ep1"}
    shard.step(accepted(probe), now_ms=NOW + 5001)
    assert shard.backlog.suppressed == frozenset()


def test_a_failed_endpoint_is_watched_until_a_worker_reports_an_acceptance():
    shard = Shard()
    failed, redriven = entry(again_at_ms=NOW + DAY_MS), entry(again_at_ms=NOW + DAY_MS, reason=retry_reasons.REDRIVEN)
    shard.step(postponed(failed), postponed(redriven, endpoint="ep2"), now_ms=NOW)
    assert shard.backlog.watched == {"ep1"}
    shard.step(now_ms=NOW + 1)
    assert shard.backlog.watched == {"ep1"}
    shard.step(ACCEPTED, now_ms=NOW + 2)
    assert (shard.backlog.watched, shard.backlog.events) == (frozenset(), 2)


def test_a_failed_endpoint_in_the_state_of_an_earlier_version_is_watched():
    """Regression: nobody reported its acceptances, and one failure days later disabled it."""
    shard = Shard()
    shard.step(postponed(entry(again_at_ms=NOW + DAY_MS)), now_ms=NOW)
    index = shard.index
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(index.endpoints["c1/ep1"]))[:10]
    fields[8] = 0  # earlier versions wrote `failing_since_ms` only for an endpoint that is to be disabled
    index.endpoints["c1/ep1"] = msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=endpoint_state.IndexEntry)
    shard.index_bytes = shard_scheduler.encoded(index)
    shard.step(now_ms=NOW + 1)
    assert shard.backlog.watched == {"ep1"}
    shard.step(ACCEPTED, now_ms=NOW + 2)
    assert shard.backlog.watched == frozenset()


@pytest.mark.parametrize("every", [50, 10, 5, 2])
def test_an_endpoint_that_fails_now_and_then_recovers_from_a_back_off(every):
    """Regression: one failure in a lease halved the window. The endpoint stayed suppressed, and its backlog grew."""
    shard, requests, reports = Shard(), itertools.count(1), []
    waiting = [entry(reason=retry_reasons.CIRCUIT_OPEN) for _ in range(500)]
    for second in range(20):
        leases = shard.step(postponed(*waiting), *reports, now_ms=NOW + second * 1000)
        failed = [[place for place in range(len(lease.entries)) if next(requests) % every == 0] for lease in leases]
        reports = [
            reported(lease, *(requeue(place, NOW + DAY_MS, failed_attempt()) for place in places))
            for lease, places in zip(leases, failed, strict=True)
        ]
        waiting = [entry(reason=retry_reasons.CIRCUIT_OPEN) for _ in range(20)] if shard.backlog.suppressed else []
    assert (shard.backlog.suppressed, shard.backlog.events) == (frozenset(), (next(requests) - 1) // every)


def poison_retries(leases, now_ms):
    """Return the reports of leases whose entries all fail again, as a worker makes them."""
    attempt = failed_attempt(started_at_ms=now_ms)
    return [
        reported(
            lease,
            *(requeue(place, now_ms + 60_000, attempt) for place in range(len(lease.entries))),
            poison=sum(lease_triage.is_poison(each, attempt, lease.accepted_ms) for each in lease.entries),
            at_ms=now_ms,
        )
        for lease in leases
    ]


@pytest.mark.parametrize(("hint_every_s", "suppressed_s"), [(health_hints.WATCHED_S, 0), (1000, 285)])
def test_an_endpoint_that_always_fails_some_events_is_not_suppressed(hint_every_s, suppressed_s):
    """Regression: the retry lane sees only the events that fail. Two in a hundred suppressed the endpoint most of the time.

    Each second one more event fails, and is attempted again after 5 s, then each minute. A worker reports that the endpoint
    accepts other events, at most every `hint_every_s` seconds.
    """
    shard, reports, suppressed = Shard(), [], 0
    for second in range(300):
        now_ms = NOW + second * 1000
        failed = entry(again_at_ms=now_ms + 5000, since_ms=now_ms, history=(failed_attempt(started_at_ms=now_ms - 10),))
        hints = [retry_messages.encoded(retry_messages.Postponed.health_hint("ep1", "c1", accepts=True, at_ms=now_ms))]
        leases = shard.step(postponed(failed), *reports, *(hints if second % hint_every_s == 0 else []), now_ms=now_ms)
        reports = poison_retries(leases, now_ms)
        suppressed += bool(shard.backlog.suppressed)
    assert (suppressed, shard.backlog.events) == (pytest.approx(suppressed_s, abs=10), 300)


def test_an_outage_right_after_an_acceptance_soon_causes_a_back_off():
    """Regression: each of 200 entries that had failed before the acceptance was attempted once, without a back-off."""
    shard, reports, requests = Shard(), [], 0
    failed = [entry(again_at_ms=NOW + 5000, history=(failed_attempt(started_at_ms=NOW - 1000),)) for _ in range(200)]
    shard.step(postponed(*failed), ACCEPTED, now_ms=NOW)
    for second in range(1, 61):
        leases = shard.step(*reports, now_ms=NOW + second * 1000)
        reports = poison_retries(leases, NOW + second * 1000)
        requests += sum(len(lease.entries) for lease in leases)
    assert requests < 25
    assert shard.backlog.suppressed == {"ep1"}


def test_a_throttling_endpoint_gets_at_most_twice_what_it_takes():
    """The endpoint accepts five requests of each lease, and answers the others by 429."""
    shard, sizes, now_ms = Shard(), [], NOW
    too_many = failed_attempt(status=429, error_class=error_classes.THROTTLED)
    leases = shard.step(postponed(*(entry() for _ in range(200))), now_ms=now_ms)
    for _ in range(20):
        now_ms += 1000
        [lease] = leases
        sizes.append(len(lease.entries))
        refusals = [requeue(place, NOW + DAY_MS, too_many) for place in range(5, len(lease.entries))]
        leases = shard.step(reported(lease, *refusals, is_throttled=bool(refusals)), now_ms=now_ms)
    assert sizes == [8, 4] * 10


def test_an_ordered_endpoint_is_not_suppressed():
    shard = Shard()
    [lease] = shard.step(postponed(entry(order_key="a")), now_ms=NOW)
    shard.step(blocked(lease), now_ms=NOW)
    assert (shard.backlog.events, shard.backlog.suppressed, shard.backlog.due_ms) == (1, frozenset(), NOW + 5000)


def failing(shard):
    """Return the endpoints that a shard reports as failing, after a check of the reported times."""
    assert all(failure.failed_ms - failure.since_ms >= AN_HOUR["disable_after_s"] * 1000 for failure in shard.backlog.failing)
    return {failure.endpoint_id for failure in shard.backlog.failing}


def test_an_endpoint_is_failing_after_failures_only_until_disabled():
    shard, now_ms = Shard(**AN_HOUR), NOW
    [lease] = shard.step(postponed(*(entry() for _ in range(20))), now_ms=NOW)
    while now_ms < NOW + 3600_000:
        assert shard.backlog.failing == frozenset()
        shard.step(refused(lease, now_ms + 1000), now_ms=now_ms)
        now_ms, [lease] = shard.wait()
    shard.step(refused(lease, now_ms + 1000), now_ms=now_ms)
    assert failing(shard) == {"ep1"}
    now_ms, [probe] = shard.wait()
    shard.step(blocked(probe, retry_reasons.ENDPOINT_DISABLED), now_ms=now_ms)
    assert shard.backlog.failing == frozenset()
    assert shard.backlog.events == 20


def not_accepted(at_ms):
    return retry_messages.encoded(retry_messages.Postponed("ep1", "c1", [], accepts=False, at_ms=at_ms))


def refused_once(at_ms):
    return postponed(entry(again_at_ms=NOW + DAY_MS, since_ms=at_ms, reason=error_classes.REFUSED))


@pytest.mark.parametrize(("between", "is_failing"), [((), True), ((ACCEPTED,), False)])
@pytest.mark.parametrize("what_fails", [not_accepted, refused_once])
def test_an_acceptance_in_a_fast_lane_keeps_an_endpoint_from_failing(what_fails, between, is_failing):
    shard = Shard(**AN_HOUR)
    for at_ms in (NOW, NOW + 1_200_000, NOW + 2_400_000):
        shard.step(what_fails(at_ms), now_ms=at_ms)
        shard.step(*between, now_ms=at_ms + 1)
        assert shard.backlog.failing == frozenset()
    for at_ms in (NOW + 3_600_000, NOW + 4_000_000):  # reported again, for a driver that missed the first report
        shard.step(what_fails(at_ms), now_ms=at_ms)
        assert failing(shard) == ({"ep1"} if is_failing else set())
    shard.step(now_ms=NOW + 4_000_001)
    assert shard.backlog.failing == frozenset()


def test_a_failure_before_a_stop_is_not_reported_after_it():
    shard = Shard(**AN_HOUR)
    for at_ms in (NOW, NOW + 1_500_000, NOW + 3_000_000):
        shard.step(not_accepted(at_ms), now_ms=at_ms)
    shard.step(not_accepted(NOW + 3_000_001), now_ms=NOW + 4_000_000)
    assert shard.backlog.failing == frozenset()


def test_an_old_failure_counts_but_does_not_narrow_the_window():
    shard = Shard(disable_after_s=DAY_MS)
    [probe] = shard.step(postponed(entry()), now_ms=NOW)
    shard.step(reported(probe, delivered=0, failed=1), now_ms=NOW)  # and became a dead letter
    later = NOW + 600_000
    shard.step(postponed(entry(again_at_ms=later + DAY_MS, since_ms=later, reason=error_classes.REFUSED)), now_ms=later)
    assert shard.backlog.suppressed == frozenset()
    [lease] = shard.step(postponed(*(entry() for _ in range(20))), now_ms=later + 1)
    assert (len(lease.entries), lease.is_probe) == (8, False)


def test_a_failing_endpoint_is_forgotten_after_a_silence():
    shard = Shard(**AN_HOUR)
    shard.step(not_accepted(NOW), now_ms=NOW)
    assert shard.backlog.due_ms is None, "nobody is woken for that"
    for at_ms, known in ((NOW + 1_599_999, ["c1/ep1", "c1/ep2"]), (NOW + 1_600_000, ["c1/ep2"])):
        shard.step(postponed(entry(again_at_ms=NOW + DAY_MS), endpoint="ep2"), now_ms=at_ms)
        assert sorted(shard.index.endpoints) == known


def test_an_accepting_unknown_endpoint_is_not_stored():
    shard = Shard()
    assert shard.step(ACCEPTED, now_ms=NOW) == []
    assert (shard.index.endpoints, shard.last.changed) == ({}, False)


def test_health_hints_count_in_the_order_of_the_topic():
    for arrived, known in (((not_accepted(NOW), ACCEPTED), []), ((ACCEPTED, not_accepted(NOW)), ["c1/ep1"])):
        shard = Shard()
        shard.step(*arrived, now_ms=NOW)
        assert list(shard.index.endpoints) == known
