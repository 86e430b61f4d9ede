"""`python -m tests.k8s.cluster build | up | down | status | image NAME`: the commands for the cluster of the tests."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import time
from pathlib import Path

from tests.k8s.cluster import (
    binaries,
    certificates,
    containers,
    control_plane,
    kubectl,
    layout,
    names,
    node,
    prerequisites,
    processes,
)
from tests.k8s.cluster.failure import ClusterError


def build() -> None:
    """Build the programs of the cluster that the cache lacks. Some minutes, once; on a slow machine half an hour."""
    prerequisites.require()
    binaries.ensure(say)


def up() -> None:
    """Start everything that does not run; return when both nodes are ready."""
    build()
    kubectl.tool("kubectl")
    began = time.monotonic()
    layout.STATE.mkdir(parents=True, exist_ok=True)
    certificates.write()
    _start_network()
    control_plane.start()
    for machine in layout.NODES:
        node.start(machine)
    node.start_proxy()
    names.start()
    for machine in layout.NODES:
        processes.await_true(f"{machine.name}-kubelet", lambda machine=machine: node.is_ready(machine), within_s=120)
    say(f"{len(layout.NODES)} nodes are ready after {time.monotonic() - began:.0f} s; KUBECONFIG={layout.KUBECONFIG}")


def down() -> None:
    """End everything, and remove the state. The programs and the images stay in the cache."""
    for name in ("proxy", "coredns"):
        processes.stop(name)
    for machine in layout.NODES:
        node.stop(machine)
    control_plane.stop()
    for family in ("ip", "ip6"):
        containers.run(["nft", "delete", "table", family, "kube-proxy"], check=False)
    containers.run(["ip", "link", "delete", layout.BRIDGE], check=False)
    shutil.rmtree(layout.STATE, ignore_errors=True)


def status() -> None:
    """Print the processes, and the nodes and pods as the API server knows them."""
    found = sorted(path.name for path in layout.PIDS.glob("*")) if layout.PIDS.is_dir() else []
    for name in found:
        process = processes.find(name)
        say(f"{name:<20} {process.pid if process else 'has ended: ' + str(layout.LOGS / name) + '.log'}")
    if processes.find("apiserver") is None:
        say("the cluster does not run: python -m tests.k8s.cluster up")
        return
    say(kubectl.run("get", "nodes,pods", "--all-namespaces", "--output", "wide").stdout)


def image(name: str) -> None:
    """Bring an image from podman to both nodes."""
    began = time.monotonic()
    if containers.import_image(name):
        say(f"{name} imported after {time.monotonic() - began:.0f} s")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _start_network() -> None:
    """Give the nodes their addresses, and let this machine forward between pods. Forwarding stays on after `down`."""
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    with contextlib.suppress(ClusterError):  # it exists
        containers.run(["ip", "link", "add", layout.BRIDGE, "type", "bridge"])
    for machine in layout.NODES:
        containers.run(["ip", "address", "replace", f"{machine.address}/24", "dev", layout.BRIDGE])
    containers.run(["ip", "link", "set", layout.BRIDGE, "up"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.k8s.cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    plain = {command.__name__: command for command in (build, up, down, status)}
    for name, command in plain.items():
        commands.add_parser(name, help=command.__doc__)
    commands.add_parser("image", help=image.__doc__).add_argument("name")
    given = parser.parse_args()
    try:
        image(given.name) if given.command == "image" else plain[given.command]()
    except ClusterError as exc:
        sys.exit(str(exc))


if __name__ == "__main__":
    main()
