"""Run the plain consumer (plain_consumer.py), the platform's rival, in a process of its own, and stop it gracefully."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from fanout.local import process

LOG = "rival.log"
"""Name of the plain consumer's log in its folder."""


def running(folder: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Return a context that runs the plain consumer in `folder`, with the settings of its local.toml, and yields the process.

    The end of the context sends SIGTERM, and SIGKILL if the process still runs after `process.STOP_TIMEOUT_S`.
    """
    return process.running_command([sys.executable, "-m", "load_tests.rivals.plain_consumer"], folder, log=LOG)
