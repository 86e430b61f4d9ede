"""A shard of the retry lane judges all times by its own clock, whatever times a worker's clock gives."""

from tests.support.retries import NOW, Shard, entry, events_of, ids, postponed, reported, requeue

TEN_MINUTES = 600_000
TWO_MINUTES = 120_000


def test_a_clock_behind_changes_no_order_of_entries():
    shard = Shard()
    ahead = [entry(since_ms=NOW + 50), entry(since_ms=NOW + 40), entry(since_ms=NOW + 30)]
    leases = shard.step(postponed(*ahead), now_ms=NOW)
    assert ids(*leases) == events_of(ahead)


def test_an_entry_from_a_fast_clock_waits_by_the_clock_of_its_shard():
    """A worker whose clock was ten minutes fast delayed retries by ten minutes, to an endpoint that had recovered."""
    shard, fast = Shard(), NOW + TEN_MINUTES
    entries = [entry(since_ms=fast, again_at_ms=fast + 5000)]
    assert shard.step(postponed(*entries), now_ms=NOW) == []
    assert shard.step(now_ms=NOW + 4999) == []
    [lease] = shard.step(now_ms=NOW + 5000)
    assert ids(lease) == events_of(entries)


def test_a_requeue_from_a_fast_clock_waits_by_the_clock_of_its_shard():
    shard = Shard()
    [lease] = shard.step(postponed(entry()), now_ms=NOW)
    fast = NOW + TEN_MINUTES
    shard.step(reported(lease, requeue(0, fast + 5000), at_ms=fast), now_ms=NOW)
    assert shard.step(now_ms=NOW + 4999) == []
    assert [lease.number for lease in shard.step(now_ms=NOW + 5000)] == [2]


def test_a_lease_of_a_micro_batch_that_runs_again_does_not_expire_at_once():
    """Regression: the lease had the old time of its micro-batch. It expired a second later, and was in flight twice at once."""
    shard, now_ms = Shard(lease_timeout_s=120), NOW + TEN_MINUTES
    [lease] = shard.step(postponed(entry()), now_ms=NOW)
    assert shard.backlog.due_ms == NOW + 1000
    assert shard.step(now_ms=now_ms) == []
    assert shard.last.changed
    assert shard.step(now_ms=now_ms + TWO_MINUTES - 1) == []
    assert not shard.last.changed
    [again] = shard.step(now_ms=now_ms + TWO_MINUTES)
    assert (again.entries, again.number) == (lease.entries, lease.number + 1)


def test_an_entry_from_a_fast_clock_expires_by_the_clock_of_its_shard():
    shard, fast = Shard(), NOW + TEN_MINUTES
    shard.step(postponed(entry(since_ms=fast, again_at_ms=fast + 50_000, expires_ms=fast + 60_000)), now_ms=NOW)
    assert shard.step(now_ms=NOW + 49_000) == []
    shard.step(now_ms=NOW + 50_000)
    assert shard.backlog.events == 1
