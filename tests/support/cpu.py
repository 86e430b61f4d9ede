"""Compare the CPU time of two pieces of work in one process: a bound in seconds would fail in a slow hour of the machine."""

from __future__ import annotations

import time
from collections.abc import Callable


def ratio(work: Callable[[], object], reference: Callable[[], object], times: int = 3) -> float:
    """Return the CPU time of `work`, divided by that of `reference`. Each runs `times` times, and its fastest run counts."""
    return _least_s(work, times) / _least_s(reference, times)


def _least_s(work: Callable[[], object], times: int) -> float:
    return min(_took_s(work) for _ in range(times))


def _took_s(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
