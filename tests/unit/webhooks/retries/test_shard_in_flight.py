"""A parcel of which an attempt goes on waits for what comes of it, and is attempted only when nothing is told."""

import msgspec

from delivery.model import Again, CustomerId, EndpointId
from delivery.webhooks.policy import retry_decision
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.retries.endpoint_state import SETTLED_KEPT_MS
from tests.support.retries import NOW, Shard, accepted, failed_attempt, postponed, waiting

WAIT_MS = 32_000
NAME = b"a name of its own"


def under_way(name=NAME, **fields):
    return waiting(again_at_ms=NOW + WAIT_MS, reason=retry_decision.UNDER_WAY, under_way=name, **fields)


def settled(*names, parcels=()):
    return retry_messages.encoded(retry_messages.Postponed(EndpointId("ep1"), CustomerId("c1"), list(parcels), list(names)))


def test_what_has_ended_by_itself_waits_no_more_and_never_leaves():
    shard = Shard()
    assert shard.step(postponed(under_way()), now_ms=NOW) == []
    assert shard.told.events == 1
    shard.step(settled(NAME), now_ms=NOW + 1500)
    assert shard.told.events == 0
    assert shard.step(now_ms=NOW + WAIT_MS + 2000) == []
    assert shard.is_empty()


def test_what_nothing_is_told_of_is_attempted_when_its_time_has_come():
    shard = Shard()
    shard.step(postponed(under_way()), now_ms=NOW)
    now_ms, [turn] = shard.wait()
    assert now_ms == NOW + WAIT_MS
    assert len(turn.parcels) == 1
    shard.step(accepted(turn), now_ms=now_ms + 1)
    assert shard.is_empty()


def test_what_is_told_too_late_ends_nothing_twice():
    shard = Shard()
    shard.step(postponed(under_way(), waiting(again_at_ms=NOW + 10 * WAIT_MS)), now_ms=NOW)
    now_ms, [turn] = shard.wait()
    shard.step(settled(NAME), now_ms=now_ms + 1)
    assert shard.told.events == 2
    shard.step(accepted(turn), now_ms=now_ms + 2)
    assert shard.told.events == 1


def test_what_is_told_in_the_moment_in_which_it_would_leave_counts():
    shard = Shard()
    shard.step(postponed(under_way()), now_ms=NOW)
    assert shard.step(settled(NAME), now_ms=NOW + 10 * WAIT_MS) == []
    assert shard.told.events == 0


def test_a_parcel_that_comes_after_what_was_told_of_it_is_not_taken_in():
    for together in (True, False):
        shard = Shard()
        if together:
            shard.step(settled(NAME), postponed(under_way()), now_ms=NOW)
        else:
            shard.step(settled(NAME), now_ms=NOW - 500)
            shard.step(postponed(under_way()), now_ms=NOW)
        assert shard.told.events == 0
        assert shard.is_empty()


def test_what_was_told_without_a_parcel_is_forgotten():
    shard = Shard()
    shard.step(settled(NAME), now_ms=NOW)
    shard.step(postponed(waiting(), endpoint="ep2"), now_ms=NOW + SETTLED_KEPT_MS)
    assert shard.index.endpoints.keys() == {"c1/ep2"}


def test_two_parcels_of_the_same_event_are_told_apart():
    shard = Shard()
    one = under_way()
    shard.step(postponed(one, msgspec.structs.replace(one, under_way=b"another")), now_ms=NOW)
    shard.step(settled(NAME), now_ms=NOW + 1)
    assert shard.told.events == 1
    assert [len(turn.parcels) for turn in shard.wait()[1]] == [1]


def test_what_failed_by_itself_comes_anew_with_its_story_beside_what_is_settled():
    shard = Shard()
    shard.step(postponed(under_way()), now_ms=NOW)
    failed = waiting(again_at_ms=NOW + 5000, attempts=1, story=(failed_attempt(),))
    shard.step(postponed(failed), settled(NAME), now_ms=NOW + 2000)
    assert shard.told.events == 1
    now_ms, [turn] = shard.wait()
    assert (now_ms, turn.parcels) == (NOW + 5000, [failed])


def test_after_a_further_attempt_it_is_a_parcel_like_any_other():
    returned = under_way().returned(retry_messages.Back(0, Again(NOW, 1), retry_decision.SERVER_ERROR, (failed_attempt(),)))
    assert returned.under_way is None


def test_when_the_lane_was_away_for_so_long_that_its_time_has_passed_it_leaves_at_once_and_is_counted_once():
    shard = Shard()
    [turn] = shard.step(postponed(under_way(since_ms=NOW)), now_ms=NOW + 2 * WAIT_MS)
    shard.step(settled(NAME), accepted(turn), now_ms=NOW + 2 * WAIT_MS + 1)
    assert shard.told.events == 0


def test_it_is_taken_in_though_there_is_no_room_since_it_may_be_accepted_any_moment():
    shard = Shard(max_pending=1)
    assert shard.step(postponed(waiting(again_at_ms=NOW + 5000), under_way()), now_ms=NOW) == []
    assert shard.told.events == 2
