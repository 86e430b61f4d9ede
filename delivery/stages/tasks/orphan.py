"""Let a worker outlive its JVM for up to ENDS_WITHIN_S, so that its requests in flight end and their results are written.

Runs in the executors' Python workers. When an executor's JVM ends, or stops its workers gracefully, Spark's daemon sends
SIGHUP to the workers. By default SIGHUP ends a Python worker at once, and its requests in flight would be repeated.
docs/adr/0022 describes the solution.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

ENDS_WITHIN_S = 4.0
"""Most seconds between SIGHUP and the end of an orphaned worker. A restarted job usually reads the completed-work log only
after these seconds, because its JVM takes several seconds to start. If an orphaned worker writes a result after the restarted
job has read the log, the job repeats the delivery."""


def outlive(on_orphaned: Callable[[], None]) -> None:
    """Handle SIGHUP during a task: call `on_orphaned` in the task's thread, and end the process at most ENDS_WITHIN_S later.

    Called as each task starts. Between two tasks Spark restores the default action of SIGHUP, so an idle worker ends at once.
    """

    def hung_up(_number: int, _frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, ENDS_WITHIN_S)  # SIGALRM has no handler, so it ends the process
        on_orphaned()

    signal.signal(signal.SIGHUP, hung_up)
