"""The platform of deploy/compose runs in containers: an event is delivered, verified and accounted for.

Needs podman-compose and the images: `make test-image`. FANOUT_IMAGE, KAFKA_IMAGE and POSTGRES_IMAGE name others.
"""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
import uuid
from pathlib import Path

import pytest
import yaml

from fanout.local import kafka
from tests import reading

pytestmark = [pytest.mark.image, pytest.mark.timeout(600)]

FOLDER = reading.ROOT / "deploy" / "compose"
OVERRIDE = Path(__file__).with_name("compose.override.yaml")
IMAGES = {
    "FANOUT_IMAGE": "localhost/fanout:dev",
    "KAFKA_IMAGE": "localhost/fanout-kafka:dev",
    "POSTGRES_IMAGE": "localhost/fanout-postgres:dev",
}
ENDPOINT = {
    "tenants": [{"id": "tenant-1"}],
    "customers": [{"id": "acme"}],
    "endpoints": [
        {
            "id": "acme-orders",
            "customer": "acme",
            "url": "http://receiver.test:9000/",
            "signing_secrets": ["whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="],
        }
    ],
    "subscriptions": [{"id": "orders", "endpoint": "acme-orders", "event_type": "order.*", "tenants": ["tenant-1"]}],
}


class Platform:
    """The containers of one project, and their ports on this machine."""

    def __init__(self, folder):
        self.folder = folder
        self.ports = {name: str(kafka.free_port()) for name in ("API_PORT", "METRICS_PORT", "KAFKA_PORT")}
        self._project = f"fanout-test-{uuid.uuid4().hex[:8]}"

    def compose(self, *arguments, given="", timeout_s=240):
        files = ["--file", str(self.folder / "compose.yaml"), "--file", str(OVERRIDE)]
        done = subprocess.run(
            [str(Path(sys.executable).with_name("podman-compose")), "--project-name", self._project, *files, *arguments],
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

    def verified(self, count, timeout_s=60):
        """The ids of the first events that the receiver has verified."""
        deadline = time.monotonic() + timeout_s
        while len(lines := self.compose("logs", "receiver").split()) < 2 * count:
            assert time.monotonic() < deadline, f"{lines}\n{self.compose('logs', 'job')[-3000:]}"
            time.sleep(1)
        return lines[::2], lines[1::2]


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


def test_an_event_is_delivered_verified_and_accounted_for(platform):
    (platform.folder / "endpoint.yaml").write_text(yaml.safe_dump(ENDPOINT))
    assert platform.await_ready("API_PORT") == 200
    assert platform.await_ready("METRICS_PORT") == 200
    platform.compose(
        "run", "--rm", "--no-deps", "--volume", "./endpoint.yaml:/endpoint.yaml:ro", "job", "apply", "/endpoint.yaml"
    )
    platform.compose("exec", "-T", "job", "fanout", "publish", "--generate", "20", "--type", "order.created")
    said, ids = platform.verified(20)
    assert (set(said), len(set(ids))) == ({"verified"}, 20)
    platform.compose("stop", "job")
    account = json.loads(platform.compose("run", "--rm", "--no-deps", "job", "reconcile", "--settle", "0s", "--json"))
    direct = account["lanes"]["direct"]
    assert (account["holds"], direct["due"], direct["delivered"], direct["lost"], direct["repeated"]) == (True, 20, 20, 0, 0)
