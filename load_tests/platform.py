"""The platform of a load test: real Kafka, real Postgres, and `fanout run` as a user starts it."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from delivery import errors, plan, settings
from fanout import registering
from fanout.local import job as local_job
from fanout.local import stack
from subscriptions_db import connect, manifest, migrate


class Platform:
    """The servers of one run, its settings, and the folder that holds both."""

    def __init__(self, folder: Path, servers: stack.Stack) -> None:
        self.folder = folder
        stack.write_local_settings(folder, servers)
        self.config = settings.load({}, folder / "local.toml", root=folder)

    def register(self, document: dict[str, Any]) -> None:
        """Register what `document` says; see `fanout apply`."""
        with connect.connect(self.config.database) as connection:
            migrate.migrate(connection)
        registering.apply_manifest(self.config, manifest.check(document, plan.guard_of(self.config.delivery)))

    def job(self, overrides: Mapping[str, str]) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        """Run the job with settings (`area.field`) replaced by `overrides`. At the end it is stopped in order."""
        return local_job.running(self.folder, overrides)

    def wait_until(self, is_so: Callable[[], bool], job: subprocess.Popen[bytes], *, within_s: float, what: str) -> None:
        """Wait for `is_so`; raise, with the end of the job's log, when it does not come or the job has ended."""
        deadline = time.monotonic() + within_s
        while not is_so():
            if job.poll() is not None or time.monotonic() > deadline:
                log = (self.folder / local_job.LOG).read_text()[-4000:]
                raise errors.LocalStackError(f"{what}: not within {within_s:.0f} s\n{log}")
            time.sleep(0.01)


@contextlib.contextmanager
def started(root: Path | None = None) -> Iterator[Platform]:
    """Start Kafka and Postgres in a folder of their own."""
    with contextlib.ExitStack() as context:
        folder = root or Path(context.enter_context(tempfile.TemporaryDirectory(prefix="fanout-load-")))
        yield Platform(folder.resolve(), context.enter_context(stack.Stack(folder, is_fresh=True)))
