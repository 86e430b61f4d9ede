"""The segment store keeps lists of many owners in few segments: in order, and without removed items."""

import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from delivery.webhooks.state import segment_store
from delivery.webhooks.state.compaction import MergeBounds
from delivery.webhooks.state.segment_store import StoreBounds


class Kept:
    """The lists of some owners, in a segment store whose segments are written after each step."""

    def __init__(self, bounds=segment_store.BOUNDS):
        self.bounds = bounds
        self.index, self.segments, self.owners = segment_store.SegmentIndex(), {}, {}
        self.read, self.written = [], 0

    def store(self):
        return segment_store.SegmentStore(self.index, self._read, self.bounds)

    def write(self, store, *changed):
        append, drop = store.write(changed, lambda owner: [self.owners.setdefault(owner, [])])
        for number in drop:
            del self.segments[number]
        assert not self.segments.keys() & append.keys()
        self.segments |= append
        self.written += sum(map(len, append.values()))
        assert self.segments.keys() == self.index.segments.keys()

    def put(self, owner, *items):
        store = self.store()
        for each in items:
            store.append(self.owners.setdefault(owner, []), item(each))
        self.write(store, owner)

    def items(self, owner):
        return list(self.store().all_items(self.owners[owner]))

    def _read(self, number):
        self.read.append(number)
        return self.segments[number]


def item(data):
    return segment_store.StoredItem(data, 1, 2)


def test_items_keep_their_order_and_removed_items_are_gone():
    kept = Kept()
    kept.put("a", b"1", b"2")
    kept.put("a", b"3")
    store = kept.store()
    store.remove_first(kept.owners["a"], 2)
    kept.write(store, "a")
    assert (kept.items("a"), len(kept.segments)) == ([b"3"], 1)


def test_inserted_items_stay_in_front_after_a_merge():
    kept = Kept(StoreBounds(merges=MergeBounds(max_runs=2)))
    kept.put("a", b"3", b"4")
    store = kept.store()
    kept.owners["a"][:0] = store.slices([item(b"1"), item(b"2")])
    kept.write(store, "a")
    kept.put("a", b"5")
    kept.put("b", b"x")
    kept.put("a", b"6")
    assert kept.items("a") == [b"1", b"2", b"3", b"4", b"5", b"6"]


def test_a_segment_that_is_read_for_many_owners_is_read_once():
    kept = Kept()
    store = kept.store()
    for number in range(100):
        store.append(kept.owners.setdefault(f"{number:03}", []), item(b"x" * 100))
    kept.write(store, *kept.owners)
    store = kept.store()
    for slices in kept.owners.values():
        store.remove_first(slices, 1)
    assert kept.read == list(kept.segments) == [0]


def test_a_merge_reads_each_segment_once_despite_a_small_cache():
    kept = Kept(StoreBounds(max_cached_bytes=1, merges=MergeBounds(max_runs=6)))
    for _ in range(5):
        store = kept.store()
        for owner in "abcdefgh":
            store.append(kept.owners.setdefault(owner, []), item(b"x"))
        kept.write(store, *kept.owners)
    kept.put("i", b"y")
    kept.read.clear()
    kept.put("i", b"y")
    assert sorted(kept.read) == [0, 1, 2, 3, 4, 5]
    assert len(kept.segments) == 1


def test_a_merge_holds_only_live_items():
    """Regression: a merge held all its segments in memory, removed items too: gigabytes, and again after each restart."""
    kept = Kept(StoreBounds(merges=MergeBounds(max_merged_size=0)))  # as if the backlog were too large for a merge
    for number in range(50):
        names = [f"drained-{number}-{each}" for each in range(9)]
        store = kept.store()
        for name in names:
            store.append(kept.owners.setdefault(name, []), item(b"x" * 10_000))
        store.append(kept.owners.setdefault(f"live-{number}", []), item(str(number).encode()))
        kept.write(store, *kept.owners)
        store = kept.store()
        for name in names:
            store.remove_first(kept.owners[name], 1)
        kept.write(store)
    kept.bounds = segment_store.BOUNDS
    assert len(kept.segments) == 50
    segment_bytes = max(map(len, kept.segments.values()))
    tracemalloc.start()
    try:
        kept.put("new", b"y")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * segment_bytes, "one segment and the live items"
    assert len(kept.segments) == 1
    assert [kept.items(f"live-{number}") for number in range(50)] == [[str(number).encode()] for number in range(50)]


def test_a_list_that_is_larger_than_a_segment_is_cut():
    kept, items = Kept(StoreBounds(max_segment_bytes=10)), [bytes([number]) * 4 for number in range(9)]
    kept.put("a", *items)
    assert (kept.items("a"), len(kept.segments)) == (items, 5)


steps = st.lists(
    st.tuples(st.sampled_from(["put", "put", "front", "cut", "remove"]), st.sampled_from(["a", "b", "c"]), st.integers(1, 5)),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(steps, st.integers(2, 4), st.sampled_from([8, 1000]))
def test_any_steps_leave_the_items_that_plain_lists_have(history, runs, size):
    bounds = StoreBounds(max_segment_bytes=size, merges=MergeBounds(max_runs=runs, min_merged_size=1))
    kept, lists, number = Kept(bounds), {"a": [], "b": [], "c": []}, 0
    for step, owner, count in history:
        store, slices, wanted = kept.store(), kept.owners.setdefault(owner, []), lists[owner]
        fresh = [f"{number + each:04}".encode() for each in range(count)]
        number += count
        if step == "put":
            for each in fresh:
                store.append(slices, item(each))
            wanted += fresh
        elif step == "front":
            slices[:0] = store.slices(map(item, fresh))
            wanted[:0] = fresh
        elif step == "cut":
            store.remove_first(slices, min(count, len(wanted)))
            del wanted[:count]
        elif slices:
            gone = len(store.items(slices[-1]))
            store.remove(slices.pop())
            del wanted[len(wanted) - gone :]
        kept.write(store, owner)
        store = kept.store()
        assert {name: list(store.all_items(kept.owners.get(name, []))) for name in lists} == lists
    assert bool(kept.segments) == any(lists.values())
