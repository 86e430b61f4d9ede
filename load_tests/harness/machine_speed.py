"""Measure how fast this machine is now, so that figures of different hours and machines can be compared.

A virtual machine may take several times as long in one hour as in another, also by its CPU seconds: other virtual machines on
the same processor use its caches and memory. A short loop does not show this: all that it needs stays in the core's cache. So
the measure is what the platform's processes do themselves: start Python and import modules (docs/testing.md compares both).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

REFERENCE_S = 0.063
"""CPU seconds of the work of `slowdown` on the machine of the budgets (tests/budget.py)."""
WORK = "import asyncio, difflib, email.mime.multipart, http.server, logging.handlers, pydoc, tarfile, unittest.mock"
"""Python code that imports modules. All are in the standard library, so that the work does not grow with the dependencies."""
STARTS = 2


def slowdown(work: str = WORK) -> float:
    """Time a fixed piece of work now. Return its CPU seconds, divided by the CPU seconds of WORK on the machine of the budgets.

    The faster of two starts counts. On a machine that was idle, the first start finds cold caches and takes two to three times
    as long. `work` is Python code; only tests pass their own.
    """
    return min(_start_s(work) for _ in range(STARTS)) / REFERENCE_S


def beside(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of `measure`, and as `machine_slowdown` the slowdowns before and after it."""
    before = slowdown()
    figures = measure()
    return {**figures, "machine_slowdown": [round(before, 2), round(slowdown(), 2)]}


def _start_s(work: str) -> float:
    """Start Python for this work, and return the CPU seconds of its process."""
    started = os.posix_spawn(sys.executable, [sys.executable, "-I", "-S", "-c", work], os.environ)
    _, status, usage = os.wait4(started, 0)
    if exit_code := os.waitstatus_to_exitcode(status):
        raise RuntimeError(
            f"{sys.executable} could not import modules of Python's own library (exit code {exit_code}), so the load test "
            "ends: see the error before this line, and repair the installation of Python"
        )
    return usage.ru_utime + usage.ru_stime
