"""A real job that loses its Lease stops delivering before another driver may begin, and nothing is lost.

Needs kube-apiserver and etcd, as tests/k8s/test_lease.py.
"""

import os
import signal
import time

import pytest

from delivery.stages.checkpoint_lock import election
from tests.e2e.conftest import Platform, assert_eventually
from tests.k8s import apiserver
from tests.k8s.test_lease import RULES

pytestmark = [
    pytest.mark.k8s,
    pytest.mark.timeout(900),
]
AS_IN_A_POD = """
import os, pathlib
from delivery.stages.checkpoint_lock import cluster
cluster.ACCOUNT = pathlib.Path(os.environ["TEST_ACCOUNT"])
"""


@pytest.fixture
def api(tmp_path):
    (tmp_path / "kubernetes").mkdir()
    server = apiserver.ApiServer(tmp_path / "kubernetes")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def platform(kafka, database, tmp_path, api, monkeypatch):
    """A platform whose jobs find the API server as in a pod."""
    made = Platform(kafka, database, tmp_path)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(AS_IN_A_POD)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("TEST_ACCOUNT", str(api.account(tmp_path / "account", "default", "driver", RULES)))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(api.port))
    with made.receiving():
        yield made
        made.close()


def start(platform, **overrides):
    checkpoint = {"checkpoint": str(platform.folder / "checkpoint"), "driver_memory": "1g", "checkpoint_lease": "all"}
    return platform.start("--lanes", "direct", spark=checkpoint, source={"max_events_per_batch": 300}, **overrides)


class Publishing:
    """Events that go on coming; sees when the last delivery came."""

    def __init__(self, platform):
        self._platform = platform
        self.ids = []

    def until(self, over, *, within_s):
        """Publish until `over`; return how long after the beginning the last delivery came."""
        began = last = time.monotonic()
        count = len(self._platform.received)
        while not over():
            assert time.monotonic() - began < within_s
            self.ids += self._platform.publish(10, first=len(self.ids))
            if len(self._platform.received) != count:
                count, last = len(self._platform.received), time.monotonic()
        return last - began


def test_job_without_api_server_delivers_nothing_once_another_may(platform, api):
    platform.migrate()
    platform.register([{}])
    job, publishing = start(platform), Publishing(platform)
    publishing.until(lambda: len(platform.received) > 50, within_s=300)
    api.stop_api()
    stopped_at = time.monotonic()
    last = publishing.until(lambda: time.monotonic() - stopped_at > election.LEASE_S + 5, within_s=60)
    # The last renewal was sent up to RETRY_S before.
    assert election.RENEW_DEADLINE_S / 2 < last < election.LEASE_S - election.RETRY_S
    assert job.wait(5) == 1
    assert "the Lease all was not renewed for 10 s" in platform.log()

    api.start_api()
    job = start(platform)
    assert_eventually(platform.accepted, lambda got: set(got) == set(publishing.ids), within_s=300)
    assert platform.stop(job) == 0
    platform.assert_adds_up()


def test_job_that_was_stopped_ends_when_it_runs_again(platform):
    """SIGSTOP of the driver's Python, its JVM and its workers, as of a paused machine."""
    platform.migrate()
    platform.register([{}])
    ids = platform.publish(20)
    job = start(platform)
    assert_eventually(platform.accepted, lambda got: set(got) == set(ids), within_s=300)
    everything = [job.pid, platform.jvm_of(job), *platform.workers_of(job)]
    for pid in everything:
        os.kill(pid, signal.SIGSTOP)
    ids += platform.publish(20, first=20)
    (platform.folder / "checkpoint" / "direct.lock").unlink()  # the folder's own lock would refuse the second job
    second = start(platform)
    assert_eventually(platform.accepted, lambda got: set(got) == set(ids), within_s=300)
    for pid in everything:
        os.kill(pid, signal.SIGCONT)
    assert job.wait(30) == 1
    assert "ends now, so that only the Lease's holder uses the checkpoint" in platform.log(whole=True)
    ids += platform.publish(20, first=40)
    assert_eventually(platform.accepted, lambda got: set(got) == set(ids), within_s=60)
    assert platform.stop(second) == 0
    platform.assert_adds_up()
