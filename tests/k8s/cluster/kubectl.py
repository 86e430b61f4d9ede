"""Ask the API server by kubectl, as an operator does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.k8s.cluster import layout
from tests.k8s.cluster.failure import ClusterError


def tool(name: str) -> str:
    """Return the path of helm or kubectl: the one in the cache, else the one on the PATH."""
    if (path := layout.TOOLS / name).is_file():
        return str(path)
    if found := shutil.which(name):
        return found
    raise ClusterError(f"{name} is missing: run deploy/helm/tools {layout.TOOLS}")


def environment() -> dict[str, str]:
    """Return the environment in which helm and kubectl reach the cluster, and nothing else that the user has configured."""
    home = str(layout.STATE)
    return {"PATH": os.environ.get("PATH", ""), "HOME": home, "KUBECONFIG": str(layout.KUBECONFIG)}


def run(
    *arguments: str | Path, given: str | bytes | None = None, check: bool = True, timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run kubectl; raise ClusterError with its message when it fails."""
    given = given.decode() if isinstance(given, bytes) else given
    command = [tool("kubectl"), *map(str, arguments)]
    done = subprocess.run(
        command, input=given, env=environment(), capture_output=True, text=True, check=False, timeout=timeout_s
    )
    if check and done.returncode:
        raise ClusterError(f"kubectl {' '.join(map(str, arguments))} failed: {done.stderr.strip()}")
    return done


def get(*arguments: str) -> Any:
    """Return what kubectl prints of an object, or of a list of objects."""
    return json.loads(run("get", *arguments, "--output", "json").stdout)


def apply(*documents: dict[str, Any]) -> None:
    """Make objects, or bring them to this state."""
    run("apply", "--filename", "-", given=yaml.safe_dump_all(documents))
