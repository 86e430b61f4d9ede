"""Run the job as a user does, by `fanout run` in its own process, and stop it in order.

Runs in `fanout` commands, the tests and the load tests.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping
from pathlib import Path

from fanout.local import process

LOG = "job.log"
"""The file with the output of the job."""


def running(
    folder: Path, overrides: Mapping[str, str] | None = None, *arguments: str
) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """Run the job in `folder`, as `process.running` does, with LOG as its log. `arguments` are options of `fanout run`."""
    return process.running(folder, "run", *arguments, log=LOG, overrides=overrides)
