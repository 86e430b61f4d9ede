"""A entry of which an attempt goes on waits for what comes of it, and is attempted only when nothing is told."""

import msgspec

from delivery.model import CustomerId, EndpointId, NextAttempt
from delivery.webhooks.policy import retry_decision
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.retries.endpoint_state import COMPLETED_KEPT_MS
from tests.support.retries import NOW, Shard, accepted, entry, failed_attempt, postponed

WAIT_MS = 32_000
NAME = b"a name of its own"


def under_way(name=NAME, **fields):
    return entry(again_at_ms=NOW + WAIT_MS, reason=retry_decision.UNDER_WAY, background_attempt=name, **fields)


def settled(*names, entries=()):
    return retry_messages.encoded(retry_messages.Postponed(EndpointId("ep1"), CustomerId("c1"), list(entries), list(names)))


def test_what_has_ended_by_itself_waits_no_more_and_never_leaves():
    shard = Shard()
    assert shard.step(postponed(under_way()), now_ms=NOW) == []
    assert shard.backlog.events == 1
    shard.step(settled(NAME), now_ms=NOW + 1500)
    assert shard.backlog.events == 0
    assert shard.step(now_ms=NOW + WAIT_MS + 2000) == []
    assert shard.is_empty()


def test_what_nothing_is_told_of_is_attempted_when_its_time_has_come():
    shard = Shard()
    shard.step(postponed(under_way()), now_ms=NOW)
    now_ms, [lease] = shard.wait()
    assert now_ms == NOW + WAIT_MS
    assert len(lease.entries) == 1
    shard.step(accepted(lease), now_ms=now_ms + 1)
    assert shard.is_empty()


def test_what_is_told_too_late_ends_nothing_twice():
    shard = Shard()
    shard.step(postponed(under_way(), entry(again_at_ms=NOW + 10 * WAIT_MS)), now_ms=NOW)
    now_ms, [lease] = shard.wait()
    shard.step(settled(NAME), now_ms=now_ms + 1)
    assert shard.backlog.events == 2
    shard.step(accepted(lease), now_ms=now_ms + 2)
    assert shard.backlog.events == 1


def test_what_is_told_in_the_moment_in_which_it_would_leave_counts():
    shard = Shard()
    shard.step(postponed(under_way()), now_ms=NOW)
    assert shard.step(settled(NAME), now_ms=NOW + 10 * WAIT_MS) == []
    assert shard.backlog.events == 0


def test_a_parcel_that_comes_after_what_was_told_of_it_is_not_taken_in():
    for together in (True, False):
        shard = Shard()
        if together:
            shard.step(settled(NAME), postponed(under_way()), now_ms=NOW)
        else:
            shard.step(settled(NAME), now_ms=NOW - 500)
            shard.step(postponed(under_way()), now_ms=NOW)
        assert shard.backlog.events == 0
        assert shard.is_empty()


def test_what_was_told_without_a_parcel_is_forgotten():
    shard = Shard()
    shard.step(settled(NAME), now_ms=NOW)
    shard.step(postponed(entry(), endpoint="ep2"), now_ms=NOW + COMPLETED_KEPT_MS)
    assert shard.index.endpoints.keys() == {"c1/ep2"}


def test_two_parcels_of_the_same_event_are_told_apart():
    shard = Shard()
    one = under_way()
    shard.step(postponed(one, msgspec.structs.replace(one, background_attempt=b"another")), now_ms=NOW)
    shard.step(settled(NAME), now_ms=NOW + 1)
    assert shard.backlog.events == 1
    assert [len(lease.entries) for lease in shard.wait()[1]] == [1]


def test_what_failed_by_itself_comes_anew_with_its_story_beside_what_is_settled():
    shard = Shard()
    shard.step(postponed(under_way()), now_ms=NOW)
    failed = entry(again_at_ms=NOW + 5000, attempts=1, history=(failed_attempt(),))
    shard.step(postponed(failed), settled(NAME), now_ms=NOW + 2000)
    assert shard.backlog.events == 1
    now_ms, [lease] = shard.wait()
    assert (now_ms, lease.entries) == (NOW + 5000, [failed])


def test_after_a_further_attempt_it_is_a_parcel_like_any_other():
    returned = under_way().requeued(
        retry_messages.Requeue(0, NextAttempt(NOW, 1), retry_decision.SERVER_ERROR, (failed_attempt(),))
    )
    assert returned.background_attempt is None


def test_when_the_lane_was_away_for_so_long_that_its_time_has_passed_it_leaves_at_once_and_is_counted_once():
    shard = Shard()
    [lease] = shard.step(postponed(under_way(since_ms=NOW)), now_ms=NOW + 2 * WAIT_MS)
    shard.step(settled(NAME), accepted(lease), now_ms=NOW + 2 * WAIT_MS + 1)
    assert shard.backlog.events == 0


def test_it_is_taken_in_though_there_is_no_room_since_it_may_be_accepted_any_moment():
    shard = Shard(max_pending=1)
    assert shard.step(postponed(entry(again_at_ms=NOW + 5000), under_way()), now_ms=NOW) == []
    assert shard.backlog.events == 2
