"""The timer wheel returns each entry at its time, and rewrites an entry a few times however long it waits."""

from hypothesis import given, settings
from hypothesis import strategies as st

from delivery.webhooks.retries import timer_wheel
from delivery.webhooks.state import segment_store
from tests.support.retries import DAY_MS, NOW


class CountingStore(segment_store.SegmentStore):
    """A segment store that counts the items that are appended to its lists."""

    appended = 0

    def append(self, slices, item):
        self.appended += 1
        super().append(slices, item)


class Kept:
    """A timer wheel whose segments are written after each step. A step may append each entry once."""

    def __init__(self, max_due_bytes=timer_wheel.MAX_DUE_BYTES, bounds=segment_store.BOUNDS):
        self.max_due_bytes, self.bounds = max_due_bytes, bounds
        self.buckets, self.index, self.segments = {}, segment_store.SegmentIndex(), {}
        self.waiting = self.written = self.appended = 0

    def step(self, *entries, now_ms):
        store = CountingStore(self.index, self.segments.__getitem__, self.bounds)
        woken = list(timer_wheel.remove_due(self.buckets, store, now_ms, self.max_due_bytes))
        for each in entries:
            timer_wheel.add(self.buckets, store, each, now_ms)
        self.waiting += len(entries) - len(woken)
        self.appended = store.appended
        assert self.appended <= self.waiting, "an entry was appended twice"
        append, drop = store.write([timer_wheel.OWNER], lambda _: (bucket.slices for bucket in self.buckets.values()))
        for number in drop:
            del self.segments[number]
        self.segments |= append
        self.written += sum(map(len, append.values()))
        return woken

    def due_ms(self):
        return min((bucket.due_ms for bucket in self.buckets.values()), default=None)


def timer_entry(at_ms, name="c1/ep1", size=10):
    return timer_wheel.TimerEntry(name, at_ms, NOW, b"x" * size)


def seconds(most):
    """Return times of up to `most` seconds in tenths, so that buckets are often due together."""
    return st.integers(1, 10 * most).map(lambda tenths: tenths * 100)


def test_an_entry_returns_at_its_time_and_not_before():
    kept = Kept()
    kept.step(timer_entry(NOW + 36_000_000), now_ms=NOW)
    assert kept.due_ms() == NOW + 36_000_000
    assert kept.step(now_ms=NOW + 35_999_999) == []
    assert kept.step(now_ms=NOW + 36_000_000) == [timer_entry(NOW + 36_000_000)]
    assert (kept.buckets, kept.segments) == ({}, {})


def test_entries_due_within_a_second_return_together():
    kept, second = Kept(), (NOW + 5000) // 1024 * 1024
    kept.step(timer_entry(second), timer_entry(second + 1000), timer_entry(second + 1024), now_ms=NOW)
    assert kept.due_ms() == second + 1000
    assert len(kept.step(now_ms=second + 1000)) == 2
    assert kept.due_ms() == second + 1024


def test_an_entry_moves_once_into_a_bucket_that_is_due_too():
    """Regression: the entry was appended to the bucket that was just read, again and again until MAX_DUE_BYTES were read.

    The buckets behind it waited for the next decision.
    """
    kept, second = Kept(), (NOW + 36_000_000) // 1024 * 1024
    kept.step(timer_entry(second + 10, "first"), timer_entry(second + 500, "later"), now_ms=NOW)
    kept.step(timer_entry(second + 20, "beside"), now_ms=second - 3000)
    assert len(kept.buckets) == 2
    assert {each.owner for each in kept.step(now_ms=second + 20)} == {"first", "beside"}
    assert (kept.appended, kept.due_ms()) == (1, second + 500)


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 10_000), st.lists(st.integers(1, 2 * DAY_MS), max_size=5)), max_size=20))
def test_every_entry_returns_once_within_a_second_of_its_time(history):
    kept, now_ms, waiting, number = Kept(), NOW, {}, 0

    def take(woken):
        for each in woken:
            at_ms = waiting.pop(each.owner)
            assert each.at_ms == at_ms <= now_ms < at_ms + 1024

    for after_ms, waits_ms in history:
        until_ms = now_ms + after_ms
        while kept.due_ms() is not None and kept.due_ms() <= until_ms:
            now_ms = max(now_ms, kept.due_ms())
            take(kept.step(now_ms=now_ms))
        now_ms = until_ms
        entries = []
        for wait_ms in waits_ms:
            number += 1
            waiting[str(number)] = now_ms + wait_ms
            entries.append(timer_entry(now_ms + wait_ms, str(number)))
        take(kept.step(*entries, now_ms=now_ms))
    while kept.buckets:
        now_ms = kept.due_ms()
        take(kept.step(now_ms=now_ms))
    assert (waiting, kept.segments) == ({}, {})


@settings(max_examples=200)
@given(steps=st.lists(st.tuples(seconds(9), st.lists(seconds(12), max_size=12)), max_size=9))
def test_a_late_decision_moves_each_entry_at_most_once(steps):
    """Several buckets are due at once. `Kept.step` counts what a decision appends."""
    kept, now_ms = Kept(), NOW
    for after_ms, waits_ms in steps:
        now_ms += after_ms
        woken = kept.step(*(timer_entry(now_ms + wait_ms) for wait_ms in waits_ms), now_ms=now_ms)
        assert all(each.at_ms <= now_ms for each in woken)
    while kept.buckets:
        kept.step(now_ms=kept.due_ms())
    assert (kept.waiting, kept.segments) == (0, {})


def test_a_long_wait_is_rewritten_a_few_times_only():
    kept = Kept()
    kept.step(*(timer_entry(NOW + 36_000_000 + n * 100, size=1000) for n in range(100)), now_ms=NOW)
    once = kept.written
    for n in range(1000):
        kept.step(now_ms=NOW + n * 36_000)
    while kept.buckets:
        kept.step(now_ms=kept.due_ms())
    assert kept.written < 6 * once


def test_the_number_of_buckets_does_not_grow_with_the_entries():
    kept = Kept()
    kept.step(*(timer_entry(NOW + 1 + n * 7919) for n in range(9000)), now_ms=NOW)  # up to 20 hours
    assert len(kept.buckets) < 130


def test_one_call_removes_bounded_bytes_and_others_stay_due():
    kept = Kept(max_due_bytes=10_000, bounds=segment_store.StoreBounds(max_segment_bytes=5_000))
    kept.step(*(timer_entry(NOW + 5000, size=1000) for _ in range(40)), now_ms=NOW)
    woken = []
    while kept.buckets:
        assert kept.due_ms() == NOW + 5000
        woken.append(len(kept.step(now_ms=NOW + 5000)))
    assert sum(woken) == 40
    assert max(woken) <= 15
