"""A lane runs in the event loop of its worker, and its results reach the task's thread."""

import contextlib
import threading

from delivery.webhooks.lanes import drain_gate, lane_driver
from delivery.webhooks.results.task_results import Results
from tests.support import fakes


class Lane:
    """A lane without deliveries. Each call of `submit` and the call of `finish` return results of their own."""

    async def submit(self, chunk):
        return Results(most_in_flight=len(chunk))

    async def finish(self):
        return Results(most_in_flight=100)

    def drain(self):
        return Results()

    def abandon(self):
        pass


def test_the_state_of_the_worker_is_added_in_the_event_loop():
    """Regression: the state was read in the task's thread, while the event loop added hosts to the same dictionary.

    The task failed with "dictionary changed size during iteration", and its deliveries were repeated.
    """
    threads = []

    def complete(results):
        threads.append(threading.current_thread().name)
        results.waited_for_hosts = 7
        return results

    with contextlib.closing(lane_driver.LoopThread()) as thread:
        gate = drain_gate.DrainGate(fakes.FakeSender(lambda *_: None, fakes.Clock()))
        driver = lane_driver.LaneDriver(thread, Lane(), gate, lambda: None, complete)
        results = list(driver.results([["a"], ["b", "c"]]))

    assert [(part.most_in_flight, part.waited_for_hosts) for part in results] == [(1, 0), (2, 0), (100, 7)]
    assert threads == ["deliveries"]
