"""What a worker goes on knowing is out of the collector's way."""

import gc
import weakref

import pytest

from delivery.webhooks.lanes import gc_tuning


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Cycle:
    def __init__(self):
        self.me = self


@pytest.fixture
def collector():
    """A collector that runs when it is told to, and is as it was afterwards."""
    before = gc.get_threshold()
    gc.disable()
    yield gc_tuning.GarbageCollector(clock := Clock()), clock
    gc.unfreeze()
    gc.set_threshold(*before)
    gc.enable()


def test_what_is_alive_when_a_task_begins_is_not_walked_through_after_it(collector):
    kept = [{number: [number]} for number in range(1000)]
    collector[0].freeze()
    assert len(gc.get_objects()) < len(kept)


def test_what_nobody_refers_to_any_more_is_freed_though_it_was_put_aside(collector):
    one = type("One", (), {})()
    gone = weakref.ref(one)
    collector[0].freeze()
    del one
    assert gone() is None


def test_a_cycle_that_a_task_made_is_collected_after_it(collector):
    collector[0].freeze()
    gone = weakref.ref(Cycle())
    gc.collect()
    assert gone() is None


def test_a_cycle_that_was_put_aside_stays_until_everything_is_walked_through(collector):
    collected, clock = collector
    one = Cycle()
    gone = weakref.ref(one)
    collected.freeze()
    del one
    gc.collect()
    clock.now = gc_tuning.FULL_COLLECTION_EVERY_S - 1
    collected.freeze()
    assert gone() is not None
    clock.now = gc_tuning.FULL_COLLECTION_EVERY_S
    collected.freeze()
    assert gone() is None
