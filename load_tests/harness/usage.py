"""Measure CPU seconds and memory of a process and its descendants.

Each process has a role: `jvm` (each Java process), `driver` (the measured process, if it is not Java) or `worker` (any other
descendant).
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

MB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """CPU seconds by role: since the processes began, or between two readings."""

    jvm_s: float = 0.0
    """CPU seconds of all JVMs."""
    driver_s: float = 0.0
    """CPU seconds of the driver's Python."""
    workers_s: float = 0.0
    """CPU seconds of all Python workers."""

    @property
    def python_s(self) -> float:
        """Return the CPU seconds of the driver's Python and of all workers."""
        return self.driver_s + self.workers_s

    def per_million(self, count: int) -> dict[str, float]:
        """Return `jvm`, `python` and `total` CPU seconds for a million events, when this usage was for `count` events."""
        seconds = {"jvm": self.jvm_s, "python": self.python_s, "total": self.jvm_s + self.python_s}
        return {name: round(used * 1e6 / count, 1) for name, used in seconds.items()}

    def since(self, earlier: Usage) -> Usage:
        """Return the usage since the reading `earlier` of the same processes."""
        return Usage(
            jvm_s=self.jvm_s - earlier.jvm_s,
            driver_s=self.driver_s - earlier.driver_s,
            workers_s=self.workers_s - earlier.workers_s,
        )


class Meter:
    """Read the usage of a process and its descendants. An ended process keeps its last reading."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._read: dict[tuple[int, float], tuple[str, float, float]] = {}
        """Role, CPU seconds and peak memory in MB of each process."""

    def processes(self) -> list[tuple[psutil.Process, str]]:
        """Return the running processes with their roles: `driver`, `jvm` or `worker`."""
        found = []
        with contextlib.suppress(psutil.NoSuchProcess):  # the root has ended
            for process in [self._root, *self._root.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    found.append((process, _role(process, self._root)))
        return found

    def read(self) -> Usage:
        """Return the CPU seconds of all processes until now."""
        for process, role in self.processes():
            try:
                with process.oneshot():
                    key = (process.pid, process.create_time())
                    times = process.cpu_times()
                    self._read[key] = (role, times.user + times.system, _peak_mb(process.pid))
            except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
                continue
        return Usage(jvm_s=self._sum("jvm"), driver_s=self._sum("driver"), workers_s=self._sum("worker"))

    def _sum(self, role: str) -> float:
        return sum(seconds for its_role, seconds, _ in self._read.values() if its_role == role)

    def resident_mb(self) -> dict[str, float]:
        """Return the present resident size by role, in MB: the sum of all processes of the role."""
        sizes: dict[str, float] = {}
        for process, role in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                sizes[role] = sizes.get(role, 0.0) + process.memory_info().rss / MB
        return sizes

    def heap_mb_after_gc(self) -> int | None:
        """Run a full garbage collection of the first JVM; return its live heap in MB. None without a JVM or without `jcmd`.

        The JVM must use the parallel collector, as the job's JVMs do by default. With another collector the result is 0.
        """
        jvms = [process.pid for process, role in self.processes() if role == "jvm"]
        if not jvms or (jcmd := shutil.which("jcmd")) is None:
            return None
        lines = [
            subprocess.run([jcmd, str(jvms[0]), command], capture_output=True, text=True, check=True).stdout
            for command in ("GC.run", "GC.heap_info")
        ]
        spaces = re.findall(r"(?:PSYoungGen|ParOldGen) +total \d+K, used (\d+)K", lines[-1])
        return round(sum(map(int, spaces)) / 1024)

    def peak_mb(self) -> dict[str, float]:
        """Return the peak resident size by role, in MB, at the last `read`: the size of the role's largest process."""
        peaks: dict[str, float] = {}
        for role, _, peak in self._read.values():
            peaks[role] = max(peaks.get(role, 0.0), peak)
        return peaks


def step_back(pid: int, nice: int) -> None:
    """Lower the priority of a new process and its descendants.

    With `sched_autogroup`, Linux first divides the CPU between sessions, and a nice value counts only within its session. So
    the function also sets the nice value of the session.
    """
    psutil.Process(pid).nice(nice)
    with contextlib.suppress(FileNotFoundError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))


def _role(process: psutil.Process, root: psutil.Process) -> str:
    if process.name() == "java":
        return "jvm"
    return "driver" if process == root else "worker"


def _peak_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0
