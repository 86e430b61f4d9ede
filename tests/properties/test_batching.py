"""In any history of a shard of the batch lane, no event is lost, repeated, reordered, mixed, late or out of bounds."""

import collections

from hypothesis import given, settings
from hypothesis import strategies as st

from delivery.model import LeaveReason
from delivery.webhooks.batching import batcher, segment
from delivery.webhooks.batching.batcher import BatchingBounds
from delivery.webhooks.state.compaction import MergeBounds
from tests.support import builders, thoroughness
from tests.support.batches import pending_batch
from tests.support.shards import Shard

LOOK_AHEAD_MS = 300
NOW = builders.record().appended_at_ms
endpoints = st.sampled_from(["ep1", "ep2", "ep3", "ep4"])
sizes = st.sampled_from([2, 2, 2, 60, 900])
arrivals = st.fixed_dictionaries(
    {
        "endpoint": endpoints,
        "customer": st.sampled_from(["c1", "c1", "c1", "c2"]),
        "subscription": st.sampled_from(["s1", "s2"]),
        "payloads": st.lists(sizes, min_size=1, max_size=7),
        "max_events": st.sampled_from([1, 3, 5, 1000]),
        "max_wait_ms": st.sampled_from([1, 400, 1000, 5000, 60_000]),
        "max_bytes": st.sampled_from([700, 2500, 1_000_000]),
        "mark": st.sampled_from([segment.Mark.WAITS] * 4 + [segment.Mark.IMMEDIATE]),
        "age_ms": st.integers(0, 2000),
    }
)
steps = st.lists(st.tuples(st.integers(0, LOOK_AHEAD_MS), st.lists(arrivals, max_size=3)), max_size=30)


class Run:
    """Feed a shard, and compare each batch that leaves the shard with the events that arrived."""

    def __init__(self, bounds=batcher.BOUNDS):
        self.shard = Shard(LOOK_AHEAD_MS, bounds)
        self.now_ms = NOW
        self.arrived = collections.defaultdict(list)
        self.left = collections.defaultdict(list)
        self.deadlines = {}
        self.bounds = {}
        self.number = 0

    def step(self, after_ms, given_batches):
        self.now_ms += after_ms
        pending = [self.pending_batch(**fields) for fields in given_batches]
        taken = [self.take(batch) for batch in self.shard.step(pending, now_ms=self.now_ms)]
        waiting = self.shard.index.endpoints
        for key, summary in waiting.items():
            assert (summary.events, summary.bounds) == (len(self.arrived[key]) - len(self.left[key]), self.bounds[key])
        late = [key for key, summary in waiting.items() if self.is_late(key, summary)]
        if late:
            first = min(late, key=lambda key: waiting[key].oldest_ms)
            # A sending endpoint counts with all its events, also with those that fill no batch and stay.
            stayed = sum(waiting[key].size for key in {key for key, _ in taken} & waiting.keys())
            size = sum(size for _, size in taken) + stayed
            assert taken
            assert size + waiting[first].size > self.shard.bounds.max_sent_bytes, "there was room for it"
            assert batcher.backlog_of(self.shard.last).due_ms <= self.now_ms + LOOK_AHEAD_MS, "nothing will wake it"
        if not pending and len({key for key, _ in taken}) > 1:
            assert sum(size for _, size in taken) <= self.shard.bounds.max_sent_bytes
        assert waiting.keys() == {key for key, arrived in self.arrived.items() if arrived[len(self.left[key]) :]}

    def is_late(self, key, summary):
        times = [at_ms for _, at_ms, _ in self.arrived[key][len(self.left[key]) :]]
        is_due = min(times) + self.bounds[key].max_wait_ms <= self.now_ms + LOOK_AHEAD_MS
        return is_due or summary.events >= summary.bounds.max_events or summary.size >= summary.bounds.max_bytes

    def pending_batch(self, payloads, age_ms, **fields):
        events = []
        for size in payloads:
            self.number += 1
            record = builders.record(offset=self.number, appended_at_ms=self.now_ms - age_ms)
            events.append(builders.event(event_id=f"{self.number:06}", data=b"1" * size, record=record))
        made = pending_batch(*events, **fields)
        # Two pending batches of an endpoint in one step would come in either order; those of one task keep their order.
        self.arrived[made.key] += [(event.event_id, event.record.appended_at_ms, fields["subscription"]) for event in events]
        self.bounds[made.key] = made.bounds
        return made

    def take(self, batch):
        key = f"{batch.customer_id}/{batch.endpoint_id}"
        events = [segment.unpacked(packed) for packed in batch.packed]
        through = [batch.subscriptions[n] for n in batch.subscription_places] or batch.subscriptions * len(events)
        self.left[key] += [(e.event_id, e.appended_at_ms, name) for e, name in zip(events, through, strict=True)]
        assert self.left[key] == self.arrived[key][: len(self.left[key])], "lost, repeated or reordered"
        bounds = self.bounds[key]
        size = sum(segment.item(event.event(), self.now_ms).size for event in events)
        assert len(events) <= bounds.max_events
        assert size <= bounds.max_bytes or len(events) == 1
        if batch.reason is LeaveReason.COUNT:
            assert len(events) == bounds.max_events
        return key, size

    def drain(self):
        self.step(120_000, [])
        for _ in list(self.shard.index.endpoints):  # each decision sends the events of at least one endpoint
            self.step(0, [])
        assert self.left == self.arrived
        assert self.shard.is_empty()


def one_a_key(pending):
    """Return one pending batch for each endpoint: two pending batches, from two tasks, would arrive in no order."""
    return list({(each["customer"], each["endpoint"]): each for each in pending}.values())


def play(history, bounds=batcher.BOUNDS):
    """Take all steps of a history, then let all batches leave."""
    run = Run(bounds)
    for after_ms, pending in history:
        run.step(after_ms, one_a_key(pending))
    run.drain()


@settings(max_examples=thoroughness.cases(120, thorough=300), deadline=None)
@given(steps)
def test_every_history_keeps_every_promise(history):
    play(history)


@settings(max_examples=60, deadline=None)
@given(steps, st.integers(2, 3), st.sampled_from([64, 600]))
def test_frequent_merges_lose_nothing(history, runs, size):
    play(history, BatchingBounds(max_segment_bytes=size, merges=MergeBounds(max_runs=runs, min_merged_size=1)))


@settings(max_examples=thoroughness.cases(80, thorough=200), deadline=None)
@given(steps, st.sampled_from([1, 600, 3000]))
def test_a_backlog_beyond_one_decision_leaves_by_later_ones(history, size):
    merges = MergeBounds(max_merged_size=size)
    play(history, BatchingBounds(max_sent_bytes=size, max_segment_bytes=600, merges=merges))


@settings(max_examples=60, deadline=None)
@given(st.lists(arrivals, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_arriving_segments_changes_no_batch(pending, rng):
    run = Run()
    written = [value for each in pending for value, _ in segment.encoded([run.pending_batch(**each)])]
    shuffled = rng.sample(written, len(written))
    first, second = (
        batcher.decide(batcher.BatchIndex(), arrived, {}.__getitem__, now_ms=NOW + 5000, look_ahead_ms=0).batches
        for arrived in (written, shuffled)
    )
    assert first == second
