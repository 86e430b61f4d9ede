"""A shard of the retry lane judges all times by its own clock, whatever times a worker's clock gives."""

from delivery.registry_model import CustomerId, EndpointId
from delivery.webhooks.retries import retry_messages
from tests.support.retries import NOW, Shard, accepted, entry, events_of, ids, postponed, reported, requeue

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


def test_a_lease_does_not_expire_while_the_shard_is_behind_in_its_topic():
    """Regression: a worker's report waited behind minutes of unread records. Its lease expired, and the report was ignored.

    The entries were leased again under a new number. So everything was sent every two minutes, until the lag was gone.
    """
    shard = Shard(lease_timeout_s=120)
    [lease] = shard.step(postponed(entry()), now_ms=NOW, behind_ms=TEN_MINUTES)
    shard.step(now_ms=NOW + 1000, behind_ms=TEN_MINUTES)
    for minutes in range(1, 11):
        assert shard.step(now_ms=NOW + minutes * 60_000, behind_ms=TEN_MINUTES) == []
    shard.step(accepted(lease), now_ms=NOW + TEN_MINUTES + 30_000, behind_ms=TEN_MINUTES)
    assert shard.is_empty()


def test_a_lease_expires_when_the_shard_has_read_past_its_timeout():
    """A lag that stays delays the expiry, and does not prevent it: a lease of a worker that died has no report."""
    shard, since_ms = Shard(lease_timeout_s=120), NOW + 1000
    shard.step(postponed(entry()), now_ms=NOW, behind_ms=TEN_MINUTES)
    shard.step(now_ms=since_ms, behind_ms=TEN_MINUTES)
    assert shard.step(now_ms=since_ms + TWO_MINUTES + TEN_MINUTES - 1, behind_ms=TEN_MINUTES) == []
    assert shard.step(now_ms=since_ms + TWO_MINUTES + TEN_MINUTES, behind_ms=TEN_MINUTES)


def test_a_shard_that_was_behind_is_woken_to_expire_a_lease():
    """The last records are read, and no other record follows. Only a wake-up then lets the lease expire."""
    shard, since_ms = Shard(lease_timeout_s=120), NOW + 1000
    shard.step(postponed(entry()), now_ms=NOW)
    shard.step(now_ms=since_ms)
    assert shard.step(now_ms=since_ms + TWO_MINUTES, behind_ms=5000) == []
    now_ms, [again] = shard.wait()
    assert (now_ms, again.number) == (since_ms + TWO_MINUTES, 2)


def test_an_entry_in_the_background_waits_while_its_completion_is_unread():
    """Regression: a lane that was more than 30 s behind sent each slow delivery again, though the endpoint had accepted it."""
    shard, wait_ms = Shard(), 32_000
    slow = entry(again_at_ms=NOW + wait_ms, background_attempt=b"a name")
    other = entry(again_at_ms=NOW + wait_ms, background_attempt=b"of a worker that died")
    [] = shard.step(postponed(slow, other), now_ms=NOW + TEN_MINUTES, behind_ms=TEN_MINUTES)
    assert shard.backlog.due_ms == NOW + wait_ms + TEN_MINUTES
    completion = retry_messages.Postponed.completion(EndpointId("ep1"), CustomerId("c1"), [b"a name"])
    # The lag grows meanwhile, so the entries go back into the timer wheel.
    [] = shard.step(now_ms=NOW + wait_ms + TEN_MINUTES, behind_ms=TEN_MINUTES + 1000)
    [] = shard.step(retry_messages.encoded(completion), now_ms=NOW + TEN_MINUTES + wait_ms + 500, behind_ms=TEN_MINUTES)
    assert shard.backlog.events == 1
    now_ms, [lease] = shard.wait()
    assert (now_ms, ids(lease)) == (NOW + wait_ms + TEN_MINUTES + 1000, events_of([other]))


def test_an_entry_in_the_background_waits_no_longer_than_the_lag_lasts():
    """Regression: after two hours of lag the entry of a worker that died waited two more hours, although all was read."""
    shard, slow = Shard(), entry(again_at_ms=NOW + 32_000, background_attempt=b"of a worker that died")
    assert shard.step(postponed(slow), now_ms=NOW, behind_ms=2 * 3_600_000) == []
    now_ms, [lease] = shard.wait()
    assert (now_ms, ids(lease)) == (NOW + retry_messages.LAG_CHECK_MS, events_of([slow]))
