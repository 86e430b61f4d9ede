"""Run a `fanout` command that goes on until it is stopped, in a process of its own as a user would, and end it in order.

Runs in the command and the load tests.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from delivery.config import loader
from fanout.local import guardian

STOP_TIMEOUT_S = 60


@contextlib.contextmanager
def running(
    folder: Path, *words: str, log: str, overrides: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `fanout <words>` in `folder`, by its local.toml, with settings (`area.field`) replaced by `overrides`.

    Its log is there too. At the end it is asked to stop; its `returncode` then says how it ended. Killed when it does not come
    to an end.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith(loader.PREFIX)}
    replaced = {loader.PREFIX + name.replace(".", "_").upper(): value for name, value in (overrides or {}).items()}
    with (folder / log).open("wb") as file:
        started = subprocess.Popen(
            [sys.executable, "-m", "fanout.cli.main", "--config", "local.toml", *words],
            cwd=folder,
            env=clean | replaced,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,  # Ctrl-C is for whoever started it to answer
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
