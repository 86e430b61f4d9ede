"""What the job's processes use: CPU seconds and memory, the JVM and Python apart."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """CPU seconds since the processes began."""

    jvm_s: float = 0.0
    python_s: float = 0.0

    def since(self, earlier: Usage) -> Usage:
        """Return what was used after `earlier`."""
        return Usage(jvm_s=self.jvm_s - earlier.jvm_s, python_s=self.python_s - earlier.python_s)


class Meter:
    """Read the use of a process and all that it started. What has ended keeps its last reading."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._cpu_s: dict[tuple[int, float], tuple[bool, float]] = {}
        self._peak_mb: dict[tuple[int, float], tuple[str, float]] = {}

    def read(self) -> Usage:
        """Return the CPU seconds of all processes until now."""
        for process in [self._root, *self._root.children(recursive=True)]:
            try:
                with process.oneshot():
                    key = (process.pid, process.create_time())
                    times = process.cpu_times()
                    name = process.name()
                    self._cpu_s[key] = (name == "java", times.user + times.system)
                    self._peak_mb[key] = (_role(process, self._root), _peak_mb(process.pid))
            except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
                continue
        return Usage(
            jvm_s=sum(seconds for is_jvm, seconds in self._cpu_s.values() if is_jvm),
            python_s=sum(seconds for is_jvm, seconds in self._cpu_s.values() if not is_jvm),
        )

    def peak_mb(self) -> dict[str, float]:
        """Return the largest resident size of the JVM, the driver's Python and the largest worker, in MB, as last read."""
        peaks: dict[str, float] = {}
        for role, peak in self._peak_mb.values():
            peaks[role] = max(peaks.get(role, 0.0), peak)
        return peaks


def _role(process: psutil.Process, root: psutil.Process) -> str:
    if process.name() == "java":
        return "jvm"
    return "driver" if process == root else "worker"


def _peak_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0
