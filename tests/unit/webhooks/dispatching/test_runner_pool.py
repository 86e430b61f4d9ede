"""The runners of a dispatcher: their number, their idling and their failure."""

import asyncio

import pytest

from delivery.webhooks.dispatching import runner_pool


class Work:
    """Items that runners take from `ready`. Each ends with the next result of `ends`."""

    def __init__(self, max_runners):
        self.ready, self.taken, self.ends, self.failed = [], [], asyncio.Queue(), asyncio.Event()
        self.pool = runner_pool.RunnerPool(max_runners, self.ready, attempt_next=self.attempt_next, on_failure=self.failed.set)

    async def attempt_next(self, runner):
        self.taken.append((self.ready.pop(), runner))
        end = await self.ends.get()
        if isinstance(end, Exception):
            raise end
        return end

    async def offer(self, count):
        """Add items one after another, and let the runners begin."""
        for number in range(count):
            self.ready.append(number)
            self.pool.start()
        await asyncio.sleep(0)

    async def detached(self):
        """Offer one item, and return its runner, detached."""
        await self.offer(1)
        [(_, runner)] = self.taken
        self.pool.detach(runner)
        return runner


def test_there_are_at_most_as_many_runners_as_allowed():
    async def play():
        work = Work(max_runners=2)
        await work.offer(3)
        assert (len(work.taken), work.pool.busy, len(work.ready)) == (2, 2, 1)
        work.pool.cancel()

    asyncio.run(play())


def test_an_idle_runner_is_woken_before_another_is_started():
    async def play():
        work = Work(max_runners=2)
        await work.offer(1)
        work.ends.put_nowait(True)
        for _ in range(3):  # the runner gets its result, ends its attempt, and idles
            await asyncio.sleep(0)
        assert work.pool.busy == 0
        await work.offer(1)
        (_, first), (_, second) = work.taken
        assert first is second
        work.pool.cancel()

    asyncio.run(play())


def test_a_detached_runner_gives_its_place_to_another_and_is_not_cancelled():
    async def play():
        work = Work(max_runners=1)
        detached = await work.detached()
        await work.offer(1)
        assert (len(work.taken), work.pool.busy) == (2, 1)
        work.pool.cancel()
        work.ends.put_nowait(False)
        await detached
        assert work.pool.failure is None

    asyncio.run(play())


def test_the_failure_of_a_detached_runner_is_none_of_the_pools():
    """Regression: it failed the task, although the delivery was deferred already."""

    async def play():
        work = Work(max_runners=1)
        detached = await work.detached()
        work.ends.put_nowait(ValueError("ours"))
        with pytest.raises(ValueError, match="ours"):
            await detached
        assert (work.pool.failure, work.failed.is_set()) == (None, False)

    asyncio.run(play())


def test_the_failure_of_a_runner_is_kept_and_reported():
    async def play():
        work, fault = Work(max_runners=1), ValueError("ours")
        await work.offer(1)
        work.ends.put_nowait(fault)
        await work.failed.wait()
        assert (work.pool.failure, work.pool.busy) == (fault, 0)

    asyncio.run(play())
