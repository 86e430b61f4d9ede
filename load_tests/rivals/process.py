"""Run the plain consumer in a process of its own, and end it in order."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from delivery.config import loader
from fanout.local import guardian

LOG = "rival.log"
STOP_TIMEOUT_S = 20


@contextlib.contextmanager
def running(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the plain consumer by the `local.toml` in `folder`, where its log is too. SIGTERM ends it at the end."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(loader.PREFIX)}
    with (folder / LOG).open("ab") as file:
        started = subprocess.Popen(
            [sys.executable, "-m", "load_tests.rivals.plain_consumer"],
            cwd=folder,
            env=clean,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,  # Ctrl-C is for the load test to answer
        )
    watcher = guardian.watch(started.pid)
    try:
        yield started
    finally:
        started.send_signal(signal.SIGTERM)
        try:
            started.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
        guardian.dismiss(watcher)
