"""A release of the chart, by helm and kubectl as an operator uses them."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.k8s.cluster import kubectl

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "fanout"
NAMESPACE = "fanout"


def eventually(value: Callable[[], Any], holds: Callable[[Any], bool] = bool, *, within_s: float, every_s: float = 0.3) -> Any:
    """Ask `value` until it `holds`; fail with the last value."""
    deadline = time.monotonic() + within_s
    while True:
        last = value()
        if holds(last):
            return last
        assert time.monotonic() < deadline, f"after {within_s} s the last value was {last!r}"
        time.sleep(every_s)


class Release:
    """One release, by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def helm(self, *arguments: str, values: dict[str, Any] | None = None, check: bool = True, timeout_s: float = 300) -> str:
        """Run helm in the namespace; return what it prints."""
        command = [kubectl.tool("helm"), *arguments, "--namespace", NAMESPACE]
        if values is not None:
            command += ["--values", "-"]  # after files that `arguments` name: these come before them
        done = subprocess.run(
            command,
            input=None if values is None else json.dumps(values),
            env=kubectl.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr + self.log("migrate", tail=20)
        return done.stdout + done.stderr

    def install(self, values: dict[str, Any], *options: str) -> str:
        return self.helm("install", self.name, str(CHART), *options, values=values)

    def upgrade(self, values: dict[str, Any], *options: str) -> str:
        return self.helm("upgrade", self.name, str(CHART), *options, values=values)

    def pods(self, component: str) -> list[dict[str, Any]]:
        """Return the pods of a component that are not about to end."""
        labels = f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component={component}"
        found = kubectl.get("pods", "--namespace", NAMESPACE, "--selector", labels)["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def running(self, component: str) -> list[dict[str, Any]]:
        """Return those that run."""
        return [pod for pod in self.pods(component) if pod["status"].get("phase") == "Running"]

    def ready(self, component: str) -> list[dict[str, Any]]:
        """Return those that are ready."""
        return [pod for pod in self.pods(component) if is_ready(pod)]

    def await_ready(self, component: str, *, within_s: float = 180, other_than: str = "") -> dict[str, Any]:
        """Return the pod of a component when it is ready; `other_than`: and has another uid."""

        def successor() -> list[dict[str, Any]]:
            return [pod for pod in self.ready(component) if uid(pod) != other_than]

        [pod, *_] = eventually(successor, within_s=within_s)
        return pod

    def kill(self, pod: dict[str, Any]) -> None:
        """End a pod as a crash of its machine does: SIGKILL, and no grace."""
        kubectl.run("delete", "pod", name(pod), "--namespace", NAMESPACE, "--grace-period=0", "--force", "--wait=false")

    def log(self, component: str, *, tail: int = 200) -> str:
        """Return the end of the logs of a component, of all its pods."""
        labels = f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component={component}"
        options = ["--namespace", NAMESPACE, "--selector", labels, "--tail", str(tail), "--all-containers"]
        return kubectl.run("logs", *options, check=False).stdout

    def uninstall(self) -> None:
        self.helm("uninstall", self.name, "--wait", "--timeout", "150s", check=False)


def name(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["name"])


def uid(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["uid"])


def is_ready(pod: dict[str, Any]) -> bool:
    return any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in pod["status"].get("conditions", [])
    )
