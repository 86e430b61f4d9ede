"""Keep track of one worker's leases: leases in flight, leases that the current Spark task awaits, and ended leases."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import NamedTuple

from delivery.registry_model import CustomerId, EndpointId
from delivery.webhooks.leases.lease_in_flight import LeaseInFlight
from delivery.webhooks.retries import retry_messages

_FifoId = tuple[CustomerId, EndpointId, str | None]


class _Delivery(NamedTuple):
    """A lease, and the asyncio task that delivers it."""

    lease: LeaseInFlight
    task: asyncio.Task[None]


class LeaseBook:
    """Keep track of the leases of one worker. A lease is a set of retry entries of one FIFO.

    Not thread-safe, except `is_busy`.

    A FIFO is the queue of one endpoint's retry entries, or of its entries with one order key. A FIFO has one lease at a time. A
    newer lease of the same FIFO means that the shard considers the older lease expired.
    """

    def __init__(self) -> None:
        self._newest: dict[_FifoId, _Delivery] = {}
        """By FIFO: its newest lease, until `forget` is called for this lease."""
        self._tasks: set[asyncio.Task[None]] = set()
        """All asyncio tasks that deliver a lease now, also those of expired leases."""
        self._awaited: set[asyncio.Task[None]] = set()
        """The asyncio tasks for which the current Spark task waits."""
        self._ended: list[LeaseInFlight] = []

    @property
    def is_busy(self) -> bool:
        """Return True if a lease is in flight. Thread-safe."""
        return bool(self._tasks)

    @property
    def has_ended(self) -> bool:
        """Return True if `drain_ended` has something to return."""
        return bool(self._ended)

    def in_flight(self) -> Iterator[LeaseInFlight]:
        """Yield the newest lease of each FIFO, also a lease that has ended and is not forgotten yet."""
        return (delivery.lease for delivery in self._newest.values())

    def rejoin(self, lease: retry_messages.Lease) -> bool:
        """Let the current Spark task await `lease`, which an earlier task began. Return False if this worker does not have it.

        Return True also for an ended lease, until `forget` is called for it.
        """
        known = self._newest.get(_fifo_id(lease))
        if known is None or known.lease.message.number != lease.number:
            return False
        self._awaited.add(known.task)
        return True

    def begin(self, lease: LeaseInFlight, delivering: Coroutine[None, None, None]) -> None:
        """Run `delivering` in an asyncio task, which the current Spark task awaits. Stop an older lease of the same FIFO."""
        fifo_id = _fifo_id(lease.message)
        expired = self._newest.get(fifo_id)
        if expired is not None:
            expired.lease.stop()  # the same entries are in the new lease
        task = asyncio.create_task(delivering)
        self._newest[fifo_id] = _Delivery(lease, task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._awaited.add(task)

    def end(self, lease: LeaseInFlight) -> None:
        """Record that a lease has ended, for `drain_ended`."""
        self._ended.append(lease)

    def forget(self, lease: LeaseInFlight) -> None:
        """Forget a lease that was reported, or that will expire without a report. A newer lease of its FIFO stays."""
        fifo_id = _fifo_id(lease.message)
        if fifo_id in self._newest and self._newest[fifo_id].lease is lease:
            del self._newest[fifo_id]

    def drain_ended(self) -> list[LeaseInFlight]:
        """Return the leases that have ended since the last call, in the order in which they ended."""
        ended, self._ended = self._ended, []
        return ended

    async def wait(self, wait_s: float) -> bool:
        """Wait at most `wait_s` for the leases that the current Spark task awaits; return True if all have ended."""
        return not self._awaited or not (await asyncio.wait(self._awaited, timeout=wait_s))[1]

    async def wait_for_any(self, wait_s: float) -> bool:
        """Wait at most `wait_s` for the end of any lease; return True if one has ended. A lease must be in flight."""
        return bool((await asyncio.wait(self._tasks, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED))[0])

    def finish_task(self) -> None:
        """Let the next Spark task await only the leases that it begins or rejoins. Leases in flight continue."""
        self._awaited = set()

    def stop(self) -> None:
        """Stop the leases in flight: no further attempt begins. Attempts in flight continue."""
        for lease in self.in_flight():
            lease.stop()

    async def close(self) -> None:
        """Cancel all leases in flight, and wait for the end of their asyncio tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _fifo_id(lease: retry_messages.Lease) -> _FifoId:
    return (lease.customer_id, lease.endpoint_id, lease.order_key)
