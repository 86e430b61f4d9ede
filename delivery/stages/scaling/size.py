"""Tell the lanes for how many executors they plan, and between which tasks an executor may go.

Runs on the driver. Must not import pyspark.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What a lane plans for."""

    executors: int
    """A micro-batch has its bound of events for each of them."""
    tasks: int
    """Tasks of a micro-batch."""


class Shuffles:
    """Keep executors while tasks are to read what other tasks of their micro-batch have shuffled there. Safe between threads.

    A decommissioned executor ends when its own tasks have ended, and Spark gives the stage up whose rows it takes with it.
    """

    def __init__(self) -> None:
        self._changing = threading.Condition()
        self._in_use = 0
        self._is_wanted = False

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Have no executor removed inside. Waits for one that is being removed."""
        with self._changing:
            self._changing.wait_for(lambda: not self._is_wanted)
            self._in_use += 1
        try:
            yield
        finally:
            with self._changing:
                self._in_use -= 1
                self._changing.notify_all()

    def between(self, act: Callable[[], None], within_s: float) -> bool:
        """Call `act` when nothing is in use; return False when that was not so `within_s`. Nothing begins meanwhile."""
        with self._changing:
            self._is_wanted = True
            try:
                is_free = self._changing.wait_for(lambda: not self._in_use, within_s)
                if is_free:
                    act()
                return is_free
            finally:
                self._is_wanted = False
                self._changing.notify_all()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """What the lanes ask. Without scaling, the size is always the same."""

    now: Callable[[], Size]
    workers: Callable[[], int]
    """Worker processes that share what goes to one host or endpoint."""
    shuffles: Shuffles


def fixed(tasks: int) -> Sizing:
    """Return the size of a job that does not scale."""
    size = Size(executors=1, tasks=tasks)
    return Sizing(now=lambda: size, workers=lambda: tasks, shuffles=Shuffles())
