"""Lists of many owners in few segments: in order, rewritten a few times, and gone when removed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delivery.webhooks.state import compaction, segment_store


class Kept:
    """Owners and their lists, whose segments are written after each step."""

    def __init__(self):
        self.index, self.segments, self.owners = segment_store.SegmentIndex(), {}, {}
        self.read, self.written = [], 0

    def store(self):
        return segment_store.SegmentStore(self.index, self._read)

    def write(self, of, *changed):
        append, drop = of.write(changed, lambda home: [self.owners.setdefault(home, [])])
        for number in drop:
            del self.segments[number]
        assert not self.segments.keys() & append.keys()
        self.segments |= append
        self.written += sum(map(len, append.values()))
        assert self.segments.keys() == self.index.segments.keys()

    def put(self, home, *items):
        of = self.store()
        for each in items:
            of.append(self.owners.setdefault(home, []), item(each))
        self.write(of, home)

    def items(self, home):
        return list(self.store().all_items(self.owners[home]))

    def _read(self, number):
        self.read.append(number)
        return self.segments[number]


def item(data):
    return segment_store.Item(data, 1, 2)


def test_items_keep_their_order_and_removed_items_are_gone():
    kept = Kept()
    kept.put("a", b"1", b"2")
    kept.put("a", b"3")
    of = kept.store()
    of.remove_first(kept.owners["a"], 2)
    kept.write(of, "a")
    assert (kept.items("a"), len(kept.segments)) == ([b"3"], 1)


def test_inserted_items_stay_in_front_after_a_merge(monkeypatch):
    monkeypatch.setattr(compaction, "MAX_RUNS", 2)
    kept = Kept()
    kept.put("a", b"3", b"4")
    of = kept.store()
    kept.owners["a"][:0] = of.slices([item(b"1"), item(b"2")])
    kept.write(of, "a")
    kept.put("a", b"5")
    kept.put("b", b"x")
    kept.put("a", b"6")
    assert kept.items("a") == [b"1", b"2", b"3", b"4", b"5", b"6"]


def test_a_segment_that_is_read_for_many_owners_is_read_once():
    kept = Kept()
    of = kept.store()
    for number in range(100):
        of.append(kept.owners.setdefault(f"{number:03}", []), item(b"x" * 100))
    kept.write(of, *kept.owners)
    of = kept.store()
    for slices in kept.owners.values():
        of.remove_first(slices, 1)
    assert kept.read == list(kept.segments) == [0]


def test_the_cache_is_bounded_except_for_merged_segments(monkeypatch):
    monkeypatch.setattr(segment_store, "MAX_CACHED_BYTES", 1)
    monkeypatch.setattr(compaction, "MAX_RUNS", 6)
    kept = Kept()
    for _ in range(5):
        of = kept.store()
        for home in "abcdefgh":
            of.append(kept.owners.setdefault(home, []), item(b"x"))
        kept.write(of, *kept.owners)
    kept.put("i", b"y")
    kept.read.clear()
    kept.put("i", b"y")
    assert sorted(kept.read) == [0, 1, 2, 3, 4, 5], "each once"
    assert len(kept.segments) == 1


def test_a_list_that_is_larger_than_a_segment_is_cut(monkeypatch):
    monkeypatch.setattr(segment_store, "MAX_SEGMENT_BYTES", 10)
    kept, items = Kept(), [bytes([number]) * 4 for number in range(9)]
    kept.put("a", *items)
    assert (kept.items("a"), len(kept.segments)) == (items, 5)


steps = st.lists(
    st.tuples(st.sampled_from(["put", "put", "front", "cut", "remove"]), st.sampled_from(["a", "b", "c"]), st.integers(1, 5)),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(steps, st.integers(2, 4), st.sampled_from([8, 1000]))
def test_every_history_equals_that_of_a_plain_list(history, runs, size):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(compaction, "MAX_RUNS", runs)
        patched.setattr(compaction, "MIN_MERGED_SIZE", 1)
        patched.setattr(segment_store, "MAX_SEGMENT_BYTES", size)
        kept, lists, number = Kept(), {"a": [], "b": [], "c": []}, 0
        for what, home, count in history:
            of, slices, wanted = kept.store(), kept.owners.setdefault(home, []), lists[home]
            fresh = [f"{number + each:04}".encode() for each in range(count)]
            number += count
            if what == "put":
                for each in fresh:
                    of.append(slices, item(each))
                wanted += fresh
            elif what == "front":
                slices[:0] = of.slices(map(item, fresh))
                wanted[:0] = fresh
            elif what == "cut":
                of.remove_first(slices, min(count, len(wanted)))
                del wanted[:count]
            elif slices:
                gone = len(of.items(slices[-1]))
                of.remove(slices.pop())
                del wanted[len(wanted) - gone :]
            kept.write(of, home)
            of = kept.store()
            assert {name: list(of.all_items(kept.owners.get(name, []))) for name in lists} == lists
        assert bool(kept.segments) == any(lists.values())
