"""Share the API's worker threads among customers, so that one customer's slow requests do not block the others.

Runs in `fanout serve`, on the event loop. The work runs on the threads, because a wait for Postgres would block the event loop.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from subscriptions_db.api.contract import problems

MAX_WAITING_SHARE = 0.5
"""Share of `api.max_waiting` that the waiting requests of one customer, or of one key without a customer, may take. The rest is
left for other customers and keys. A request counts as waiting while its body arrives. A request of a customer also counts while
it waits for a thread. A request that publishes counts until it is answered."""

T = TypeVar("T")


class WorkerThreads:
    """The threads on which requests work: one for each connection to Postgres.

    The requests of one customer occupy at most all threads but one, so that other customers' requests find a free thread. If
    there is only one thread, one customer's requests may occupy it. Further requests of the customer wait on the event loop, in
    the order in which they came.
    """

    def __init__(self, count: int, *, max_waiting: int) -> None:
        """`count` is the number of threads. `max_waiting` is the maximum of requests in flight of all customers."""
        self._threads = concurrent.futures.ThreadPoolExecutor(count, thread_name_prefix="api")
        self._threads_per_customer = max(1, count - 1)
        self._max_waiting = max(1, int(max_waiting * MAX_WAITING_SHARE))
        self._free: weakref.WeakValueDictionary[str, asyncio.Semaphore] = weakref.WeakValueDictionary()
        """Customer → the threads that its requests may still take. Only of customers with a request that waits or works."""
        self._waiting: collections.Counter[str] = collections.Counter()
        """Customer, or key without a customer → the number of its requests that wait."""

    async def run(self, work: Callable[[], T], customer_id: str | None = None) -> T:
        """Return the result of `work`, which runs on a thread. Raise Refused with 429 if too much work of the customer waits.

        `customer_id` None: the work is the platform's or an operator's, and no share bounds it. If the caller is cancelled,
        work that has begun goes on, and occupies its thread until its end.
        """
        if customer_id is None:
            return await asyncio.wrap_future(self._threads.submit(work))
        free = self._free.setdefault(customer_id, asyncio.Semaphore(self._threads_per_customer))
        with self.place(customer_id):
            await free.acquire()
        begun = self._threads.submit(work)
        begun.add_done_callback(functools.partial(_release, free, asyncio.get_running_loop()))
        return await asyncio.wrap_future(begun)

    def close(self) -> None:
        """Wait until all work has ended."""
        self._threads.shutdown()

    @contextlib.contextmanager
    def place(self, owner_id: str) -> Iterator[None]:
        """Occupy a place among the waiting requests of a customer, or of a key without a customer.

        Raise Refused with 429 if there is none.
        """
        if self._waiting[owner_id] >= self._max_waiting:
            raise problems.Refused(
                429,
                f"{self._waiting[owner_id]} of your requests are waiting already, so this one was not executed: try again when "
                "some have ended",
                headers={"retry-after": str(problems.RETRY_AFTER_S)},
            )
        self._waiting[owner_id] += 1
        try:
            yield
        finally:
            self._waiting[owner_id] -= 1
            if not self._waiting[owner_id]:
                del self._waiting[owner_id]


def _release(free: asyncio.Semaphore, loop: asyncio.AbstractEventLoop, _: concurrent.futures.Future[Any]) -> None:
    """Let a further request of a customer take a thread, because a request of the customer has ended.

    Runs on the thread that has done the work, or on the event loop if the work is cancelled before it begins.
    """
    if not loop.is_closed():
        loop.call_soon_threadsafe(free.release)
