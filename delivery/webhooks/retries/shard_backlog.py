"""Sum up for the driver what waits in a shard of the retry lane, and which endpoints fail. Runs in the executors. Pure."""

from __future__ import annotations

from delivery.webhooks.retries import endpoint_state, shard_scheduler
from delivery.webhooks.state import backlog


def of(decision: shard_scheduler.LeaseDecision, now_ms: int) -> backlog.ShardBacklog:
    """Return the backlog of a shard after a decision.

    `suppressed` has the suppressed endpoints for which entries without an order key wait. `failing` has the endpoints that this
    decision, made at `now_ms`, found failing. `watched` has the endpoints that accepted no request since their last failure.

    The driver wakes the lane `look_ahead_ms` before `due_ms`, but the retry lane needs no look-ahead. So `due_ms` is the time
    of the next decision about a waiting entry, plus `look_ahead_ms`. `due_ms` is None if no entry waits.
    """
    events = size = 0
    suppressed, failing, watched = set(), set(), set()
    times = [(bucket.due_ms, bucket.since_ms) for bucket in decision.index.buckets.values()]
    for key, entry in decision.index.endpoints.items():
        endpoint_id = endpoint_state.endpoint_id(key)
        if entry.is_watched:
            watched.add(endpoint_id)
        if entry.failing_ms == now_ms:
            failing.add(backlog.Failing(endpoint_id, entry.failing_since_ms, entry.failed_ms))
        if not entry.events:
            continue
        events += entry.events
        size += entry.size
        latest_ms = now_ms + endpoint_state.LEASED_POLL_MS if entry.is_leased else entry.due_ms
        times.append((min(entry.due_ms, latest_ms), entry.since_ms))
        if entry.suppressed_until_ms > now_ms:
            suppressed.add(endpoint_id)
    return backlog.ShardBacklog(
        shards=1,
        events=events,
        size=size,
        oldest_ms=min(since_ms for _, since_ms in times) if events else None,
        due_ms=min(due_ms for due_ms, _ in times) + decision.look_ahead_ms if times else None,
        suppressed=frozenset(suppressed),
        failing=frozenset(failing),
        watched=frozenset(watched),
    )
