"""Let a worker outlive its JVM for a moment, in which what is under way ends and is written.

Runs in the executors' Python workers. When a JVM has ended, or ends them in order, Spark's daemon sends SIGHUP to its workers,
and Python workers end by that at once: what they had sent would be sent again. docs/adr/0022 says what becomes of it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

ENDS_WITHIN_S = 2.0
"""Whatever an orphan does, it does not live longer: no journal is read so soon by a job that is started anew."""


def outlive(told: Callable[[], None]) -> None:
    """Have `told` called when the JVM is gone, in the thread of the task.

    Called as each task begins: between two of them Spark takes the default action again, and an idle worker ends at once.
    """

    def hung_up(_number: int, _frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, ENDS_WITHIN_S)  # SIGALRM: nobody handles it, so it ends the process
        told()

    signal.signal(signal.SIGHUP, hung_up)
