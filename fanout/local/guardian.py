"""Stop a process when the process that started this guardian (the parent) has ended, also if the parent was killed.

Runs as its own process (`python -m fanout.local.guardian PID`). The guardian's standard input is a pipe from its parent. The
pipe closes when the parent ends, by SIGKILL too. A parent that ends gracefully stops the process and then the guardian.
The argument may also be a file into which the process will write its pid. So Postgres, which a library starts, is guarded
before it runs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

APPEARS_S = 3.0
"""Seconds for which the guardian waits for the pid file. A longer wait could find the pid of a second start on the same
data."""


def watch(process: int | Path) -> subprocess.Popen[bytes]:
    """Start a guardian for a process, named by its pid or its pid file. Return the guardian's process.

    A caller that stops the process must then `dismiss` the guardian.
    """
    # Its own session, so that Ctrl-C in the terminal reaches only the parent.
    command = [sys.executable, "-m", "fanout.local.guardian", str(process)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def dismiss(guardian: subprocess.Popen[bytes]) -> None:
    """End a guardian whose process was stopped, because the pid may belong to another process by now."""
    guardian.kill()
    guardian.wait()
    if guardian.stdin is not None:
        guardian.stdin.close()


def main() -> None:
    """Wait until the pipe closes, then stop the process."""
    sys.stdin.read()
    pid = _pid_of(sys.argv[1])
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)  # a fast shutdown of Postgres
            # For a JVM that ignores SIGINT, as programs do that a shell starts in the background.
            os.kill(pid, signal.SIGTERM)


def _pid_of(process: str) -> int | None:
    """Return the pid in `process`, or in the first line of the file `process`. None: no pid was written within APPEARS_S."""
    if process.isdigit():
        return int(process)
    until = time.monotonic() + APPEARS_S
    while time.monotonic() < until:
        with contextlib.suppress(OSError, IndexError, ValueError):  # not there yet, or still empty
            return int(Path(process).read_text().splitlines()[0])
        time.sleep(0.05)
    return None


if __name__ == "__main__":
    main()
