"""Measure the time for which a worker waits for its own machine: for a CPU or for memory.

Runs in the executors. Reads counters of Linux. On a system without these counters the delay is 0. Sources:
Documentation/accounting/psi.rst and Documentation/scheduler/sched-stats.rst of the Linux kernel.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_PRESSURES = ("cpu", "memory")
_MAX_READ_BYTES = 512
"""Most bytes that are read of a file. A PSI file has two lines of some 60 bytes."""


class OwnDelay:
    """Measure the delay of the thread in which the object is created, by three cumulative counters.

    Two counters are stall times for CPU and for memory, by Linux's pressure stall information (PSI). PSI is read for the
    process's control group, or for the whole machine if the group has no PSI file. The third counter is the thread's time in
    the run queue. The counters overlap, so the delay is the largest of their increases since the last call.
    """

    def __init__(self, proc: Path = PROC, cgroups: Path = CGROUPS) -> None:
        self._pressures = [fd for name in _PRESSURES if (fd := _opened(_pressure_file(name, proc, cgroups))) is not None]
        self._schedule = _opened(proc / "self" / "task" / str(threading.get_native_id()) / "schedstat")
        self._last = self._read()

    def delay_since_last_call_s(self) -> float:
        """Return the seconds of delay since the last call, or since the object was created.

        A counter counts only if it could be read both now and at the last call.
        """
        before, self._last = self._last, self._read()
        return max((self._last[fd] - before[fd] for fd in self._last.keys() & before.keys()), default=0.0)

    def close(self) -> None:
        """Close the files of the counters. Afterwards the delay is always 0."""
        for fd in (*self._pressures, *([] if self._schedule is None else [self._schedule])):
            os.close(fd)
        self._pressures, self._schedule, self._last = [], None, {}

    def _read(self) -> dict[int, float]:
        """Return the total seconds of each counter (PSI, run queue) that can be read, by the file descriptor of its file.

        A read may fail while the worker runs, for example when PSI is turned off for the control group. Errors are suppressed,
        because an error would stop the endpoint clock.
        """
        readers: dict[int, Callable[[bytes], float]] = dict.fromkeys(self._pressures, _pressure_s)
        if self._schedule is not None:
            readers[self._schedule] = _run_queue_s
        totals = {}
        for fd, total_s in readers.items():
            with contextlib.suppress(OSError, ValueError, IndexError):
                totals[fd] = total_s(os.pread(fd, _MAX_READ_BYTES, 0))
        return totals


def _pressure_file(name: str, proc: Path, cgroups: Path) -> Path:
    """Return the PSI file for `name` (cpu, memory): of the process's control group, or of the machine if the group has none."""
    with contextlib.suppress(OSError, StopIteration):
        lines = (proc / "self" / "cgroup").read_text().splitlines()
        group = next(line.removeprefix("0::") for line in lines if line.startswith("0::"))
        own = cgroups / group.lstrip("/") / f"{name}.pressure"
        if own.exists():
            return own
    return proc / "pressure" / name


def _opened(file: Path) -> int | None:
    """Open a counter's file, and return its file descriptor. None: the file is missing or unreadable on this system."""
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        os.pread(fd, 1, 0)  # where the kernel was started with psi=0, the file opens and cannot be read
    except OSError:
        os.close(fd)
        return None
    return fd


def _pressure_s(text: bytes) -> float:
    """Return the total stall seconds of a PSI file, by its first line: `some avg10=0.00 … avg300=0.00 total=MICROSECONDS`."""
    return int(text.split(b"\n", 1)[0].rsplit(b"=", 1)[1]) / 1e6


def _run_queue_s(text: bytes) -> float:
    """Return the seconds in the run queue that `schedstat` has: `NANOSECONDS_ON_CPU NANOSECONDS_IN_RUN_QUEUE TIMESLICES`."""
    return int(text.split()[1]) / 1e9
