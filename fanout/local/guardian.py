"""End the given process when whoever started this one is gone, however it went.

Runs as a process of its own (`python -m fanout.local.guardian PID`), its standard input a pipe from its parent: the pipe ends
when the parent does, by SIGKILL too. A parent that ends in order stops its process and then this one. In place of a number the
file may be given into which the process will write its own: so Postgres, which somebody else starts for us, is guarded before
it is there.
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
"""What was being started when its parent was killed has written its number by then. No longer: whoever starts it again on the
same data writes the same file."""


def watch(process: int | Path) -> subprocess.Popen[bytes]:
    """Start a guardian for a process, by its number or its file; dismiss it when that has been stopped in order."""
    # A session of its own: Ctrl-C in the terminal is for the parent to answer.
    command = [sys.executable, "-m", "fanout.local.guardian", str(process)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def dismiss(guardian: subprocess.Popen[bytes]) -> None:
    """End a guardian whose process has been stopped; its number may be another's by now."""
    guardian.kill()
    guardian.wait()
    if guardian.stdin is not None:
        guardian.stdin.close()


def main() -> None:
    """Wait for the end of the pipe, then end the process."""
    sys.stdin.read()
    pid = _pid_of(sys.argv[1])
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)  # what Postgres calls a fast shutdown
            # For a JVM whose SIGINT is ignored, as a shell does it to what it puts in the background.
            os.kill(pid, signal.SIGTERM)


def _pid_of(process: str) -> int | None:
    """Return the number, or what the file begins with; None: nothing has written one."""
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
