"""Run the plain consumer in a process of its own, and stop it gracefully."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from fanout.local import process

LOG = "rival.log"
"""Name of the plain consumer's log in its folder."""


def running(folder: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Return a context in which the plain consumer runs, by `local.toml` in `folder`. The context's end sends SIGTERM."""
    return process.running_command([sys.executable, "-m", "load_tests.rivals.plain_consumer"], folder, log=LOG)
