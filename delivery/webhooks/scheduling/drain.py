"""Begin no attempt any more, and know when those under way have ended.

Runs in the executors, inside the worker's event loop. Must not import pyspark or psycopg.
"""

from __future__ import annotations

import asyncio
import contextlib

from delivery.model import Attempt, Sendable
from delivery.webhooks.scheduling import dispatch


class Gate:
    """A sender for one task, behind which nothing begins once it is closed: whoever comes then waits to be abandoned."""

    def __init__(self, sender: dispatch.Sender) -> None:
        self._sender = sender
        self._under_way = 0
        self._is_closed = False
        self._left = asyncio.Event()

    async def attempt(self, delivery: Sendable, number: int) -> Attempt:
        """As dispatch.Sender."""
        if self._is_closed:
            await asyncio.Future()
        self._under_way += 1
        try:
            return await self._sender.attempt(delivery, number)
        finally:
            self._under_way -= 1
            self._left.set()

    async def close(self, within_s: float) -> None:
        """Let nothing begin any more; wait for what is under way, no longer than `within_s`."""
        self._is_closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._under_way:
                    self._left.clear()
                    await self._left.wait()
