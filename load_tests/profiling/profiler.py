"""Profile the JVM, the driver's Python and the workers of a job, while a part of a load test runs.

Runs in the process of the load test.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import psutil

from load_tests.profiling import async_profiler, components, cpu_times, py_spy

Processes = Sequence[tuple[psutil.Process, str]]
"""Processes of the job with their roles: `jvm`, `driver` or `worker`."""

PYTHON_ROLES = ("driver", "worker")
"""Roles whose stacks py-spy samples."""
LEAST_S = 0.01
"""CPU seconds below which a thread name is not listed."""


class Profiler:
    """Write the profile of each part into a folder of its own below `folder`."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder = folder.resolve()
        self._say = say
        self._jar = async_profiler.ensure()

    @contextlib.contextmanager
    def profiled(self, part: str, running: Callable[[], Processes], delivered: Callable[[], int]) -> Iterator[None]:
        """Profile the job while the context lasts, and write the profile when the context ends.

        Stacks are sampled in the processes that run at the beginning. CPU seconds are those of the processes that run at the
        end.

        `running()` returns the processes that run at the time of its call, and `delivered()` the number of deliveries until its
        call. Both are called at the beginning and at the end. No profile is written if the context ends with an error.
        """
        processes, folder = running(), self._folder / part
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("*.stacks"):
            path.unlink()
        stacks = {role: folder / f"{role}.stacks" for role in ("jvm", *PYTHON_ROLES)}
        [jvm] = [process.pid for process, role in processes if role == "jvm"]
        with contextlib.ExitStack() as at_end:
            recordings = []
            for process, path in _sampled(processes, folder):
                recordings.append(py_spy.Recording(process, path))
                at_end.callback(recordings[-1].kill)
            async_profiler.start(self._jar, jvm)
            began = {process.pid: cpu_times.read(process) for process, _ in processes}
            began_s, before = time.monotonic(), delivered()
            yield
            took_s, count, last = time.monotonic() - began_s, delivered() - before, running()
            cpu_s = _cpu_s(last, began)
            for recording in recordings:
                recording.stop()
            async_profiler.stop(self._jar, jvm, stacks["jvm"])
            for recording in recordings:
                recording.wait()
        _join(folder, stacks)
        for role, path in stacks.items():
            async_profiler.draw(self._jar, path, folder / f"{role}.html", f"{part}: {role}")
        document = {
            "part": part,
            "took_s": round(took_s, 1),
            "deliveries": count,
            "processes": {
                "started_meanwhile": sum(process.pid not in began for process, _ in last),
                "ended_meanwhile": len(began.keys() - {process.pid for process, _ in last}),
            },
            "roles": _roles(stacks, cpu_s, count),
        }
        (folder / "profile.json").write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
        self._say(f"profile of {part}: {folder}/profile.json, jvm.html, driver.html and worker.html")


def _sampled(processes: Processes, folder: Path) -> Iterator[tuple[psutil.Process, Path]]:
    """Yield the driver's Python and the workers, each with its file. The daemons that fork the workers are left out."""
    daemons = set()
    for process, role in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            daemons |= {process.parent()} if role == "worker" else set()
    for process, role in processes:
        if role in PYTHON_ROLES and process not in daemons:
            yield process, folder / f"{role}-{process.pid}.stacks"


def _join(folder: Path, stacks: Mapping[str, Path]) -> None:
    """Join the samples of all processes of a role into one file."""
    for role in PYTHON_ROLES:
        parts = sorted(folder.glob(f"{role}-*.stacks"))
        stacks[role].write_text("".join(path.read_text() for path in parts))
        for path in parts:
            path.unlink()


def _cpu_s(processes: Processes, before: Mapping[int, cpu_times.CpuTimes]) -> dict[str, dict[str, float]]:
    """Return role → name of a thread → CPU seconds since `before`, of all processes of the role.

    A process that is not in `before` counts from its start.
    """
    spent: dict[str, dict[str, float]] = {}
    for process, role in processes:
        of_role = spent.setdefault(role, {})
        earlier = before.get(process.pid, cpu_times.CpuTimes())
        for name, used_s in cpu_times.spent(earlier, cpu_times.read(process)).items():
            of_role[name] = of_role.get(name, 0.0) + used_s
    return spent


def _roles(stacks: Mapping[str, Path], cpu_s: Mapping[str, Mapping[str, float]], count: int) -> dict[str, Any]:
    tables = {"jvm": components.JVM, "driver": components.PYTHON, "worker": components.PYTHON}
    return {
        role: {
            "cpu_s": round(sum(spent.values()), 2),
            "us_per_delivery": round(sum(spent.values()) * 1e6 / count, 1) if count else None,
            "threads_cpu_s": {
                name: round(used_s, 2) for name, used_s in sorted(spent.items(), key=lambda pair: -pair[1]) if used_s >= LEAST_S
            },
            "share_of_samples": components.shares(stacks[role].read_text().splitlines(), tables[role]),
        }
        for role, spent in cpu_s.items()
    }
