"""One node: a kubelet with its own containerd, cgroup, address and subnet for pods."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path

import yaml

from tests.k8s.cluster import containers, kubectl, layout, prerequisites, processes
from tests.k8s.cluster.layout import Node

CGROUPS = Path("/sys/fs/cgroup")
CPU_SHARES = 8192
"""CPU shares of each node's cgroup. By default all pods of a node have the share of one process without a cgroup (1024)."""
CONTAINERD = """\
version = 2
root = "{root}"
state = "{state}/containerd"
[grpc]
address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
path = "{state}/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
# Root of a container has no right to lower OOM scores.
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{plugins}"
conf_dir = "{state}/cni"
"""


def start(node: Node) -> None:
    """Start containerd and kubelet; return when containerd answers. The node is ready some seconds later."""
    _start_containerd(node)
    containers.ensure_pause_image(node)
    _make_cgroup(node)
    config = node.folder / "kubelet.yaml"
    config.write_text(yaml.safe_dump(_kubelet_settings(node)))
    processes.start(
        f"{node.name}-kubelet",
        [
            str(layout.BIN / "kubelet"),
            f"--config={config}",
            f"--kubeconfig={layout.STATE / node.name}.kubeconfig",
            f"--root-dir={node.folder / 'kubelet'}",
            f"--cert-dir={node.folder / 'pki'}",
            f"--hostname-override={node.name}",
            f"--node-ip={node.address}",
            f"--node-labels=topology.kubernetes.io/zone={node.zone}",
        ],
    )


def start_proxy() -> None:
    """Start kube-proxy: one, because both nodes are in one network namespace."""
    first = layout.NODES[0]
    processes.start(
        "proxy",
        [
            str(layout.BIN / "kube-proxy"),
            f"--kubeconfig={layout.STATE / 'proxy.kubeconfig'}",
            f"--hostname-override={first.name}",
            f"--cluster-cidr={layout.PODS}",
            "--proxy-mode=nftables",
            "--conntrack-max-per-core=0",
            f"--metrics-bind-address={first.address}:10249",
            f"--healthz-bind-address={first.address}:10256",
        ],
    )


def is_ready(node: Node) -> bool:
    """Tell whether the API server takes the node for ready."""
    path = '{.status.conditions[?(@.type=="Ready")].status}'
    done = kubectl.run("get", "node", node.name, "--output", f"jsonpath={path}", check=False)
    return done.stdout == "True"


def stop(node: Node) -> None:
    """End the kubelet, all containers of the node, and containerd; remove mounts and cgroups."""
    processes.stop(f"{node.name}-kubelet")
    containers.remove_all(node)
    processes.stop(f"{node.name}-containerd")
    _unmount(node.folder)
    for controller in CGROUPS.iterdir():
        folders = sorted((controller / node.cgroup).rglob("*/"), reverse=True)
        for folder in [*folders, controller / node.cgroup]:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _start_containerd(node: Node) -> None:
    (node.folder / "cni").mkdir(parents=True, exist_ok=True)
    node.images.mkdir(parents=True, exist_ok=True)
    config = node.folder / "containerd.toml"
    values = {"root": node.images, "state": node.folder, "socket": node.socket, "pause": layout.PAUSE_IMAGE}
    config.write_text(CONTAINERD.format(**values, plugins=prerequisites.cni_folder()))
    addresses = {"type": "host-local", "ranges": [[{"subnet": node.pods}]], "dataDir": str(node.folder / "addresses")}
    network = {
        "cniVersion": "1.0.0",
        "name": node.name,
        "plugins": [{"type": "ptp", "ipMasq": False, "ipam": addresses | {"routes": [{"dst": "0.0.0.0/0"}]}}],
    }
    (node.folder / "cni" / "10-pods.conflist").write_text(json.dumps(network))
    name = f"{node.name}-containerd"
    processes.start(name, ["containerd", "--config", str(config)])
    processes.await_true(name, lambda: containers.ctr(node, "version", check=False).returncode == 0)


def _kubelet_settings(node: Node) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": False}, "x509": {"clientCAFile": str(layout.PKI / "ca.crt")}},
        "authorization": {"mode": "AlwaysAllow"},
        "address": node.address,
        "healthzBindAddress": node.address,
        "readOnlyPort": 0,
        "containerRuntimeEndpoint": f"unix://{node.socket}",
        "podLogsDir": str(node.folder / "logs"),
        "clusterDNS": [layout.DNS_SERVICE],
        "clusterDomain": "cluster.local",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.cgroup}",
        "enforceNodeAllocatable": [],
        "evictionHard": {},
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        "makeIPTablesUtilChains": False,
    }


def _make_cgroup(node: Node) -> None:
    """Make the folder of the node for each controller: kubelet demands that it exists."""
    for controller in [entry for entry in CGROUPS.iterdir() if entry.is_dir() and not entry.is_symlink()]:
        folder = controller / node.cgroup
        folder.mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            # Version 1 lets no process into a group without them.
            if (controller / name).is_file() and not (folder / name).read_text().strip():
                (folder / name).write_text((controller / name).read_text())
        if (shares := folder / "cpu.shares").is_file():
            shares.write_text(str(CPU_SHARES))


def _unmount(folder: Path) -> None:
    """Unmount what kubelet and containerd have mounted below the folder."""
    mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for path in reversed([path for path in mounted if Path(path).is_relative_to(folder)]):
        subprocess.run(["umount", "--lazy", path], env=_path(), capture_output=True, check=False)  # noqa: S607


def _path() -> dict[str, str]:
    return os.environ | {"PATH": prerequisites.SEARCH_PATH}
