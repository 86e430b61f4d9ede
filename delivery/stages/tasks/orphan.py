"""Let a worker outlive its JVM for a moment, so that requests in flight end and their results are written.

Runs in the executors' Python workers. When a JVM ends, or ends its workers in order, Spark's daemon sends them SIGHUP. By
default that ends a Python worker at once, and its requests in flight would be repeated. docs/adr/0022 describes the solution.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

ENDS_WITHIN_S = 2.0
"""Seconds after which an orphaned worker is killed. A restarted job reads the completed-work log later than that."""


def outlive(on_orphaned: Callable[[], None]) -> None:
    """Call `on_orphaned` in the thread of the task when the JVM is gone.

    Called as each task starts: between two tasks Spark restores the default action, and an idle worker ends at once.
    """

    def hung_up(_number: int, _frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, ENDS_WITHIN_S)  # SIGALRM has no handler, so it ends the process
        on_orphaned()

    signal.signal(signal.SIGHUP, hung_up)
