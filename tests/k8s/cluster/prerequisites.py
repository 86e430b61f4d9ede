"""Check what the machine must have before the cluster starts."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

from tests.k8s.cluster.failure import ClusterError

PACKAGES = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "podman": "podman",
    "conntrack": "conntrack",
    "nft": "nftables",
    "ip": "iproute2",
    "busybox": "busybox-static",
}
"""Debian's package of each command."""
CNI_PLUGINS = ("ptp", "host-local", "loopback")
CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def require() -> None:
    """Raise ClusterError that names everything that is missing, with the command that brings it."""
    if platform.system() != "Linux":
        raise ClusterError(f"kubelet and containerd need Linux, and this is {platform.system()}: run it in a virtual machine")
    if os.geteuid() != 0:
        raise ClusterError("kubelet and containerd need root: run it with sudo, or on a virtual machine as root")
    missing = {package for command, package in PACKAGES.items() if shutil.which(command, path=SEARCH_PATH) is None}
    if cni_folder() is None:
        missing.add("containernetworking-plugins")
    if missing:
        names = " ".join(sorted(missing))
        raise ClusterError(f"missing on this machine: {names}; run: apt-get install --no-install-recommends {names}")


def cni_folder() -> Path | None:
    """Return the folder with the CNI plugins; None without one."""
    return next((folder for folder in CNI_FOLDERS if all((folder / name).is_file() for name in CNI_PLUGINS)), None)
