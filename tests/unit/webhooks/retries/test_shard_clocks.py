"""A shard of the retry lane goes by its own clock, whatever moment a worker reports."""

from tests.support.retries import NOW, Shard, back, events_of, ids, postponed, reported, waiting

TEN_MINUTES = 600_000


def test_a_clock_that_is_behind_changes_no_order():
    shard = Shard()
    ahead = [waiting(since_ms=NOW + 50), waiting(since_ms=NOW + 40), waiting(since_ms=NOW + 30)]
    turns = shard.step(postponed(*ahead), now_ms=NOW)
    assert ids(*turns) == events_of(ahead)


def test_what_a_worker_tells_from_the_future_waits_as_long_as_it_would_by_the_clock_of_its_shard():
    """A worker ten minutes ahead put retries ten minutes into the future: an endpoint that was well again got nothing."""
    shard, fast = Shard(), NOW + TEN_MINUTES
    parcels = [waiting(since_ms=fast, again_at_ms=fast + 5000)]
    assert shard.step(postponed(*parcels), now_ms=NOW) == []
    assert shard.step(now_ms=NOW + 4999) == []
    [turn] = shard.step(now_ms=NOW + 5000)
    assert ids(turn) == events_of(parcels)


def test_what_comes_back_from_a_worker_that_is_ahead_waits_as_long_as_it_would_by_the_clock_of_its_shard():
    shard = Shard()
    [turn] = shard.step(postponed(waiting()), now_ms=NOW)
    fast = NOW + TEN_MINUTES
    shard.step(reported(turn, back(0, fast + 5000), at_ms=fast), now_ms=NOW)
    assert shard.step(now_ms=NOW + 4999) == []
    assert [one.number for one in shard.step(now_ms=NOW + 5000)] == [2]


def test_what_a_worker_tells_from_the_future_expires_by_the_clock_of_its_shard():
    shard, fast = Shard(), NOW + TEN_MINUTES
    shard.step(postponed(waiting(since_ms=fast, again_at_ms=fast + 50_000, expires_ms=fast + 60_000)), now_ms=NOW)
    assert shard.step(now_ms=NOW + 49_000) == []
    shard.step(now_ms=NOW + 50_000)
    assert shard.told.events == 1
