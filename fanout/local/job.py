"""Run the job as a user would, `fanout run` in a process of its own, and end it in order.

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

from delivery import configuration
from fanout.local import guardian

LOG = "job.log"
STOP_TIMEOUT_S = 60


@contextlib.contextmanager
def running(folder: Path, overrides: Mapping[str, str] | None = None, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the job in `folder`, by its local.toml, with settings (`area.field`) replaced by `overrides`; its log is there too.

    `arguments` are those of `fanout run`. At the end it is asked to stop; its `returncode` then says how it ended. Killed when
    it does not come to an end.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith(configuration.PREFIX)}
    replaced = {configuration.PREFIX + name.replace(".", "_").upper(): value for name, value in (overrides or {}).items()}
    with (folder / LOG).open("wb") as log:
        job = subprocess.Popen(
            [sys.executable, "-m", "fanout.cli", "--config", "local.toml", "run", *arguments],
            cwd=folder,
            env=clean | replaced,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for whoever started it to answer
        )
    watcher = guardian.watch([job.pid])
    try:
        yield job
    finally:
        job.send_signal(signal.SIGTERM)
        try:
            job.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            job.kill()
            job.wait()
        guardian.dismiss(watcher)
