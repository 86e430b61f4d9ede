"""Run the job as a user does, by `fanout run` in its own process, and stop it gracefully.

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
    """Return a context that runs `fanout run` in `folder`, with the settings of its local.toml, and yields the process.

    `overrides` replace settings (`area.field`). `arguments` are options of `fanout run`. The file LOG in the folder gets the
    output. The end of the context stops the job gracefully, or kills it after `process.STOP_TIMEOUT_S`.
    """
    return process.running(folder, "run", *arguments, log=LOG, overrides=overrides)
