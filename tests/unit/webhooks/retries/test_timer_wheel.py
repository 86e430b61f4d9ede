"""What waits until a time comes back then, and is written few times however long it waits."""

from hypothesis import given, settings
from hypothesis import strategies as st

from delivery.webhooks.retries import timer_wheel
from delivery.webhooks.state import segment_store
from tests.support.retries import DAY_MS, NOW


class Kept:
    """A wheel whose segments are written after each look at it."""

    def __init__(self):
        self.buckets, self.stock, self.segments = {}, segment_store.SegmentIndex(), {}
        self.written = 0

    def step(self, *sleepers, now_ms):
        of = segment_store.SegmentStore(self.stock, self.segments.__getitem__)
        woken = list(timer_wheel.remove_due(self.buckets, of, now_ms))
        for each in sleepers:
            timer_wheel.add(self.buckets, of, each, now_ms)
        append, drop = of.write([timer_wheel.OWNER], lambda _: (one.slices for one in self.buckets.values()))
        for number in drop:
            del self.segments[number]
        self.segments |= append
        self.written += sum(map(len, append.values()))
        return woken

    def due_ms(self):
        return min((one.due_ms for one in self.buckets.values()), default=None)


def sleeper(at_ms, name="c1/ep1", size=10):
    return timer_wheel.TimerEntry(name, at_ms, NOW, b"x" * size)


def test_what_waits_comes_back_at_its_time_and_not_before():
    kept = Kept()
    kept.step(sleeper(NOW + 36_000_000), now_ms=NOW)
    assert kept.due_ms() == NOW + 36_000_000
    assert kept.step(now_ms=NOW + 35_999_999) == []
    assert kept.step(now_ms=NOW + 36_000_000) == [sleeper(NOW + 36_000_000)]
    assert (kept.buckets, kept.segments) == ({}, {})


def test_what_is_due_within_a_second_comes_back_together():
    kept, second = Kept(), (NOW + 5000) // 1024 * 1024
    kept.step(sleeper(second), sleeper(second + 1000), sleeper(second + 1024), now_ms=NOW)
    assert kept.due_ms() == second + 1000
    assert len(kept.step(now_ms=second + 1000)) == 2
    assert kept.due_ms() == second + 1024


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 10_000), st.lists(st.integers(1, 2 * DAY_MS), max_size=5)), max_size=20))
def test_nothing_comes_early_nothing_more_than_a_second_late_and_nothing_twice(history):
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
        sleepers = []
        for wait_ms in waits_ms:
            number += 1
            waiting[str(number)] = now_ms + wait_ms
            sleepers.append(sleeper(now_ms + wait_ms, str(number)))
        take(kept.step(*sleepers, now_ms=now_ms))
    while kept.buckets:
        now_ms = kept.due_ms()
        take(kept.step(now_ms=now_ms))
    assert (waiting, kept.segments) == ({}, {})


def test_a_long_wait_is_written_a_few_times_and_not_with_each_look():
    kept = Kept()
    kept.step(*(sleeper(NOW + 36_000_000 + n * 100, size=1000) for n in range(100)), now_ms=NOW)
    once = kept.written
    for n in range(1000):
        kept.step(now_ms=NOW + n * 36_000)
    while kept.buckets:
        kept.step(now_ms=kept.due_ms())
    assert kept.written < 6 * once


def test_there_are_few_buckets_however_much_waits():
    kept = Kept()
    kept.step(*(sleeper(NOW + 1 + n * 7919) for n in range(9000)), now_ms=NOW)  # up to 20 hours
    assert len(kept.buckets) < 130


def test_one_look_takes_a_bounded_part_and_the_rest_is_due_at_once(monkeypatch):
    monkeypatch.setattr(timer_wheel, "MAX_DUE_BYTES", 10_000)
    monkeypatch.setattr(segment_store, "MAX_SEGMENT_BYTES", 5_000)
    kept = Kept()
    kept.step(*(sleeper(NOW + 5000, size=1000) for _ in range(40)), now_ms=NOW)
    woken = []
    while kept.buckets:
        assert kept.due_ms() == NOW + 5000
        woken.append(len(kept.step(now_ms=NOW + 5000)))
    assert sum(woken) == 40
    assert max(woken) <= 15
