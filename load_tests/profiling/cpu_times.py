"""Read the CPU seconds of processes and of their threads, from Linux's /proc.

Runs in the process of the load test.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ENDED = "(ended threads)"
"""Name under which `spent` lists the CPU of threads that ended between two readings."""
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_NUMBER = re.compile(r"[-#: ]*\d+$")


class CpuTimes(NamedTuple):
    """CPU seconds of a process until a reading."""

    total_s: float = 0.0
    """CPU seconds of all threads, ended ones included."""
    threads: Mapping[int, tuple[str, float]] = {}
    """Name and CPU seconds of each thread, by its number. Linux keeps 15 characters of a name."""


def read(pid: int) -> CpuTimes:
    """Return the CPU times of a process until now; zeros if it has ended."""
    threads = {}
    total_s = 0.0
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                threads[int(task.name)] = _parsed((task / "stat").read_text())
        _, total_s = _parsed(Path(f"/proc/{pid}/stat").read_text())
    return CpuTimes(total_s, threads)


def _parsed(stat: str) -> tuple[str, float]:
    """Return the name and the CPU seconds in a line of /proc/PID/stat. See `man proc`: fields 2, 14 and 15."""
    name, _, rest = stat.partition("(")[2].rpartition(")")
    fields = rest.split()
    return name, (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND


def spent(before: CpuTimes, after: CpuTimes) -> dict[str, float]:
    """Return the CPU seconds between two readings of a process, grouped by thread name without its trailing number. Pure.

    The sum is that of the whole process.
    """
    seconds: dict[str, float] = {}
    for number, (name, used_s) in after.threads.items():
        _, earlier_s = before.threads.get(number, (name, 0.0))
        group = _NUMBER.sub("", name)
        seconds[group] = seconds.get(group, 0.0) + used_s - earlier_s
    seconds[ENDED] = max(0.0, after.total_s - before.total_s - sum(seconds.values()))
    return seconds
