"""Give the lanes the number of executors to plan for, and keep executors whose shuffled rows are in use.

Runs on the driver. Must not import pyspark. Shuffled rows lie on the executor whose task wrote them, until a task of the same
micro-batch reads them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The numbers of executors and tasks for which a lane plans its micro-batches."""

    executors: int
    """The number of executors; 1 if the job does not scale. The limit of events of a micro-batch is multiplied by this
    number."""
    tasks: int
    """Number of tasks of a micro-batch."""


class Shuffles:
    """Let no executor be removed while tasks still have to read that executor's shuffled rows. Thread-safe.

    A decommissioned executor ends when its own tasks have ended, and its shuffled rows are gone then. Spark fails the tasks on
    other executors that still need these rows.
    """

    def __init__(self) -> None:
        self._changing = threading.Condition()
        self._in_use = 0
        self._is_wanted = False

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Let no executor be removed inside the context. If another thread is in `between`, first wait for its end."""
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
        """Call `act`, which removes executors, at a moment in which no shuffled rows are in use; return True.

        Return False if there is no such moment within `within_s` seconds. A new `in_use` waits until this method returns.
        """
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
    """Functions that give the lanes the number of executors, tasks and workers, and `shuffles`, the guard of shuffled rows.

    Without scaling the numbers are constant.
    """

    now: Callable[[], Size]
    """Returns the size for which a lane makes its next plan."""
    workers: Callable[[], int]
    """Returns the number of worker processes among which the limits of a host or endpoint are divided."""
    shuffles: Shuffles
    """Keeps executors from removal. A lane enters `in_use` while its micro-batch has shuffled rows."""


def fixed(tasks: int) -> Sizing:
    """Return the sizing of a job that does not scale: each micro-batch has `tasks` tasks.

    The limits of a host or endpoint are divided among `tasks` worker processes.
    """
    size = Size(executors=1, tasks=tasks)
    return Sizing(now=lambda: size, workers=lambda: tasks, shuffles=Shuffles())
