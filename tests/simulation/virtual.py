"""An event loop with virtual time: when no callback is ready, it jumps to the next timer. Weeks pass in seconds.

The loop does no I/O. If all tasks wait and there is no timer, the loop reports a deadlock.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
EPOCH_S = 1_700_000_000
"""When a loop begins, in seconds since the epoch."""


class _Jumping(selectors.SelectSelector):
    """Advance the time instead of waiting for sockets."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("deadlock: everybody waits, and nothing is due")
        self.now += max(0.0, timeout)
        return []


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose virtual time begins at 0 seconds."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def stall(self, seconds: float) -> None:
        """Advance the time while the loop is blocked, as in a stopped process."""
        self._jumping.now += seconds


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end on a new loop."""
    loop = Loop()
    try:
        return loop.run_until_complete(work)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def now_s() -> float:
    return EPOCH_S + asyncio.get_running_loop().time()


def now_ms() -> int:
    return round(now_s() * 1000)
