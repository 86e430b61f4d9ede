"""Stop beginning attempts, and wait for those in flight."""

from __future__ import annotations

import asyncio
import contextlib

from delivery.model import Attempt, Sendable
from delivery.webhooks.scheduling import dispatch


class DrainGate:
    """A sender for one task. After `close`, no attempt begins: later calls wait until their task is cancelled."""

    def __init__(self, sender: dispatch.Sender) -> None:
        self._sender = sender
        self._in_flight = 0
        self._is_closed = False
        self._ended = asyncio.Event()

    async def attempt(self, delivery: Sendable, number: int) -> Attempt:
        """Send one attempt, or wait forever if the gate is closed."""
        if self._is_closed:
            await asyncio.Future()
        self._in_flight += 1
        try:
            return await self._sender.attempt(delivery, number)
        finally:
            self._in_flight -= 1
            self._ended.set()

    async def close(self, timeout_s: float) -> None:
        """Stop beginning attempts, and wait for those in flight for at most `timeout_s`."""
        self._is_closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._in_flight:
                    self._ended.clear()
                    await self._ended.wait()
