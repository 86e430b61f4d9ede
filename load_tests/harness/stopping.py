"""On SIGTERM, stop a load test and all processes that it started, as on Ctrl-C."""

from __future__ import annotations

import signal
import sys
from types import FrameType

SIGTERM_STATUS = 128 + signal.SIGTERM
"""Exit status of a load test that SIGTERM ended, as shells report it."""


def exit_in_order(_number: int, _frame: FrameType | None) -> None:
    """Raise SystemExit in the main thread, so that every open context stops its processes. The handler of SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second SIGTERM would interrupt the graceful stop
    sys.exit(SIGTERM_STATUS)


def install() -> None:
    """Let SIGTERM stop the load test and its processes in order, by `exit_in_order`. Called once, in the main thread."""
    signal.signal(signal.SIGTERM, exit_in_order)
