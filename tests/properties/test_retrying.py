"""In any history of a shard, each retry entry ends once, in order and in time, and has one lease at a time."""

import collections

from hypothesis import given, settings
from hypothesis import strategies as st

from delivery.webhooks.batching import segment
from delivery.webhooks.policy import error_classes, retry_reasons
from delivery.webhooks.retries import endpoint_state, shard_scheduler
from delivery.webhooks.retries.leasing_bounds import LeasingBounds
from delivery.webhooks.state.compaction import MergeBounds
from delivery.webhooks.state.segment_store import StoreBounds
from tests.support import retries, thoroughness
from tests.support.retries import NOW

reasons = st.sampled_from(
    [
        error_classes.SERVER_ERROR,
        error_classes.SERVER_ERROR,
        retry_reasons.CIRCUIT_OPEN,
        retry_reasons.ENDPOINT_PAUSED,
        retry_reasons.ORDERED,
    ]
)
arrivals = st.fixed_dictionaries(
    {
        "endpoint": st.sampled_from(["ep1", "ep2", "ep3"]),
        "customer": st.sampled_from(["c1", "c1", "c1", "c2"]),
        "order_key": st.sampled_from([None, None, None, "a", "b", ""]),
        "events": st.integers(1, 3),
        "size": st.sampled_from([2, 2, 60, 900]),
        "wait_ms": st.sampled_from([0, 0, 0, 100, 5000, 70_000, 40_000_000]),
        "lasts_ms": st.sampled_from([1, 3000, 90_000, 10**9, 10**9]),
        "reason": reasons,
        "count": st.integers(1, 6),
    }
)
answers = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["accepted", "accepted", "failed", "mixed", "held", "lost", "repeated", "local"]),
        "wait_ms": st.sampled_from([0, 1, 400, 5000, 300_000]),
        "retry_after_s": st.sampled_from([None, None, None, 0.0, 7.5, 600.0]),
        "is_used_up": st.booleans(),
    }
)
steps = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 300, 1000, 6000, 130_000]),
        st.lists(arrivals, max_size=3),
        st.lists(answers, max_size=4),
        st.sampled_from([0, 0, 0, 40_000, 500_000]),
    ),
    max_size=25,
)


class Run:
    """Feed a shard, report its leases, and compare each lease with the entries that arrived."""

    def __init__(self, **options):
        self.shard = retries.Shard(**options)
        self.now_ms = NOW
        self.waiting = collections.defaultdict(dict)
        """By FIFO, the entries that have not ended, by id and in order."""
        self.leased = {}
        """By FIFO, its lease, when the lease began, and the time of the first decision after it (None: there was none)."""
        self.ended = collections.Counter()
        self.came = 0
        self.past = []

    def step(self, after_ms, arrived=(), given=(), behind_ms=0):
        self.now_ms += after_ms
        records = [self.arrives(**fields) for fields in arrived]
        records += [answer for fields in given for answer in self.answered(**fields)]
        for key, (lease, left_ms, first_ms) in list(self.leased.items()):
            later_ms = self.now_ms if first_ms is None else first_ms
            self.leased[key] = lease, left_ms, later_ms
            if later_ms + self.shard.policy.lease_timeout_s * 1000 + behind_ms <= self.now_ms:
                del self.leased[key]  # it may have expired
        again = self.shard.decided(records, now_ms=self.now_ms, behind_ms=behind_ms)
        leases = self.shard.step(*records, now_ms=self.now_ms, behind_ms=behind_ms)
        assert shard_scheduler.encoded(again.index) == shard_scheduler.encoded(self.shard.last.index), "it would not replay"
        assert (again.leases, again.append, again.drop) == (
            self.shard.last.leases,
            self.shard.last.append,
            self.shard.last.drop,
        )
        for lease in leases:
            self.leaves(lease)
        bounds = self.shard.bounds
        sizes = [sum(each.size for each in lease.entries) for lease in leases if lease.given_up != retry_reasons.NO_ROOM]
        # The last lease always fits, and expired entries are removed by the segment.
        assert sum(sizes[:-1]) <= bounds.max_leased_bytes + bounds.store.max_segment_bytes
        written = [sum(each.written_bytes for each in lease.entries) for lease in leases if not lease.given_up]
        assert sum(written[:-1]) <= bounds.max_leased_bytes
        self.check()

    def check(self):
        backlog, index = self.shard.backlog, self.shard.index
        assert backlog.events == sum(len(each.packed) for entries in self.waiting.values() for each in entries.values())
        assert backlog.size == sum(each.size for entries in self.waiting.values() for each in entries.values())
        assert (backlog.due_ms is None) == (backlog.events == 0), "nothing would wake it"
        kept = sum(stored.live for stored in index.segments.segments.values())
        assert kept or not backlog.events
        if self.leased:
            assert backlog.due_ms - self.shard.look_ahead_ms <= self.now_ms + endpoint_state.LEASED_POLL_MS

    def arrives(self, endpoint, customer, count, **fields):
        made = [self.made(**fields) for _ in range(count)]
        self.came += count
        for each in made:
            self.waiting[endpoint, customer, each.order_key][name(each)] = each
        return retries.postponed(*made, endpoint=endpoint, customer=customer)

    def made(self, events, size, wait_ms, lasts_ms, **fields):
        return retries.entry(
            events,
            payload=b"1" * size,
            since_ms=self.now_ms,
            again_at_ms=self.now_ms + wait_ms,
            expires_ms=self.now_ms + lasts_ms,
            **fields,
        )

    def answered(self, kind, wait_ms, retry_after_s, *, is_used_up):
        """Return the report of the oldest lease, and repeat earlier reports."""
        if not self.leased or kind == "lost":
            return []
        key = min(self.leased, key=lambda each: self.leased[each][1])
        lease, *_ = self.leased.pop(key)
        if kind == "held":
            return [retries.blocked(lease)]
        returned = {}
        for place, each in enumerate(lease.entries):
            is_stopped = lease.order_key is not None and returned
            if is_stopped:
                returned[place] = retries.requeue(place, self.now_ms, retries=each.retries, reason=each.reason)
            elif (kind in {"failed", "local"} or (kind == "mixed" and place % 2)) and not (is_used_up and place == 0):
                attempts = () if kind == "local" else (retries.failed_attempt(each.attempts + 1),)
                returned[place] = retries.requeue(place, self.now_ms + wait_ms, *attempts)
        failed = {"failed": 0} if kind == "local" else {}
        report = retries.reported(lease, *returned.values(), retry_after_s=retry_after_s, **failed)
        self.settled(key, lease, returned)
        self.past.append(report)
        return [report, *self.past[-3:]] if kind == "repeated" else [report]

    def settled(self, key, lease, returned):
        for place, each in enumerate(lease.entries):
            if place in returned:
                self.waiting[key][name(each)] = each.requeued(returned[place])
            else:
                del self.waiting[key][name(each)]
                self.ended[name(each)] += 1

    def leaves(self, lease):
        key = lease.endpoint_id, lease.customer_id, lease.order_key
        if lease.given_up:
            self.given_up(lease)
            return
        assert key not in self.leased, "one lease at a time"
        known = self.waiting[key]
        for each in lease.entries:
            assert known[name(each)] == each, "as it was"
            assert each.again_at_ms <= self.now_ms, "too early"
            assert each.expires_ms > self.now_ms, "it has expired"
        assert len(lease.entries) <= self.shard.policy.max_lease_entries
        written = sum(each.written_bytes for each in lease.entries)
        assert len(lease.entries) == 1 or written <= self.shard.bounds.max_lease_bytes
        if lease.order_key is not None:
            first = list(known)[: len(lease.entries)]
            assert [name(each) for each in lease.entries] == first, "a later one before an earlier one"
        self.leased[key] = lease, self.now_ms, None

    def given_up(self, lease):
        assert lease.number == 0
        for each in lease.entries:
            [key] = [key for key, entries in self.waiting.items() if name(each) in entries]
            assert key[:2] == (lease.endpoint_id, lease.customer_id)
            if lease.given_up == retry_reasons.EXPIRED:
                assert each.expires_ms <= self.now_ms
                assert key not in self.leased, "it may yet be delivered"
            else:
                assert lease.given_up == retry_reasons.NO_ROOM
            del self.waiting[key][name(each)]
            self.ended[name(each)] += 1

    def drain(self):
        """Accept every leased entry, at the times at which the shard is due, until the shard is empty."""
        for _ in range(3000):
            if self.shard.backlog.due_ms is None:
                break
            if self.leased:
                self.step(
                    1, given=[{"kind": "accepted", "wait_ms": 0, "retry_after_s": None, "is_used_up": False}] * len(self.leased)
                )
            else:
                self.step(max(0, self.shard.backlog.due_ms - self.now_ms))
        assert self.shard.is_empty()
        assert set(self.ended.values()) <= {1}
        assert self.ended.total() == self.came


def name(each):
    return segment.unpacked(each.packed[0]).event_id


def run_through(history, **options):
    run = Run(**options)
    run.step(0)
    for step in history:
        run.step(*step)
    run.drain()


@settings(max_examples=thoroughness.cases(60, thorough=150), deadline=None)
@given(steps)
def test_every_history_keeps_every_promise(history):
    run_through(history)


@settings(max_examples=60, deadline=None)
@given(steps, st.integers(1, 8), st.sampled_from([3, 20]), st.sampled_from([0, 500]))
def test_every_setting_keeps_every_promise(history, max_lease_entries, max_pending, look_ahead_ms):
    run_through(history, max_lease_entries=max_lease_entries, max_pending=max_pending, look_ahead_ms=look_ahead_ms)


@settings(max_examples=60, deadline=None)
@given(steps, st.integers(2, 3), st.sampled_from([64, 600]))
def test_frequent_merges_lose_nothing(history, runs, size):
    merges = MergeBounds(max_runs=runs, min_merged_size=1)
    run_through(history, bounds=LeasingBounds(store=StoreBounds(max_segment_bytes=size, merges=merges)))


@settings(max_examples=60, deadline=None)
@given(steps, st.sampled_from([1, 600, 3000]))
def test_a_backlog_beyond_one_decision_leaves_by_later_ones(history, size):
    bounds = LeasingBounds(
        max_leased_bytes=size,
        max_lease_bytes=size,
        max_due_bytes=size,
        store=StoreBounds(max_segment_bytes=600, merges=MergeBounds(max_merged_size=size)),
    )
    run_through(history, bounds=bounds)
