"""Read the CPU seconds of a process by the names of its threads, from Linux's /proc.

Runs in the process of the load test.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

Threads = dict[int, tuple[str, float]]
"""Name and CPU seconds of each thread of a process, by its number."""
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_NUMBER = re.compile(r"[-#: ]*\d+$")


def read(pid: int) -> Threads:
    """Return the name and the CPU seconds until now of each thread. Linux keeps 15 characters of a name."""
    threads = {}
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                threads[int(task.name)] = _parsed((task / "stat").read_text())
    return threads


def _parsed(stat: str) -> tuple[str, float]:
    """Return the name and the CPU seconds in a line of /proc/PID/task/TID/stat. See `man proc`: fields 2, 14 and 15."""
    name, _, rest = stat.partition("(")[2].rpartition(")")
    fields = rest.split()
    return name, (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND


def spent(before: Threads, after: Threads) -> dict[str, float]:
    """Return the CPU seconds between two readings by name, without a number at its end. Ended threads are left out. Pure."""
    seconds: dict[str, float] = {}
    for number, (name, used_s) in after.items():
        _, earlier_s = before.get(number, (name, 0.0))
        group = _NUMBER.sub("", name)
        seconds[group] = seconds.get(group, 0.0) + used_s - earlier_s
    return seconds
