"""Run the plain consumer in a process of its own, and stop it in order."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from fanout.local import process

LOG = "rival.log"


def running(folder: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Run the plain consumer by the `local.toml` in `folder`, where its log is too. SIGTERM stops it at the end."""
    return process.running_command([sys.executable, "-m", "load_tests.rivals.plain_consumer"], folder, log=LOG)
