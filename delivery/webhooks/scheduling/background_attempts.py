"""Track background attempts, which outlive their Spark task, and report each result. The reasons are in docs/adr/0027.

Each background attempt has a name. The retry entry of its delivery has the same name. When the attempt has ended, a message
with this name goes to the shard that has the retry entry.

    dispatcher ─┬─ retry entry: reason `under_way`, with the name ─► retries topic ─► shard: waits for `wait_s`
                └─ attempt ─► BackgroundResult ─► result topics, then the name ─► retries topic ─► shard: forgets the entry

A shard is one key of the retry lane's state. If this process dies, no result is reported, and the shard retries the entry.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import uuid
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from delivery.model import Outcome, Sendable
from delivery.registry_model import EndpointId

log = logging.getLogger(__name__)

REPORTED_WITHIN_S = 30.0
"""Seconds beyond the attempt's timeout that a shard waits for a result before it retries. A result is reported within a second,
and the shard reads the report in its next micro-batch."""
MAX_BYTES = 64 * 1024 * 1024
"""Maximum of bytes of the request bodies, before compression, of all background attempts in one worker."""


class BackgroundResult(NamedTuple):
    """The outcome of a delivery whose attempt ended in the background."""

    name: bytes
    """Name of the background attempt."""
    outcome: Outcome[Any]


class BackgroundAttempts:
    """Track one worker's background attempts: attempts that continue when their Spark task has ended.

    `timeout_s` is the longest duration of an attempt. `max_attempts` is the maximum of background attempts at once
    (`has_room`). `report` is called with each result.
    """

    def __init__(self, timeout_s: float, max_attempts: int, report: Callable[[BackgroundResult], None]) -> None:
        self.wait_s = timeout_s + REPORTED_WITHIN_S
        """Seconds that a shard waits for the result of an attempt, counted from the attempt's move to the background."""
        self._max_attempts = max_attempts
        self._report = report
        self._runners: set[asyncio.Task[None]] = set()
        self._in_flight: collections.Counter[EndpointId] = collections.Counter()
        self._unresponsive: collections.Counter[EndpointId] = collections.Counter()
        self._bytes = 0
        self._unreported: set[bytes] = set()

    @property
    def is_idle(self) -> bool:
        """Return True if no background attempt runs, and each result is reported or cannot be reported. Thread-safe."""
        return not self._unreported

    def settle(self, results: Iterable[BackgroundResult]) -> None:
        """Mark results as reported, or as impossible to report: `is_idle` no longer waits for them. Thread-safe."""
        self._unreported.difference_update(result.name for result in results)

    def has_room(self, delivery: Sendable) -> bool:
        """Return True if the attempt of `delivery` may move to the background, by `max_attempts` and MAX_BYTES."""
        return len(self._runners) < self._max_attempts and self._bytes + len(delivery.signed) <= MAX_BYTES

    def begin(self, delivery: Sendable, runner: asyncio.Task[None], *, is_unresponsive: bool) -> bytes:
        """Move the attempt that `runner` awaits to the background; return a new unique name for it.

        The retry entry of the delivery and the result of the attempt have this name, so that the retry lane can match them.
        `is_unresponsive` is True if the endpoint has sent no response since the attempt began.
        """
        endpoint_id, size, name = delivery.endpoint.endpoint_id, len(delivery.signed), uuid.uuid4().bytes
        counted_in = (self._in_flight, self._unresponsive) if is_unresponsive else (self._in_flight,)
        self._runners.add(runner)
        self._unreported.add(name)
        self._bytes += size
        for counts in counted_in:
            counts[endpoint_id] += 1

        def ended(_: asyncio.Task[None]) -> None:
            self._runners.discard(runner)
            self._bytes -= size
            for counts in counted_in:
                counts[endpoint_id] -= 1
                if not counts[endpoint_id]:
                    del counts[endpoint_id]
            if not runner.cancelled() and (fault := runner.exception()) is not None:
                log.error(
                    "an unforeseen error ended a background attempt: the retry lane attempts the delivery again. Send this "
                    "traceback to the maintainers of the platform",
                    exc_info=fault,
                    extra={"endpoint_id": endpoint_id},
                )
                self._unreported.discard(name)

        runner.add_done_callback(ended)
        return name

    def complete(self, name: bytes, outcome: Outcome[Any]) -> None:
        """Call `report` with the result of the background attempt `name`.

        The delivery's earlier attempts were reported when the delivery was deferred.
        """
        self._report(BackgroundResult(name, outcome._replace(attempts=outcome.attempts[-1:], earlier=outcome.attempts[:-1])))

    def in_flight_to(self, endpoint_id: EndpointId) -> int:
        """Return the number of background attempts to an endpoint."""
        return self._in_flight.get(endpoint_id, 0)

    def is_unresponsive(self, endpoint_id: EndpointId) -> bool:
        """Return True if a background attempt to the endpoint is in flight for which `begin` was called with `is_unresponsive`.

        Called for each delivery.
        """
        return endpoint_id in self._unresponsive
