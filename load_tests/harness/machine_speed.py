"""Measure how fast this machine is now, so that figures of different hours and machines can be compared.

The seconds of a fixed piece of Python are compared with those of the machine of the budgets (tests/budget.py). A virtual
machine may take several times as long in one hour as in another, and CPU seconds grow with that. Work that needs memory or
system calls may be slower still.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

REFERENCE_S = 0.0125
"""CPU seconds of the work of `slowdown` on the machine of the budgets (tests/budget.py)."""


def slowdown() -> float:
    """Time a fixed piece of work now. Return its CPU seconds divided by those on the machine of the budgets."""
    began, total = time.thread_time(), 0
    for number in range(500_000):
        total += number * number
    return (time.thread_time() - began) / REFERENCE_S


def beside(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of `measure`, and as `machine_slowdown` the slowdowns before and after it."""
    before = slowdown()
    figures = measure()
    return {**figures, "machine_slowdown": [round(before, 2), round(slowdown(), 2)]}
