"""Leases share the slots of their worker. Each endpoint holds fewer slots than are free, and who holds fewest comes first."""

import asyncio
import random

import pytest

from delivery.webhooks.leases.worker_slots import WorkerSlots
from tests.simulation import virtual


class Callers:
    """Callers that hold a slot for a time. It has the endpoints that got slots, in order, and those that waited in vain."""

    def __init__(self, slots):
        self.slots = WorkerSlots(slots)
        self.began = []
        self.in_vain = []
        self.held = self.most = 0

    def call(self, endpoint_id, hold_s=10.0, within_s=60.0):
        return asyncio.create_task(self._hold(endpoint_id, hold_s, within_s))

    async def _hold(self, endpoint_id, hold_s, within_s):
        async with self.slots.slot(endpoint_id, within_s) as has_slot:
            if not has_slot:
                self.in_vain.append(endpoint_id)
                return
            self.began.append(endpoint_id)
            self.held += 1
            self.most = max(self.most, self.held)
            try:
                await asyncio.sleep(hold_s)
            finally:
                self.held -= 1


def test_an_endpoint_holds_fewer_slots_than_are_free():
    async def main():
        callers = Callers(8)
        for endpoint_id in ("slow", "late", "later", "latest"):
            for _ in range(8):
                callers.call(endpoint_id)
            await asyncio.sleep(1)
        return callers.began

    assert virtual.run(main()) == 4 * ["slow"] + 2 * ["late"] + ["later", "latest"]


def test_the_endpoint_with_the_fewest_slots_is_next():
    async def main():
        callers = Callers(2)
        callers.call("busy", hold_s=5)
        callers.call("brief", hold_s=1)
        for endpoint_id in ("busy", "first", "second", "busy"):
            callers.call(endpoint_id, hold_s=1)
        await asyncio.sleep(30)
        return callers.began

    assert virtual.run(main()) == ["busy", "brief", "first", "second", "busy", "busy"]


@pytest.mark.parametrize("within_s", [2.0, 0.0, float("-inf")])
def test_a_caller_waits_no_longer_than_it_may(within_s):
    async def main():
        callers = Callers(1)
        callers.call("holder", hold_s=5)
        await asyncio.sleep(0)
        await callers.call("other", within_s=within_s)
        waited_s = asyncio.get_running_loop().time()
        await asyncio.sleep(10)
        await callers.call("third", hold_s=1)
        return waited_s, callers.in_vain, callers.began

    assert virtual.run(main()) == (max(within_s, 0.0), ["other"], ["holder", "third"])


def test_a_caller_that_is_cancelled_when_it_gets_its_slot_leaves_it_to_others():
    async def main():
        callers = Callers(1)
        holder = callers.call("holder")
        await asyncio.sleep(0)
        waiting = callers.call("other")
        await asyncio.sleep(1)
        holder.cancel()
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
        await callers.call("third", hold_s=1)
        return callers.began

    assert virtual.run(main()) == ["holder", "third"]


@pytest.mark.parametrize("seed", range(20))
def test_no_slot_is_lost_or_given_twice(seed):
    async def main():
        rng, callers, tasks = random.Random(seed), Callers(4), []
        for _ in range(300):
            tasks.append(callers.call(f"ep{rng.randrange(6)}", rng.uniform(0, 2), rng.uniform(0, 5)))
            await asyncio.sleep(rng.uniform(0, 0.2))
            if rng.random() < 0.2:
                rng.choice(tasks).cancel()
        await asyncio.wait(tasks)
        most, callers.most = callers.most, 0
        for number in range(4):
            callers.call(f"new{number}")
        await asyncio.sleep(1)
        slots = callers.slots
        return most, callers.held, slots._waiting, len(slots._line), set(slots._held)

    assert virtual.run(main()) == (4, 4, {}, 0, {f"new{number}" for number in range(4)})
