"""Remember which topics Kafka has, so that no event creates a topic by itself.

Runs in the API, on its event loop. A broker with `auto.create.topics.enable` creates a topic for the first record of a client.
The topic would have the broker's default number of partitions, and a mistyped event type would never be noticed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

MAX_AGE_S = 30.0
"""Seconds after which the topics are read again, because one may have been deleted."""
MIN_AGE_S = 1.0
"""Seconds for which a missing topic stays missing. So requests with invented types cost Kafka one request a second."""

ReadNames = Callable[[], Awaitable[frozenset[str]]]


class KnownTopics:
    """The names of Kafka's topics, as last read. Lives on the event loop."""

    def __init__(self, read: ReadNames, clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock = clock
        self._names: frozenset[str] = frozenset()
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def missing(self, wanted: frozenset[str]) -> frozenset[str]:
        """Return those of `wanted` that do not exist; raise what `read` raises. Concurrent calls share one reading."""
        age_s = self._clock() - self._read_at
        if age_s > (MAX_AGE_S if wanted <= self._names else MIN_AGE_S):
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._refresh())
            await asyncio.shield(self._reading)  # a disconnected publisher must not cancel the reading of the others
        return wanted - self._names

    async def _refresh(self) -> None:
        self._names = await self._read()
        self._read_at = self._clock()
