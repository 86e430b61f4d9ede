"""End the given processes when whoever started this one is gone, however it went.

Runs as a process of its own (`python -m fanout.local.guardian PID …`), its standard input a pipe from its parent: the pipe
ends when the parent does, by SIGKILL too. A parent that ends in order stops its processes and then this one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys


def watch(pids: list[int]) -> subprocess.Popen[bytes]:
    """Start a guardian for `pids`; terminate it when they have been stopped in order."""
    # A session of its own: Ctrl-C in the terminal is for the parent to answer.
    command = [sys.executable, "-m", "fanout.local.guardian", *map(str, pids)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def dismiss(guardian: subprocess.Popen[bytes]) -> None:
    """End a guardian whose processes have been stopped; their numbers may be others' by now."""
    guardian.kill()
    guardian.wait()
    if guardian.stdin is not None:
        guardian.stdin.close()


def main() -> None:
    """Wait for the end of the pipe, then end the processes."""
    sys.stdin.read()
    for pid in map(int, sys.argv[1:]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)  # what Postgres calls a fast shutdown
            os.kill(
                pid, signal.SIGTERM
            )  # for a JVM whose SIGINT is ignored, as a shell does it to what it puts in the background


if __name__ == "__main__":
    main()
