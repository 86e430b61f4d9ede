"""Read the CPU seconds of processes and of their threads.

Runs in the process of the load test.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import psutil

ENDED = "(ended threads)"
"""Name under which `spent` lists the CPU of threads that ended between two readings."""
_NUMBER = re.compile(r"[-#: ]*\d+$")


class CpuTimes(NamedTuple):
    """CPU seconds of a process until a reading."""

    total_s: float = 0.0
    """CPU seconds of all threads, ended ones included."""
    threads: Mapping[int, tuple[str, float]] = {}
    """Name and CPU seconds of each thread, by its number. Linux keeps 15 characters of a name."""


def read(process: psutil.Process) -> CpuTimes:
    """Return the CPU times of a process until now; zeros if it has ended."""
    try:
        threads = {thread.id: thread.user_time + thread.system_time for thread in process.threads()}
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return CpuTimes()
    named = {}
    for number, used_s in threads.items():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            name = Path(f"/proc/{process.pid}/task/{number}/comm").read_text()  # psutil has no names of threads
            named[number] = (name.rstrip("\n"), used_s)
    return CpuTimes(times.user + times.system, named)


def spent(before: CpuTimes, after: CpuTimes) -> dict[str, float]:
    """Return the CPU seconds between two readings of a process, grouped by thread name without its trailing number. Pure.

    The key ENDED has the CPU of threads that ended between the readings. The sum is the CPU of the whole process. The sum is 0
    for a process that ended before the second reading.
    """
    seconds: dict[str, float] = {}
    for number, (name, used_s) in after.threads.items():
        _, earlier_s = before.threads.get(number, (name, 0.0))
        group = _NUMBER.sub("", name)
        seconds[group] = seconds.get(group, 0.0) + used_s - earlier_s
    seconds[ENDED] = max(0.0, after.total_s - before.total_s - sum(seconds.values()))
    return seconds
