"""Images and containers of a node, by `ctr`: what no component of Kubernetes does without an image registry."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.k8s.cluster import layout, prerequisites
from tests.k8s.cluster.failure import ClusterError
from tests.k8s.cluster.layout import Node


def run(command: Sequence[str | Path], *, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command of the system; raise ClusterError with its message when it fails."""
    environment = os.environ | {"PATH": prerequisites.SEARCH_PATH}
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise ClusterError(f"{' '.join(map(str, command))} failed: {done.stderr.strip()[-2000:]}")
    return done


def ctr(node: Node, *arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run ctr on the node's containerd."""
    return run(["ctr", "--address", node.socket, "--namespace", "k8s.io", *arguments], check=check)


def import_image(name: str) -> bool:
    """Bring an image of podman to every node; return whether that was needed."""
    done = run(["podman", "image", "inspect", "--format", "{{.Id}}", name], check=False)
    if done.returncode:
        raise ClusterError(f"podman has no image {name}: run make image")
    identity = done.stdout.strip()
    lacking = [node for node in layout.NODES if not _has(node, name, identity)]
    if lacking:
        with tempfile.TemporaryDirectory(prefix="fanout-image-") as folder:
            archive = Path(folder) / "image.tar"
            # This format compresses nothing, which takes most of the time otherwise.
            run(["podman", "save", "--quiet", "--format", "docker-archive", "--output", archive, name])
            with concurrent.futures.ThreadPoolExecutor() as pool:
                list(pool.map(lambda node: ctr(node, "images", "import", archive), lacking))
        for node in lacking:
            _stamp(node, name).write_text(identity)
    return bool(lacking)


def tag(name: str, other: str) -> None:
    """Give an image that every node has another name besides."""
    for node in layout.NODES:
        ctr(node, "images", "tag", "--force", name, other)


def ensure_pause_image(node: Node) -> None:
    """Bring the image of the container that holds a pod's namespaces: a static busybox that sleeps."""
    if _has(node, layout.PAUSE_IMAGE, "busybox"):
        return
    with tempfile.TemporaryDirectory(prefix="fanout-pause-") as folder:
        content, archive = Path(folder) / "content.tar", Path(folder) / "image.tar"
        with tarfile.open(content, "w") as tar:
            tar.add("/bin/busybox", "bin/busybox")
        entry = 'ENTRYPOINT ["/bin/busybox","sleep","2147483647"]'
        run(["podman", "import", "--quiet", "--change", entry, content, layout.PAUSE_IMAGE])
        run(["podman", "save", "--quiet", "--format", "oci-archive", "--output", archive, layout.PAUSE_IMAGE])
        ctr(node, "images", "import", archive)
    _stamp(node, layout.PAUSE_IMAGE).write_text("busybox")


def remove_all(node: Node) -> None:
    """End and remove all containers of the node, with their network namespaces.

    The shims of containers outlive containerd, so they have to end before it.
    """
    if ctr(node, "version", check=False).returncode:
        return
    for task in ctr(node, "tasks", "list", "--quiet").stdout.split():
        ctr(node, "tasks", "delete", "--force", task, check=False)
    for container in ctr(node, "containers", "list", "--quiet").stdout.split():
        info = json.loads(ctr(node, "containers", "info", container).stdout)
        ctr(node, "containers", "delete", container, check=False)
        for namespace in info["Spec"]["linux"]["namespaces"]:
            if namespace["type"] == "network" and namespace.get("path", "").startswith("/var/run/netns/"):
                with contextlib.suppress(ClusterError):
                    run(["ip", "netns", "delete", Path(namespace["path"]).name])


def _has(node: Node, name: str, identity: str) -> bool:
    stamp = _stamp(node, name)
    return stamp.is_file() and stamp.read_text() == identity


def _stamp(node: Node, name: str) -> Path:
    """Return the file that says which image the node has by this name."""
    return node.images / ("imported-" + name.replace("/", "-").replace(":", "-"))
