"""What a shard of the retry lane tells of its endpoints: whom the other lanes are to leave to it, and who accepts nothing."""

import pytest

from delivery.webhooks.policy import retry_decision
from delivery.webhooks.retries import retry_messages
from tests.support.retries import DAY_MS, NOW, Shard, accepted, blocked, entry, postponed, refused, reported

AN_HOUR = {"disable_after_s": 3200}
"""And an eighth, as other lanes tell what it accepts now and then."""
ACCEPTED = retry_messages.encoded(retry_messages.Postponed("ep1", "c1", [], accepts=True))


def test_an_endpoint_is_held_as_long_as_something_waits_for_it_and_its_window_is_not_open():
    shard = Shard()
    shard.step(postponed(entry(reason=retry_decision.CIRCUIT_OPEN)), postponed(entry(), endpoint="ep2"), now_ms=NOW)
    assert shard.backlog.suppressed == {"ep1"}
    [probe] = shard.step(now_ms=NOW + 5000)
    assert shard.backlog.suppressed == {"ep1"}
    shard.step(accepted(probe), now_ms=NOW + 5001)
    assert shard.backlog.suppressed == frozenset()


def test_an_endpoint_in_order_is_not_named_as_held_because_its_events_come_here_anyway():
    shard = Shard()
    [lease] = shard.step(postponed(entry(order_key="a")), now_ms=NOW)
    shard.step(blocked(lease), now_ms=NOW)
    assert (shard.backlog.events, shard.backlog.suppressed, shard.backlog.due_ms) == (1, frozenset(), NOW + 5000)


def failing(shard):
    """The endpoints that a shard tells are failing, each with times that bear it out."""
    assert all(one.failed_ms - one.since_ms >= AN_HOUR["disable_after_s"] * 1000 for one in shard.backlog.failing)
    return {one.endpoint_id for one in shard.backlog.failing}


def test_an_endpoint_is_failing_after_reports_of_failures_only_for_so_long_and_no_longer_once_it_is_disabled():
    shard, now_ms = Shard(**AN_HOUR), NOW
    [lease] = shard.step(postponed(*(entry() for _ in range(20))), now_ms=NOW)
    while now_ms < NOW + 3600_000:
        assert shard.backlog.failing == frozenset()
        shard.step(refused(lease, now_ms + 1000), now_ms=now_ms)
        now_ms, [lease] = shard.wait()
    shard.step(refused(lease, now_ms + 1000), now_ms=now_ms)
    assert failing(shard) == {"ep1"}
    now_ms, [probe] = shard.wait()
    shard.step(blocked(probe, retry_decision.ENDPOINT_DISABLED), now_ms=now_ms)
    assert shard.backlog.failing == frozenset()
    assert shard.backlog.events == 20


def not_accepted(at_ms):
    return retry_messages.encoded(retry_messages.Postponed("ep1", "c1", [], accepts=False, at_ms=at_ms))


def refused_once(at_ms):
    return postponed(entry(again_at_ms=NOW + DAY_MS, since_ms=at_ms, reason=retry_decision.REFUSED))


@pytest.mark.parametrize(("between", "is_failing"), [((), True), ((ACCEPTED,), False)])
@pytest.mark.parametrize("what_fails", [not_accepted, refused_once])
def test_an_endpoint_that_fails_now_and_then_is_failing_unless_its_own_lane_says_that_it_accepts_something(
    what_fails, between, is_failing
):
    shard = Shard(**AN_HOUR)
    for at_ms in (NOW, NOW + 1_200_000, NOW + 2_400_000):
        shard.step(what_fails(at_ms), now_ms=at_ms)
        shard.step(*between, now_ms=at_ms + 1)
        assert shard.backlog.failing == frozenset()
    for at_ms in (NOW + 3_600_000, NOW + 4_000_000):  # told again, for who was not there to hear it
        shard.step(what_fails(at_ms), now_ms=at_ms)
        assert failing(shard) == ({"ep1"} if is_failing else set())
    shard.step(now_ms=NOW + 4_000_001)
    assert shard.backlog.failing == frozenset()


def test_what_failed_before_the_lane_stood_still_is_no_news_after_it():
    shard = Shard(**AN_HOUR)
    for at_ms in (NOW, NOW + 1_500_000, NOW + 3_000_000):
        shard.step(not_accepted(at_ms), now_ms=at_ms)
    shard.step(not_accepted(NOW + 3_000_001), now_ms=NOW + 4_000_000)
    assert shard.backlog.failing == frozenset()


def test_long_after_it_failed_an_endpoint_is_asked_as_any_other_though_that_counts():
    shard = Shard(disable_after_s=DAY_MS)
    [probe] = shard.step(postponed(entry()), now_ms=NOW)
    shard.step(reported(probe, delivered=0, failed=1), now_ms=NOW)  # and became a dead letter
    later = NOW + 600_000
    shard.step(postponed(entry(again_at_ms=later + DAY_MS, since_ms=later, reason=retry_decision.REFUSED)), now_ms=later)
    assert shard.backlog.suppressed == frozenset()
    [lease] = shard.step(postponed(*(entry() for _ in range(20))), now_ms=later + 1)
    assert (len(lease.entries), lease.is_probe) == (8, False)


def test_an_endpoint_that_only_failed_is_forgotten_when_that_says_nothing_any_more():
    shard = Shard(**AN_HOUR)
    shard.step(not_accepted(NOW), now_ms=NOW)
    assert shard.backlog.due_ms is None, "nobody is woken for that"
    for at_ms, known in ((NOW + 1_599_999, ["c1/ep1", "c1/ep2"]), (NOW + 1_600_000, ["c1/ep2"])):
        shard.step(postponed(entry(again_at_ms=NOW + DAY_MS), endpoint="ep2"), now_ms=at_ms)
        assert sorted(shard.index.endpoints) == known


def test_an_endpoint_that_accepts_something_and_is_not_known_otherwise_takes_no_room():
    shard = Shard()
    assert shard.step(ACCEPTED, now_ms=NOW) == []
    assert (shard.index.endpoints, shard.last.changed) == ({}, False)


def test_what_is_accepted_and_what_is_not_counts_in_the_order_of_the_topic():
    for arrived, known in (((not_accepted(NOW), ACCEPTED), []), ((ACCEPTED, not_accepted(NOW)), ["c1/ep1"])):
        shard = Shard()
        shard.step(*arrived, now_ms=NOW)
        assert list(shard.index.endpoints) == known
