"""Start the cluster's processes so that they outlive the command, and end them by pid.

A pid file holds the pid and the start time of the process: a pid that the kernel has given to another process is left alone.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence

import psutil

from tests.k8s.cluster import layout
from tests.k8s.cluster.failure import ClusterError

STOP_TIMEOUT_S = 20


def start(name: str, command: Sequence[str]) -> None:
    """Start a process with its log in the state folder. No effect while it runs."""
    if find(name) is not None:
        return
    layout.LOGS.mkdir(parents=True, exist_ok=True)
    layout.PIDS.mkdir(parents=True, exist_ok=True)
    log = str(layout.LOGS / f"{name}.log")
    # No Popen: it warns when it is collected while its process runs, and these are to outlive it.
    pid = os.posix_spawnp(
        command[0],
        list(command),
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    (layout.PIDS / name).write_text(f"{pid} {psutil.Process(pid).create_time()}")


def find(name: str) -> psutil.Process | None:
    """Return the running process; None when it has ended or was never started."""
    path = layout.PIDS / name
    if not path.is_file():
        return None
    pid, created = path.read_text().split()
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(int(pid))
        if process.create_time() == float(created) and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None


def stop(name: str) -> None:
    """End the process gracefully; kill it when it does not come to an end."""
    process = find(name)
    if process is not None:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except psutil.TimeoutExpired:
                process.kill()
    (layout.PIDS / name).unlink(missing_ok=True)


def await_true(name: str, answers: Callable[[], bool], *, within_s: float = 60) -> None:
    """Wait until `answers`; raise ClusterError with the end of the log when the process ends or the time is over."""
    deadline = time.monotonic() + within_s
    while not answers():
        if find(name) is None or time.monotonic() > deadline:
            log = layout.LOGS / f"{name}.log"
            last = log.read_text()[-2000:] if log.is_file() else "(no log)"
            raise ClusterError(f"{name} does not answer. Its log, {log}, ends with:\n{last}")
        time.sleep(0.1)
