"""Sample the stacks of Python processes, by py-spy (https://github.com/benfred/py-spy).

Runs in the process of the load test. py-spy sees the threads of Python only. `cpu_times` also counts the threads of libraries,
such as librdkafka.
"""

from __future__ import annotations

import signal
import subprocess
import sysconfig
from pathlib import Path

import psutil

from delivery import errors

RATE = 20
"""Samples a second of each process. A sample takes 1.4 ms of CPU on a slow machine: 100 a second of 14 processes took two
cores."""
OPTIONS = ("record", "--rate", str(RATE), "--nonblocking", "--format", "raw")
TIMEOUT_S = 60
"""Seconds within which py-spy must have written its samples."""


class Recording:
    """The sampling of one process. `kill` must be called at the end, also after a failure."""

    def __init__(self, process: psutil.Process, stacks: Path) -> None:
        """Begin the sampling. py-spy writes the stacks with their numbers of samples, a line each, into the file `stacks`."""
        program = Path(sysconfig.get_path("scripts")) / "py-spy"
        self._sampled = process
        self._stacks = stacks
        self._process = subprocess.Popen(
            [program, *OPTIONS, "--output", stacks, "--pid", str(process.pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def stop(self) -> None:
        """Ask py-spy to end. Does not wait, so that all recordings end at the same time."""
        self._process.send_signal(signal.SIGINT)

    def wait(self) -> None:
        """Wait until the file is written. Called after `stop`.

        Raise LocalStackError if py-spy does not end within TIMEOUT_S, or wrote no file and the sampled process still runs. An
        ended process is no error, because Spark ends workers that had no task for a minute.
        """
        try:
            said, _ = self._process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise errors.LocalStackError(
                f"py-spy did not write its samples within {TIMEOUT_S} s, so there is no profile: run the command again"
            ) from None
        if not self._stacks.is_file() and not _has_ended(self._sampled):
            raise errors.LocalStackError(
                "py-spy wrote no samples, so there is no profile. It needs the right to trace processes (root, or "
                f"CAP_SYS_PTRACE in a container): {said.decode(errors='replace').strip()}"
            )

    def kill(self) -> None:
        """End py-spy if it still runs."""
        self._process.kill()
        self._process.wait()


def _has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
