"""Give the lanes the number of executors to plan for, and protect executors whose shuffled rows are in use.

Runs on the driver. Must not import pyspark.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size that a lane plans for."""

    executors: int
    """Executors; the limit of events of a micro-batch is multiplied by this number."""
    tasks: int
    """Tasks of a micro-batch."""


class Shuffles:
    """Keep executors while tasks still have to read rows that their micro-batch has shuffled there. Thread-safe.

    A decommissioned executor ends when its own tasks have ended. Spark then fails the stage whose rows are gone.
    """

    def __init__(self) -> None:
        self._changing = threading.Condition()
        self._in_use = 0
        self._is_wanted = False

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Prevent the removal of executors inside the context. Waits for a removal that has started."""
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
        """Call `act` at a moment without use; return False if there is none `within_s`. No new use starts meanwhile."""
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
    """The functions by which the lanes read the size. Without scaling, the size is constant."""

    now: Callable[[], Size]
    workers: Callable[[], int]
    """Returns the number of worker processes that share the limits of a host or endpoint."""
    shuffles: Shuffles


def fixed(tasks: int) -> Sizing:
    """Return the size of a job that does not scale."""
    size = Size(executors=1, tasks=tasks)
    return Sizing(now=lambda: size, workers=lambda: tasks, shuffles=Shuffles())
