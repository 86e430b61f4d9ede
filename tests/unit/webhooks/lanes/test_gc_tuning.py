"""Long-lived objects of a worker are excluded from garbage collection."""

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
    """A collector that runs on demand. Its settings are restored afterwards."""
    before = gc.get_threshold()
    gc.disable()
    yield gc_tuning.GarbageCollector(clock := Clock()), clock
    gc.unfreeze()
    gc.set_threshold(*before)
    gc.enable()


def test_frozen_objects_are_not_traversed(collector):
    kept = [{number: [number]} for number in range(1000)]
    collector[0].freeze()
    assert len(gc.get_objects()) < len(kept)


def test_an_unreferenced_frozen_object_is_freed(collector):
    unreferenced = type("Unreferenced", (), {})()
    gone = weakref.ref(unreferenced)
    collector[0].freeze()
    del unreferenced
    assert gone() is None


def test_a_cycle_of_one_task_is_collected_after_it(collector):
    collector[0].freeze()
    gone = weakref.ref(Cycle())
    gc.collect()
    assert gone() is None


def test_a_frozen_cycle_stays_until_a_full_collection(collector):
    collected, clock = collector
    cycle = Cycle()
    gone = weakref.ref(cycle)
    collected.freeze()
    del cycle
    gc.collect()
    clock.now = gc_tuning.FULL_COLLECTION_EVERY_S - 1
    collected.freeze()
    assert gone() is not None
    clock.now = gc_tuning.FULL_COLLECTION_EVERY_S
    collected.freeze()
    assert gone() is None
