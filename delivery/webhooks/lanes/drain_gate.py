"""When a Spark task fails, begin no further attempt of it, and wait a limited time for its attempts in flight.

The results of attempts that end in time are recorded, so these deliveries are not repeated. Deliveries whose attempts do not
end in time may be repeated. A task of the direct or the batch lane has one gate. A task of the real-time lane has a gate for
each slice, the records of about a second. The retry lane has no gate. Runs in the event loop of a worker.
"""

from __future__ import annotations

import asyncio
import contextlib

from delivery.model import Attempt, Sendable
from delivery.webhooks.dispatching import dispatch


class DrainGate:
    """Pass the attempts of a task, or of a slice, to `sender`. After `close`, new calls of `attempt` wait until cancelled."""

    def __init__(self, sender: dispatch.DispatchSender) -> None:
        self._sender = sender
        self._in_flight = 0
        self._is_closed = False
        self._ended = asyncio.Event()

    async def attempt(self, delivery: Sendable, number: int) -> Attempt:
        """Make attempt `number` (from 1) at `delivery`, and return its result.

        If the gate is closed, begin no attempt, and wait until the caller is cancelled.
        """
        if self._is_closed:
            await asyncio.Future()
        self._in_flight += 1
        try:
            return await self._sender.attempt(delivery, number)
        finally:
            self._in_flight -= 1
            self._ended.set()

    async def close(self, timeout_s: float) -> int:
        """Let no further attempt begin. Wait at most `timeout_s` until the attempts in flight have ended.

        Return the number of attempts that are still in flight.
        """
        self._is_closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._in_flight:
                    self._ended.clear()
                    await self._ended.wait()
        return self._in_flight
