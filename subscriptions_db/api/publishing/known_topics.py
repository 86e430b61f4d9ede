"""Remember which topics Kafka has, so that no event creates a topic by itself.

Runs in the API, on its event loop. A broker with `auto.create.topics.enable` creates a topic for the first record of a client.
The topic would have the broker's default number of partitions, and a mistyped event type would never be noticed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from delivery import errors

log = logging.getLogger(__name__)

MAX_AGE_S = 30.0
"""Age of the names, in seconds, from which the next request starts a new reading, because a topic may have been deleted.
Requests to known topics do not wait for the reading."""
MAX_STALE_S = 300.0
"""Age of the names, in seconds, beyond which requests to known topics wait for a reading too. If the reading fails, these
requests use the earlier names."""
MIN_AGE_S = 1.0
"""Age of the names, in seconds, from which a request to an unknown topic starts a new reading and waits for it. While the names
are younger, an unknown topic counts as missing. So requests to unknown topics cost Kafka at most one request a second, while
Kafka answers."""

ReadNames = Callable[[], Awaitable[frozenset[str]]]
"""Return the names of Kafka's topics; raise KafkaUnavailable if Kafka does not list them."""


class KnownTopics:
    """The names of Kafka's topics, as last read. Lives on the event loop."""

    def __init__(self, read: ReadNames, clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock = clock
        self._names: frozenset[str] = frozenset()
        self._read_at = float("-inf")
        self._reading: asyncio.Task[errors.KafkaUnavailable | None] | None = None

    async def missing(self, wanted: frozenset[str]) -> frozenset[str]:
        """Return the topics in `wanted` that Kafka did not have at the last successful reading.

        Concurrent calls share one reading.

        Raise KafkaUnavailable if one of `wanted` was not known before the call, and the reading that this call awaits fails.
        """
        are_known = wanted <= self._names
        age_s = self._clock() - self._read_at
        if age_s > (MAX_AGE_S if are_known else MIN_AGE_S):
            reading = self._start()
            if not are_known or age_s > MAX_STALE_S:
                # A disconnected publisher must not cancel the reading of the others.
                failure = await asyncio.shield(reading)
                if failure is not None and not are_known:
                    raise failure
        return wanted - self._names

    def _start(self) -> asyncio.Task[errors.KafkaUnavailable | None]:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._refresh())
        return self._reading

    async def _refresh(self) -> errors.KafkaUnavailable | None:
        """Read the names; return a failure in place of raising it, because perhaps no call waits for this task."""
        try:
            self._names = await self._read()
        except errors.KafkaUnavailable as exc:
            log.warning(
                "the names of the topics could not be read: %s. Requests to publish to known topics use the earlier names, and "
                "others are answered with 503. A later request reads the names again", exc,
            )  # fmt: skip
            return exc
        self._read_at = self._clock()
        return None
