"""The commands of docs/kubernetes.md work as they are written, one after the other, in an empty namespace."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.k8s import release
from tests.k8s.cluster import kubectl
from tests.support import reading

TIMEOUT_S = 330
"""Seconds for one command: `helm … --timeout 5m`, and a little more."""


@pytest.fixture
def shell(platform, folder):
    """Run a command of the document in a folder that has the files which the document names."""
    work = folder / "document"
    work.mkdir()
    (work / "deploy").symlink_to(reading.ROOT / "deploy")
    (work / "database-url").write_text(platform.servers.url())
    (work / "key-ring").write_text(",".join(f"{name}={key}" for name, key in platform.keys.items()))
    values = platform.values()
    # Topics of its own: the events of the tests before it are not read again.
    values["config"]["source"] = {"topic_prefix": "documented.", "topic_pattern": r"documented\..+"}
    values["secrets"].pop("apiDatabase")
    values["serve"] = {"enabled": False}
    (work / "my.yaml").write_text(json.dumps(values))
    environment = kubectl.environment()
    environment["PATH"] = f"{Path(kubectl.tool('helm')).parent}:{environment['PATH']}"

    def run(command):
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=work,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}{platform.release.log('driver', tail=20)}"
        return done.stdout

    return run


def test_the_commands_of_the_document_install_upgrade_and_stop_a_release(platform, shell):
    platform.release.uninstall()
    kubectl.run("delete", "namespace", release.NAMESPACE, "--ignore-not-found", "--timeout=120s", timeout_s=150)
    commands = [line for block in reading.blocks("docs/kubernetes.md", "sh") for line in block.splitlines() if line.strip()]
    said = {command: shell(command) for command in commands}
    assert any("Succeeded" in text for command, text in said.items() if command.startswith("helm test"))
    assert not platform.release.pods("driver"), "the last block stops the driver"
    shell(f"kubectl --namespace {release.NAMESPACE} scale deployment fanout-all --replicas=1")
    platform.release.await_ready("driver")
