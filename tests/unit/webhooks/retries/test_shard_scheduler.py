"""A shard of the retry lane leases due entries, and keeps every entry until it has ended."""

import pytest

from delivery import errors
from delivery.webhooks.policy import retry_reasons
from delivery.webhooks.retries import shard_scheduler
from delivery.webhooks.retries.endpoint_state import EndpointState
from delivery.webhooks.retries.leasing_bounds import LeasingBounds
from tests.support.retries import (
    DAY_MS,
    NOW,
    Shard,
    accepted,
    blocked,
    entry,
    events_of,
    failed_attempt,
    ids,
    postponed,
    refused,
    reported,
    requeue,
)

MINUTE_MS = 60_000


def test_a_due_entry_is_leased_at_once_and_ends_with_its_report():
    shard, entries = Shard(), [entry(), entry()]
    [lease] = shard.step(postponed(*entries), now_ms=NOW)
    assert (lease.entries, lease.number, lease.given_up) == (entries, 1, None)
    assert shard.backlog.events == 2
    assert shard.step(accepted(lease), now_ms=NOW + 1) == []
    assert shard.is_empty()


def test_an_entry_is_never_leased_early_despite_the_look_ahead():
    shard = Shard(look_ahead_ms=500)
    shard.step(postponed(entry(again_at_ms=NOW + 5000)), now_ms=NOW)
    assert shard.backlog.due_ms == NOW + 5500
    assert shard.step(now_ms=NOW + 4999) == []
    assert len(shard.step(now_ms=NOW + 5000)) == 1


def test_a_fifo_has_one_lease_and_is_due_again_each_second():
    shard = Shard()
    [lease] = shard.step(postponed(*[entry() for _ in range(10)]), now_ms=NOW)
    assert shard.backlog.due_ms == NOW + 1000
    assert shard.step(postponed(entry()), now_ms=NOW + 1) == []
    [following] = shard.step(accepted(lease), now_ms=NOW + 2)
    assert (len(lease.entries), len(following.entries)) == (8, 3)


def test_an_expired_lease_is_repeated_and_a_late_report_ignored():
    shard = Shard(lease_timeout_s=120)
    [lost] = shard.step(postponed(entry(), entry()), now_ms=NOW)
    assert shard.step(now_ms=NOW + 1000) == shard.step(now_ms=NOW + 120_999) == []
    [lease] = shard.step(now_ms=NOW + 121_000)
    assert (lease.entries, lease.number) == (lost.entries, lost.number + 1)
    shard.step(now_ms=NOW + 122_000)
    before = shard.index_bytes
    assert shard.step(accepted(lost), now_ms=NOW + 122_001) == []
    assert shard.index_bytes == before
    shard.step(accepted(lease), accepted(lease), accepted(lost), now_ms=NOW + 122_002)
    assert shard.is_empty()


def test_a_report_with_another_number_of_entries_is_ignored():
    """A job that is killed and restarted with another `retry.max_turn` makes another lease of the same records."""
    shard = Shard()
    [lease] = shard.step(postponed(*[entry() for _ in range(3)]), now_ms=NOW)
    assert shard.step(accepted(lease, entries=2), now_ms=NOW + 1) == []
    assert shard.backlog.events == 3
    shard.step(accepted(lease, entries=3), now_ms=NOW + 2)
    assert shard.is_empty()


def test_a_report_for_an_earlier_fifo_of_the_key_is_ignored():
    shard = Shard()
    [first] = shard.step(postponed(entry()), now_ms=NOW)
    shard.step(accepted(first), now_ms=NOW)
    shard.step(now_ms=NOW + DAY_MS)
    shard.step(postponed(entry()), now_ms=NOW + DAY_MS)
    shard.step(accepted(first), now_ms=NOW + DAY_MS)
    assert shard.backlog.events == 1


def test_a_failed_entry_waits_with_its_attempt_history():
    shard = Shard()
    [lease] = shard.step(postponed(entry(), entry()), now_ms=NOW)
    attempt = failed_attempt(3)
    shard.step(reported(lease, requeue(1, NOW + MINUTE_MS, attempt, retries=2, reason="timeout")), now_ms=NOW + 1)
    assert shard.backlog.events == 1
    assert shard.step(now_ms=NOW + MINUTE_MS - 1) == []
    [again] = shard.step(now_ms=NOW + MINUTE_MS)
    [requeued] = again.entries
    assert (requeued.retries, requeued.attempts, requeued.reason, requeued.history) == (2, 3, "timeout", (attempt,))
    assert requeued.packed == lease.entries[1].packed


def test_the_same_record_may_arrive_twice():
    shard, record = Shard(), postponed(entry())
    [lease] = shard.step(record, record, now_ms=NOW)
    shard.step(accepted(lease), now_ms=NOW)
    assert shard.is_empty()


def test_a_replayed_entry_stands_beside_the_one_that_waits():
    """The replay of a time range neither moves nor replaces scheduled attempts. A resend does: test_resends.py."""
    shard = Shard()
    waiting = entry(again_at_ms=NOW + 60_000, attempts=3, retries=3, history=(failed_attempt(3),))
    shard.step(postponed(waiting), now_ms=NOW)
    resent = entry(packed=waiting.packed, since_ms=NOW + 1000, reason=retry_reasons.REPLAYED, replay="rpl_1")
    [lease] = shard.step(postponed(resent), now_ms=NOW + 1000)
    assert lease.entries == [resent]
    shard.step(accepted(lease), now_ms=NOW + 2000)
    assert shard.backlog.events == 1
    now_ms, [scheduled] = shard.wait()
    assert (now_ms, scheduled.entries) == (NOW + 60_000, [waiting])


def test_an_expired_entry_is_given_up_whatever_it_waits_for():
    shard = Shard()
    lasting, due = entry(expires_ms=NOW + 9 * MINUTE_MS, reason=retry_reasons.CIRCUIT_OPEN), {"expires_ms": NOW + 4000}
    short, asleep = entry(**due), entry(again_at_ms=NOW + DAY_MS, **due)
    shard.step(postponed(lasting, short, asleep), now_ms=NOW)
    assert shard.backlog.due_ms == NOW + 4000
    assert shard.step(now_ms=NOW + 3999) == []
    leases = shard.step(now_ms=NOW + 4000)
    assert [(lease.given_up, lease.number, lease.order_key) for lease in leases] == [(retry_reasons.EXPIRED, 0, None)]
    assert ids(*leases) == events_of([short, asleep])
    assert shard.backlog.events == 1


def test_a_leased_entry_expires_only_when_requeued():
    shard = Shard()
    [lease] = shard.step(postponed(entry(expires_ms=NOW + 10)), now_ms=NOW)
    assert shard.step(postponed(entry()), now_ms=NOW + 20) == []
    [given_up] = shard.step(blocked(lease), now_ms=NOW + 30)
    assert (given_up.given_up, given_up.entries) == (retry_reasons.EXPIRED, lease.entries)
    assert shard.backlog.events == 1


def test_entries_beyond_max_pending_of_one_endpoint_are_given_up():
    shard, entries = Shard(max_pending=5), [entry(2) for _ in range(4)]
    leases = shard.step(postponed(*entries), postponed(entry(5), endpoint="ep2"), now_ms=NOW)
    [beyond] = [lease for lease in leases if lease.given_up]
    assert (beyond.given_up, beyond.number, ids(beyond)) == (retry_reasons.NO_ROOM, 0, events_of(entries[2:]))
    assert shard.backlog.events == 9


def test_a_large_redrive_leaves_half_of_the_room_to_live_deliveries():
    """Regression: a redrive of `max_pending` events took all room, and each live delivery that failed became a dead letter."""
    shard, redriven = Shard(max_pending=6), [entry(reason=retry_reasons.REDRIVEN) for _ in range(7)]
    [beyond] = [lease for lease in shard.step(postponed(*redriven), now_ms=NOW) if lease.given_up]
    assert (beyond.given_up, ids(beyond)) == (retry_reasons.NO_ROOM, events_of(redriven[3:]))
    live = [entry() for _ in range(4)]
    [beyond] = [lease for lease in shard.step(postponed(*live), now_ms=NOW) if lease.given_up]
    assert ids(beyond) == events_of(live[3:])


def test_a_paused_backlog_is_leased_in_order_after_resume():
    shard, backlog = Shard(), [entry(reason=retry_reasons.ENDPOINT_PAUSED) for _ in range(40)]
    now_ms = NOW
    for begun in range(0, 40, 4):
        leases = shard.step(postponed(*backlog[begun : begun + 4]), now_ms=now_ms)
        while leases:
            leases = shard.step(*(blocked(lease) for lease in leases), now_ms=now_ms)
        now_ms += 7000
    assert shard.backlog.events == 40
    assert shard.backlog.suppressed == {"ep1"}
    left = []
    while not shard.is_empty():
        now_ms = max(now_ms, shard.backlog.due_ms)
        left += shard.step(*map(accepted, left[-1:]), now_ms=now_ms)
    assert ids(*left) == events_of(backlog)
    assert [len(lease.entries) for lease in left] == [1, 2, 4, 8, 16, 9]


def test_an_order_key_stops_at_a_failure_and_other_keys_go_on():
    shard = Shard()
    mine, others = [entry(order_key="a") for _ in range(3)], [entry(order_key="b") for _ in range(3)]
    [lease, other] = shard.step(postponed(mine[0], others[0], mine[1], mine[2]), now_ms=NOW)
    assert (ids(lease), ids(other)) == (events_of(mine), events_of(others[:1]))
    shard.step(postponed(entry(order_key="a")), refused(lease, NOW + 5000), accepted(other), now_ms=NOW + 1)
    assert shard.backlog.due_ms == NOW + 5000
    [flowing] = shard.step(postponed(*others[1:]), now_ms=NOW + 2)
    assert ids(flowing) == events_of(others[1:])
    assert shard.step(accepted(flowing), now_ms=NOW + 4999) == []
    [again] = shard.step(now_ms=NOW + 5000)
    assert (again.order_key, ids(again)[:3], len(again.entries)) == ("a", events_of(mine), 4)
    assert [each.attempts for each in again.entries] == [1, 0, 0, 0]


def test_a_dead_ordered_endpoint_is_probed_by_each_key_in_turn():
    shard, now_ms = Shard(), NOW
    leases = shard.step(*(postponed(entry(order_key=f"k{n:02}")) for n in range(20)), now_ms=now_ms)
    assert len(leases) == 8
    asked = [lease.order_key for lease in leases]
    while len(asked) < 40:
        now_ms += 1000
        leases = shard.step(*(refused(lease, now_ms + 5000) for lease in leases), now_ms=now_ms)
        asked += [lease.order_key for lease in leases]
    assert len(leases) == 1
    assert len(set(asked[:20])) == 20


def test_a_recovering_endpoint_gets_a_probe_then_doubling_leases():
    shard = Shard(max_lease_entries=32)
    [lease] = shard.step(postponed(*[entry() for _ in range(100)]), now_ms=NOW)
    shard.step(refused(lease, NOW + DAY_MS), now_ms=NOW)
    assert shard.backlog.suppressed == {"ep1"}
    assert shard.step(now_ms=NOW + 4999) == []
    sizes, now_ms = [], NOW + 5000
    leases = shard.step(now_ms=now_ms)
    while leases:
        [lease] = leases
        sizes.append(len(lease.entries))
        leases = shard.step(accepted(lease), now_ms=now_ms)
    assert sizes == [1, 2, 4, 8, 16, 32, 29]
    assert shard.backlog.suppressed == frozenset(), "it is open again"


def test_a_lease_of_a_failing_endpoint_is_a_probe():
    shard = Shard()
    [lease] = shard.step(postponed(*[entry()] * 8), now_ms=NOW)
    assert not lease.is_probe
    shard.step(refused(lease, NOW), now_ms=NOW)
    at, [lease] = shard.wait()
    assert lease.is_probe
    [lease] = shard.step(accepted(lease), postponed(*[entry()] * 200), now_ms=at)
    assert lease.is_probe  # it was held, and its window opens again
    for _ in range(4):
        [lease] = shard.step(accepted(lease), now_ms=at)
    assert (lease.is_probe, len(lease.entries)) == (True, 32)
    [lease] = shard.step(accepted(lease), now_ms=at)
    assert (lease.is_probe, len(lease.entries)) == (False, 64)
    deferred = Shard()
    deferred.step(postponed(entry(reason=retry_reasons.CIRCUIT_OPEN)), now_ms=NOW)
    _, [lease] = deferred.wait()
    assert lease.is_probe


def test_after_a_failed_probe_another_entry_is_the_next_probe():
    shard, entries = Shard(), [entry(reason=retry_reasons.CIRCUIT_OPEN) for _ in range(3)]
    shard.step(postponed(*entries), now_ms=NOW)
    probes = []
    for _ in range(4):
        now_ms, [lease] = shard.wait()
        probes.append(lease)
        shard.step(refused(lease, now_ms + 5000), now_ms=now_ms)
    assert ids(*probes) == events_of([*entries, entries[0]])


def test_the_bytes_of_a_lease_with_several_entries_are_bounded():
    small, large = [entry(payload=b"1" * 200) for _ in range(4)], entry(payload=b"1" * 5000)
    shard = Shard(bounds=LeasingBounds(max_lease_bytes=3 * small[0].written_bytes))
    sizes, leases = [], shard.step(postponed(*small, large, small[0]), now_ms=NOW)
    while leases:
        sizes += [len(lease.entries) for lease in leases]
        leases = shard.step(*map(accepted, leases), now_ms=NOW)
    assert sizes == [3, 1, 1, 1]


def test_entries_beyond_a_decisions_bytes_are_due_at_once():
    shard = Shard(bounds=LeasingBounds(max_leased_bytes=1))
    names = [f"ep{number}" for number in range(5)]
    leases = shard.step(*(postponed(*(entry() for _ in range(40)), endpoint=name) for name in names), now_ms=NOW)
    asked = []
    for _ in range(10):
        asked += [lease.endpoint_id for lease in leases]
        assert shard.backlog.due_ms <= NOW
        leases = shard.step(*map(accepted, leases), now_ms=NOW)
    assert asked == names * 2


def test_entries_of_a_former_customer_of_an_endpoint_stay_apart():
    shard = Shard()
    mine, theirs = shard.step(postponed(entry()), postponed(entry(), customer="c2"), now_ms=NOW)
    assert (mine.customer_id, theirs.customer_id) == ("c1", "c2")
    shard.step(refused(mine, NOW + DAY_MS), accepted(theirs), now_ms=NOW)
    assert shard.backlog.events == 1


def test_an_entry_that_waits_for_the_registry_delays_no_other():
    shard = Shard()
    [lease] = shard.step(postponed(entry(), entry()), now_ms=NOW)
    behind = requeue(0, NOW + 5000, retries=0, reason=retry_reasons.REGISTRY_BEHIND)
    other = entry()
    [next_lease] = shard.step(reported(lease, behind), postponed(other), now_ms=NOW + 1)
    assert [each.packed for each in next_lease.entries] == [other.packed]
    shard.step(accepted(next_lease), now_ms=NOW + 2)
    now_ms, [again] = shard.wait()
    assert now_ms >= NOW + 5000
    assert again.entries[0].packed == lease.entries[0].packed


def test_a_decision_with_nothing_to_do_changes_nothing():
    shard = Shard()
    shard.step(postponed(entry(again_at_ms=NOW + 5000)), now_ms=NOW)
    before = shard.index_bytes
    assert shard.step(now_ms=NOW + 10) == []
    assert (shard_scheduler.encoded(shard.last.index), shard.last.changed) == (before, False)


def test_an_endpoint_without_entries_is_forgotten_after_a_minute():
    shard = Shard()
    [lease] = shard.step(postponed(entry()), now_ms=NOW)
    shard.step(accepted(lease), now_ms=NOW)
    assert (len(shard.index.endpoints), shard.backlog.due_ms) == (1, None)
    shard.step(postponed(entry(again_at_ms=NOW + DAY_MS), endpoint="ep2"), now_ms=NOW + 60_000)
    assert list(shard.index.endpoints) == ["c1/ep2"]


def test_a_growing_backlog_has_few_segments_and_few_rewrites():
    shard, entries = Shard(), [entry(reason=retry_reasons.ENDPOINT_PAUSED) for _ in range(400)]
    for each in entries:
        shard.step(postponed(each), now_ms=NOW)
    assert len(shard.segments) < 20
    assert shard.bytes_written < shard.bytes_kept() * 7  # 4^5 > 400: each is merged five times, and written first
    [summary] = shard.index.endpoints.values()
    assert len(summary.written) < 400


def test_removed_items_do_not_stay_because_of_other_owners():
    shard, big = Shard(), {"payload": b"1" * 1000}
    for lease in range(50):
        patient = postponed(entry(reason=retry_reasons.CIRCUIT_OPEN), endpoint="patient")
        leases = shard.step(patient, postponed(*(entry(**big) for _ in range(100)), endpoint="hasty"), now_ms=NOW)
        while leases:
            leases = shard.step(*map(accepted, leases), now_ms=NOW)
        assert lease < 10 or shard.bytes_kept() < 400_000


def test_entries_that_expire_one_by_one_cause_few_rewrites():
    shard = Shard()
    backlog = [entry(reason=retry_reasons.CIRCUIT_OPEN, expires_ms=NOW + 1000 + n) for n in range(200)]
    shard.step(postponed(*backlog), now_ms=NOW)
    written = shard.bytes_written
    expired = [lease for n in range(200) for lease in shard.step(now_ms=NOW + 1000 + n)]
    assert ids(*expired) == events_of(backlog)
    assert shard.bytes_written < written * 3
    assert shard.is_empty()


def test_a_shard_without_state_has_an_empty_index():
    assert shard_scheduler.decoded(None) == shard_scheduler.RetryIndex()


def test_a_segment_of_another_version_is_refused_by_name():
    shard = Shard()
    shard.step(postponed(entry(reason=retry_reasons.CIRCUIT_OPEN)), now_ms=NOW)
    shard.segments = dict.fromkeys(shard.segments, b"\x63")
    with pytest.raises(errors.StateUnreadable, match="a segment of the retry lane has format 99, and this version"):
        shard.step(now_ms=NOW + 5000)


def test_an_older_index_without_the_newest_fields_can_be_read():
    for version in (1, shard_scheduler.VERSION):
        assert shard_scheduler.decoded(bytes((version,)) + b"\x91\x07").last_lease == 7


def test_an_entry_behind_an_expired_one_does_not_wait_for_it():
    shard = Shard()
    first = entry(order_key="a", again_at_ms=NOW + DAY_MS, expires_ms=NOW + 1000)
    assert shard.step(postponed(first, entry(order_key="a")), now_ms=NOW) == []
    given_up, lease = shard.step(now_ms=NOW + 1000)
    assert (given_up.given_up, given_up.order_key, lease.number) == (retry_reasons.EXPIRED, "a", 1)


def test_new_keys_do_not_starve_an_old_one():
    shard, now_ms = Shard(max_lease_entries=1), NOW
    leases = shard.step(postponed(entry(order_key="old")), now_ms=now_ms)
    for number in range(10):
        now_ms += 1000
        fresh = postponed(entry(order_key=f"a{number}"), entry(order_key=f"b{number}"))
        leases = shard.step(*(refused(lease, now_ms + 1000) for lease in leases), fresh, now_ms=now_ms)
        if number and leases[0].order_key == "old":
            break
    assert leases[0].order_key == "old"


def test_unattempted_entries_are_requeued_in_front():
    shard, entries = Shard(max_lease_entries=4), [entry() for _ in range(6)]
    [lease] = shard.step(postponed(*entries), now_ms=NOW)
    shard.step(reported(lease, requeue(2, NOW + 5000), requeue(3, NOW + 5000)), now_ms=NOW + 1)
    assert shard.step(now_ms=NOW + 4999) == []
    [following] = shard.step(now_ms=NOW + 5000)
    assert ids(following) == events_of(entries[2:])


def test_free_slots_are_computed_once_per_endpoint_not_per_key(monkeypatch):
    reckoned, room = [], EndpointState.free_slots
    monkeypatch.setattr(EndpointState, "free_slots", lambda self, policy: reckoned.append(1) or room(self, policy))
    Shard().step(postponed(*(entry(order_key=str(number)) for number in range(100))), now_ms=NOW)
    assert len(reckoned) == 2, "to let leases leave, and to say when there is room again"
