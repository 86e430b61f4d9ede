"""Run a long-running `fanout` command in its own process, as a user does, and stop it gracefully.

Runs in `fanout` commands, the tests and the load tests.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from delivery.config import settings_loader
from fanout.local import guardian

STOP_TIMEOUT_S = 60
"""Seconds that the process may take to stop before it is killed."""


@contextlib.contextmanager
def running(
    folder: Path, *words: str, log: str, overrides: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `fanout <words>` in `folder` with the settings of its local.toml, and yield the process.

    `overrides` replace settings (`area.field`). The file `log` in the folder is deleted, and then gets the output. The end of
    the context stops the process gracefully, or kills it after STOP_TIMEOUT_S.
    """
    replaced = {settings_loader.PREFIX + name.replace(".", "_").upper(): value for name, value in (overrides or {}).items()}
    (folder / log).unlink(missing_ok=True)
    command = [sys.executable, "-m", "fanout.cli.main", "--config", "local.toml", *words]
    with running_command(command, folder, log=log, environment=replaced) as started:
        yield started


@contextlib.contextmanager
def running_command(
    command: Sequence[str], folder: Path, *, log: str, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in `folder`, append its output to the file `log` there, and yield the process.

    The process does not inherit settings (variables FANOUT_…) from this process. `environment` adds variables. The end of the
    context sends SIGTERM, and SIGKILL if the process still runs after STOP_TIMEOUT_S. Then the `returncode` of the yielded
    process says how the process ended.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith(settings_loader.PREFIX)}
    with (folder / log).open("ab") as file:
        started = subprocess.Popen(
            command,
            cwd=folder,
            env=clean | dict(environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,  # so that Ctrl-C reaches only the parent
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
