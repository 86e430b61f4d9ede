"""The platform of deploy/compose runs in containers: events are delivered, verified and accounted for.

Needs podman-compose and the images: `make test-image`. FANOUT_IMAGE, KAFKA_IMAGE and POSTGRES_IMAGE name others.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
import uuid
from pathlib import Path

import pytest
import yaml

from fanout.local import kafka_server
from tests.support import reading

pytestmark = [pytest.mark.image, pytest.mark.timeout(600)]

FOLDER = reading.ROOT / "deploy" / "compose"
OVERRIDE = Path(__file__).with_name("compose.override.yaml")
IMAGES = {
    "FANOUT_IMAGE": "localhost/fanout:dev",
    "KAFKA_IMAGE": "localhost/fanout-kafka:dev",
    "POSTGRES_IMAGE": "localhost/fanout-postgres:dev",
}
EVENTS = 20
SIGNED = {"customer": "acme", "signing_secrets": ["whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="]}
ENDPOINTS = {
    "direct": {},
    "batch": {"mode": "batch"},
    "failing": {"retry": {"schedule_s": [1] * 10}},
}
MANIFEST = {
    "tenants": [{"id": "tenant-1"}],
    "customers": [{"id": "acme"}],
    "endpoints": [SIGNED | {"id": name, "url": f"http://receiver.test:9000/{name}"} | own for name, own in ENDPOINTS.items()],
    "subscriptions": [{"id": name, "endpoint": name, "event_type": "order.*", "tenants": ["tenant-1"]} for name in ENDPOINTS],
}


class Platform:
    """The containers of one project, and their ports on this machine."""

    def __init__(self, folder):
        self.folder = folder
        self.ports = {name: str(kafka_server.free_port()) for name in ("API_PORT", "METRICS_PORT", "KAFKA_PORT")}
        self._project = f"fanout-test-{uuid.uuid4().hex[:8]}"

    def compose(self, *arguments, given="", timeout_s=240):
        files = ["--file", str(self.folder / "compose.yaml"), "--file", str(OVERRIDE)]
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("podman-compose")),
                "--no-ansi",
                "--project-name",
                self._project,
                *files,
                *arguments,
            ],
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            env={**IMAGES, **os.environ, **self.ports, "RECEIVER": str(Path(__file__).with_name("receiver.py"))},
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    def await_ready(self, port, timeout_s=180):
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[port]}/readyz", timeout=5) as answer:
                    return answer.status
            except OSError:
                if time.monotonic() > deadline:
                    pytest.fail(f"{port}: not ready\n{self.compose('logs', 'job', 'serve')[-3000:]}")
                time.sleep(1)

    def accepted(self, count, timeout_s=240):
        """Return the events that the receiver has accepted, by path: (verified or forged, event id)."""
        deadline = time.monotonic() + timeout_s
        while len(lines := re.findall(r"/(\w+) (verified|forged) ([\w-]+)", self.compose("logs", "receiver"))) < count:
            if time.monotonic() > deadline:
                pytest.fail(f"{lines}\n{self.compose('logs', 'job')[-3000:]}")
            time.sleep(1)
        return lines


@pytest.fixture
def platform(tmp_path):
    if shutil.which("podman") is None:
        pytest.skip("podman is needed")
    folder = tmp_path / "compose"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("secrets"))
    subprocess.run([folder / "make-secrets"], check=True)
    running = Platform(folder)
    running.compose("up", "--detach")
    yield running
    running.compose("down", "--volumes")


def test_every_lane_delivers_and_the_account_holds(platform):
    (platform.folder / "endpoints.yaml").write_text(yaml.safe_dump(MANIFEST))
    assert platform.await_ready("API_PORT") == 200
    assert platform.await_ready("METRICS_PORT") == 200
    mounted = f"{platform.folder}/endpoints.yaml:/endpoints.yaml:ro"
    platform.compose("run", "--rm", "--no-deps", "--volume", mounted, "job", "apply", "/endpoints.yaml")
    platform.compose("exec", "-T", "job", "fanout", "publish", "--generate", str(EVENTS), "--type", "order.created")
    lines = platform.accepted(EVENTS * len(ENDPOINTS))
    assert {said for _, said, _ in lines} == {"verified"}
    assert {path: len({event for at, _, event in lines if at == path}) for path in ENDPOINTS} == dict.fromkeys(
        ENDPOINTS, EVENTS
    )
    platform.compose("stop", "job")
    account = json.loads(platform.compose("run", "-T", "--rm", "--no-deps", "job", "reconcile", "--settle", "0s", "--json"))
    assert account["holds"]
    counts = {name: (lane["due"], lane["delivered"], lane["lost"]) for name, lane in account["lanes"].items()}
    assert counts == {"direct": (2 * EVENTS, 2 * EVENTS, 0), "batch": (EVENTS, EVENTS, 0)}
