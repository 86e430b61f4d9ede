"""Where the cluster keeps its files, which addresses it has, and which versions it runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

KUBERNETES = "1.34.4"
ETCD = "3.6.16"
COREDNS = "1.12.4"
VERSITYGW = "1.8.0"

CACHE = Path.home() / ".cache" / "fanout"
TOOLS = CACHE / "bin"
"""helm and kubectl, from the pinned wheel."""
BIN = CACHE / "kubernetes" / "bin"
SOURCE = CACHE / "kubernetes" / "src"
STATE = CACHE / "kubernetes" / "state"
LOGS = STATE / "log"
PIDS = STATE / "pid"
PKI = STATE / "pki"
KUBECONFIG = STATE / "admin.kubeconfig"
AUDIT_LOG = STATE / "audit.log"

BRIDGE = "fanout-nodes"
"""Bridge without ports that holds the addresses of the nodes. A kernel without the device type `dummy` has bridges."""
PODS = "10.244.0.0/16"
SERVICES = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
DNS_SERVICE = "10.96.0.10"
DNS_PORT = 10053
API_PORT = 26443
ETCD_PORT = 23790
ETCD_PEER_PORT = 23800
PAUSE_IMAGE = "localhost/pause:1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A kubelet and a containerd of its own. Two kubelets on one containerd would end each other's pods."""

    name: str
    address: str
    pods: str
    """The subnet of its pods."""
    zone: str

    @property
    def folder(self) -> Path:
        return STATE / self.name

    @property
    def images(self) -> Path:
        """Outlives `down`: an import of the platform's image takes longer than all other steps of `up` together."""
        return CACHE / "kubernetes" / "images" / self.name

    @property
    def socket(self) -> Path:
        return self.folder / "containerd.sock"

    @property
    def cgroup(self) -> str:
        """Name of the node's own cgroup, because a kubelet removes unknown pods from its cgroup."""
        return f"fanout-{self.name}"


NODES = (
    Node(name="node-1", address="10.243.0.1", pods="10.244.1.0/24", zone="zone-a"),
    Node(name="node-2", address="10.243.0.2", pods="10.244.2.0/24", zone="zone-b"),
)
CONTROL_PLANE = NODES[0].address
API_URL = f"https://{CONTROL_PLANE}:{API_PORT}"
