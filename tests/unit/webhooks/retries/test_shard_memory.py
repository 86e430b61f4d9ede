"""The bytes that one decision of a shard leases or gives up are bounded, attempt histories included."""

from delivery.webhooks.policy import retry_reasons
from delivery.webhooks.retries.leasing_bounds import LeasingBounds
from delivery.webhooks.state.segment_store import StoreBounds
from tests.support.retries import NOW, Shard, accepted, entry, events_of, failed_attempt, ids, postponed

HISTORY = tuple(failed_attempt(number, response=b"x" * 1024) for number in range(1, 11))
"""Ten attempts with 1 KiB of response each: about 12 KiB, beside some 300 bytes of event."""
BOUNDS = LeasingBounds(
    max_lease_bytes=30_000,  # two entries
    max_leased_bytes=60_000,  # five entries
    store=StoreBounds(max_segment_bytes=13_000),  # one entry, as expired entries are removed by the slice
)


def test_the_bytes_of_a_decision_include_the_attempt_histories():
    """Regression: only events counted, so one redrive of small events with long histories ran the lane out of memory."""
    shard = Shard(bounds=BOUNDS)
    names = [f"ep{number}" for number in range(6)]
    leases = shard.step(*(postponed(*(entry(history=HISTORY) for _ in range(3)), endpoint=name) for name in names), now_ms=NOW)
    sizes = []
    while leases:
        sizes.append([len(lease.entries) for lease in leases])
        leases = shard.step(*map(accepted, leases), now_ms=NOW)
    assert sizes == [[2, 2, 2], [2, 2, 2], [1, 1, 1, 1, 1], [1]], "a decision ends after the lease that exceeds its bytes"


def test_the_bytes_of_expired_entries_include_the_attempt_histories():
    """Regression: only events counted, so one decision gave up an unbounded number of bytes."""
    shard, waits = Shard(bounds=BOUNDS), {"reason": retry_reasons.CIRCUIT_OPEN, "expires_ms": NOW + 1000}
    entries = [entry(history=HISTORY, **waits) for _ in range(8)]
    shard.step(postponed(*entries), now_ms=NOW)
    first, second = (shard.step(now_ms=NOW + 1000) for _ in range(2))
    assert [len(lease.entries) for lease in first] == [2, 2, 1]
    assert [len(lease.entries) for lease in second] == [2, 1]
    assert ids(*first, *second) == events_of(entries)


def test_the_bytes_of_entries_without_room_include_the_attempt_histories():
    """Regression: only events counted, so a worker got leases of a hundred MiB."""
    shard = Shard(bounds=BOUNDS, max_pending=0)
    leases = shard.step(postponed(*(entry(history=HISTORY) for _ in range(5))), now_ms=NOW)
    assert [(lease.given_up, len(lease.entries)) for lease in leases] == [(retry_reasons.NO_ROOM, n) for n in (2, 2, 1)]
