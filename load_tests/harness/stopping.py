"""End a load test in order when it is asked to: SIGTERM stops all that it started, as Ctrl-C does."""

from __future__ import annotations

import signal
import sys
from types import FrameType

SIGTERM_STATUS = 128 + signal.SIGTERM


def exit_in_order(_number: int, _frame: FrameType | None) -> None:
    """Leave the main thread by an exception, so that each context that is open ends what it began."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would break off what the first has begun
    sys.exit(SIGTERM_STATUS)


def install() -> None:
    """Handle SIGTERM from now on. Called once, in the main thread."""
    signal.signal(signal.SIGTERM, exit_in_order)
