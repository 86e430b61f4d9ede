"""The requests of one customer leave a thread to other customers, and wait for their own."""

import asyncio
import threading

import pytest

from subscriptions_db.api.contract import problems
from subscriptions_db.api.server import worker_threads


class Blocking:
    """Work that begins, and goes on until the test ends it."""

    def __init__(self):
        self.begun = []
        self.may_end = threading.Event()

    def work(self, name):
        def run():
            self.begun.append(name)
            assert self.may_end.wait(20)
            return name

        return run


def with_threads(count, scenario, *, max_waiting=500):
    """Return the result of `scenario(threads, blocking)`, a coroutine function. All work may end after it."""
    threads, blocking = worker_threads.WorkerThreads(count, max_waiting=max_waiting), Blocking()

    async def run():
        try:
            return await scenario(threads, blocking)
        finally:
            blocking.may_end.set()

    try:
        return asyncio.run(run())
    finally:
        threads.close()


def start(threads, blocking, names, customer_id="acme"):
    return [asyncio.ensure_future(threads.run(blocking.work(name), customer_id)) for name in names]


@pytest.mark.parametrize(("count", "share"), [(4, 3), (2, 1), (1, 1)])
def test_a_customer_occupies_all_threads_but_one(count, share):
    async def scenario(threads, blocking):
        waiting = start(threads, blocking, range(6))
        await asyncio.sleep(0)  # each has taken a thread, or waits
        if count > 1:
            assert await threads.run(lambda: "answered", "other") == "answered"
        assert blocking.begun == list(range(share))
        blocking.may_end.set()
        return await asyncio.gather(*waiting)

    assert with_threads(count, scenario) == list(range(6))


def test_an_operator_may_occupy_all_threads():
    async def scenario(threads, blocking):
        waiting = start(threads, blocking, range(3), customer_id=None)
        waiting += start(threads, blocking, ["last"])
        await asyncio.sleep(0)
        blocking.may_end.set()
        return await asyncio.gather(*waiting)

    assert with_threads(3, scenario) == [0, 1, 2, "last"]


def test_a_request_that_is_given_up_occupies_its_thread_until_the_work_ends():
    async def scenario(threads, blocking):
        [given_up] = start(threads, blocking, ["first"])
        await asyncio.sleep(0)
        given_up.cancel()
        [next_] = start(threads, blocking, ["next"])
        await asyncio.wait([given_up])
        assert await threads.run(lambda: "answered", "other") == "answered"
        assert blocking.begun == ["first"]
        blocking.may_end.set()
        return await next_

    assert with_threads(2, scenario) == "next"


def test_waiting_requests_of_one_customer_are_bounded():
    async def scenario(threads, blocking):
        waiting = start(threads, blocking, range(4))  # one works, and three wait
        await asyncio.sleep(0)
        with pytest.raises(problems.Refused) as refused:
            await threads.run(blocking.work("refused"), "acme")
        assert await threads.run(lambda: "answered", "other") == "answered"
        blocking.may_end.set()
        await asyncio.gather(*waiting)
        assert await threads.run(lambda: "later", "acme") == "later"
        return refused.value

    refused = with_threads(2, scenario, max_waiting=6)
    assert (refused.problem.status, refused.headers) == (429, {"retry-after": str(problems.RETRY_AFTER_S)})
