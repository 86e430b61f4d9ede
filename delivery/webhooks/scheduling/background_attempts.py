"""Keep count of attempts that go on when their task has ended, and tell what comes of each.

Runs in the executors, inside the worker's event loop. Must not import pyspark or psycopg. docs/adr/0027 says why.

    dispatcher ─┬─ postponed, as `under_way` by a name ──────────────► retries topic ─► shard: waits for `wait_s`
                └─ the attempt goes on ─► Ended ─► its rows, and then the name ─► retries topic ─► shard: forgotten

What waits in the shard is there for the case that this process dies: then nothing is told, and it is attempted again.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import uuid
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from delivery.model import EndpointId, Outcome, Sendable

log = logging.getLogger(__name__)

TOLD_WITHIN_S = 30.0
"""What came of an attempt is told within a second. The shard hears of it with its next micro-batch, and waits for so long
beyond the attempt's own time."""
MAX_BYTES = 64 * 1024 * 1024
"""Of their bodies."""


class Ended(NamedTuple):
    """How a delivery ended whose attempt went on."""

    name: bytes
    outcome: Outcome[Any]


class Late:
    """The attempts of one worker that nobody waits for any more.

    `timeout_s` is how long an attempt may take, `most` how many may go on; `told` is called with each that has ended.
    """

    def __init__(self, timeout_s: float, most: int, told: Callable[[Ended], None]) -> None:
        self.wait_s = timeout_s + TOLD_WITHIN_S
        """How long to wait for what is told, from when an attempt goes on alone."""
        self._most = most
        self._told = told
        self._runners: set[asyncio.Task[None]] = set()
        self._to: collections.Counter[EndpointId] = collections.Counter()
        self._silent: collections.Counter[EndpointId] = collections.Counter()
        self._bytes = 0
        self._untold: set[bytes] = set()

    @property
    def is_over(self) -> bool:
        """Whether all that went on alone has ended and is told. May be asked in any thread, as `forget`."""
        return not self._untold

    def forget(self, ended: Iterable[Ended]) -> None:
        """Take note that these are told, or cannot be."""
        self._untold.difference_update(one.name for one in ended)

    def has_room(self, delivery: Sendable) -> bool:
        """Tell whether one more may go on alone."""
        return len(self._runners) < self._most and self._bytes + len(delivery.signed) <= MAX_BYTES

    def begin(self, delivery: Sendable, runner: asyncio.Task[None], *, is_silent: bool) -> bytes:
        """Let the attempt that `runner` waits for go on alone; return its name. `is_silent`: its endpoint answers nothing."""
        to, size, name = delivery.endpoint.endpoint_id, len(delivery.signed), uuid.uuid4().bytes
        counted_in = (self._to, self._silent) if is_silent else (self._to,)
        self._runners.add(runner)
        self._untold.add(name)
        self._bytes += size
        for counts in counted_in:
            counts[to] += 1

        def over(_: asyncio.Task[None]) -> None:
            self._runners.discard(runner)
            self._bytes -= size
            for counts in counted_in:
                counts[to] -= 1
                if not counts[to]:
                    del counts[to]
            if not runner.cancelled() and (fault := runner.exception()) is not None:
                log.error("an attempt that went on alone failed in an unforeseen way", exc_info=fault)
                self._untold.discard(name)

        runner.add_done_callback(over)
        return name

    def end(self, name: bytes, outcome: Outcome[Any]) -> None:
        """Take what came of it. The attempts before this one were told as it went on."""
        self._told(Ended(name, outcome._replace(attempts=outcome.attempts[-1:], earlier=outcome.attempts[:-1])))

    def under_way_to(self, endpoint_id: EndpointId) -> int:
        """Return how many requests there are to an endpoint."""
        return self._to.get(endpoint_id, 0)

    def is_silent(self, endpoint_id: EndpointId) -> bool:
        """Tell whether an endpoint is being waited for that has answered nothing. Asked of every delivery."""
        return endpoint_id in self._silent
