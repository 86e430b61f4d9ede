"""Two drivers, one Lease, a real API server: who delivers, and when the other one takes over.

Needs kube-apiserver and etcd (see tests/k8s/apiserver.py); `make test` leaves these tests out.
"""

import contextlib
import datetime as dt
import os
import signal
import subprocess
import sys
import time

import pytest

from delivery import errors
from delivery.stages.checkpoint_lock import cluster, election
from tests.k8s import apiserver
from tests.support import certificates

pytestmark = pytest.mark.k8s
RULES = [
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "update"], "resourceNames": ["all"]},
]
DRIVER = """
import logging, signal, sys, threading, pathlib
from delivery.config import settings
from delivery.stages.checkpoint_lock import cluster; from delivery.stages.checkpoint_lock import lock
cluster.ACCOUNT = pathlib.Path(sys.argv[1])
logging.basicConfig(format="%(message)s")
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
mine = lock.Lock(settings.SparkSettings(checkpoint="s3a://bucket/all", checkpoint_lease="all"), ["direct"])
with mine.acquired(stop) as is_held:
    print("held" if is_held else "not held", flush=True)
    stop.wait()
"""
SLACK_S = 3.0
"""For a machine that is busy."""


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    server = apiserver.ApiServer(tmp_path_factory.mktemp("kubernetes"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def namespace(api, request):
    name = f"n{abs(hash(request.node.name))}"
    api.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    return name


@pytest.fixture
def account(api, namespace, tmp_path):
    return api.account(tmp_path / "account", namespace, "driver", RULES)


class Driver:
    """A process that wants the Lease `all`."""

    def __init__(self, api, account, log):
        self._log = log
        environ = os.environ | {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(api.port)}
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-c", DRIVER, str(account)], stdout=subprocess.PIPE, stderr=stderr, env=environ, text=True
            )

    def wait_until_it_holds(self):
        """Return how long that took."""
        began = time.monotonic()
        assert self.process.stdout.readline() == "held\n", self.log
        return time.monotonic() - began

    def wait_until_it_says(self, words):
        deadline = time.monotonic() + 30
        while words not in self.log:
            assert time.monotonic() < deadline, self.log
            time.sleep(0.05)

    def end(self, number):
        self.process.send_signal(number)
        return self.process.wait(30)

    @property
    def log(self):
        return self._log.read_text()


@pytest.fixture
def start(api, account, tmp_path):
    with contextlib.ExitStack() as started:
        count = iter(range(10))

        def start_driver():
            driver = Driver(api, account, tmp_path / f"driver-{next(count)}.log")
            started.callback(driver.process.wait)
            started.callback(driver.process.kill)
            started.callback(driver.process.stdout.close)
            return driver

        yield start_driver


def spec(api, namespace):
    return api.call("GET", f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/all")["spec"]


def holder(api, namespace):
    return spec(api, namespace)["holderIdentity"]


def wait_for_renewals(api, namespace, *, until_s):
    """Wait until the holder has renewed the Lease for so many seconds since it acquired it."""
    deadline = time.monotonic() + until_s + 10
    while True:
        last = spec(api, namespace)
        acquired, renewed = (dt.datetime.fromisoformat(last[name]) for name in ("acquireTime", "renewTime"))
        if (renewed - acquired).total_seconds() >= until_s:
            return
        assert time.monotonic() < deadline, last
        time.sleep(0.2)


def test_second_driver_waits_and_follows_an_orderly_stop_at_once(api, namespace, start):
    first = start()
    first.wait_until_it_holds()
    second = start()
    second.wait_until_it_says(f"waits for the Lease all, held by {holder(api, namespace)}. It delivers and changes nothing")
    wait_for_renewals(api, namespace, until_s=election.LEASE_S + 1)
    assert second.log.count("\n") == 1
    assert second.process.poll() is None
    assert first.end(signal.SIGTERM) == 0
    assert second.wait_until_it_holds() < election.RETRY_S + SLACK_S


def test_second_driver_takes_over_from_a_killed_one_after_the_duration(start):
    first = start()
    first.wait_until_it_holds()
    second = start()
    second.wait_until_it_says("waits for the Lease all")
    first.end(signal.SIGKILL)
    took = second.wait_until_it_holds()
    assert election.LEASE_S - election.RETRY_S < took < election.LEASE_S + election.RETRY_S + SLACK_S


def test_driver_that_was_stopped_for_too_long_fences_itself(start):
    first = start()
    first.wait_until_it_holds()
    first.process.send_signal(signal.SIGSTOP)
    second = start()
    second.wait_until_it_holds()
    assert first.end(signal.SIGCONT) == 1
    assert "delivers nothing more and ends now" in first.log
    assert second.process.poll() is None


def test_driver_without_api_server_ends_after_the_deadline(api, start):
    first = start()
    first.wait_until_it_holds()
    api.stop_api()
    began = time.monotonic()
    try:
        assert first.process.wait(election.LEASE_S) == 1
        assert time.monotonic() - began > election.RENEW_DEADLINE_S - election.RETRY_S
        assert f"127.0.0.1:{api.port} does not answer" in first.log
        second = start()
        second.wait_until_it_says("waits for the Lease all: 127.0.0.1")
    finally:
        api.start_api()
    second.wait_until_it_holds()


def test_api_server_that_hangs_for_a_moment_ends_nothing(api, namespace, start):
    first = start()
    first.wait_until_it_holds()
    api.signal_api(signal.SIGSTOP)
    first.wait_until_it_says("could not be renewed")
    api.signal_api(signal.SIGCONT)
    wait_for_renewals(api, namespace, until_s=election.LEASE_S + 1)
    assert first.process.poll() is None
    assert first.end(signal.SIGTERM) == 0


def leases(api, account):
    return cluster.KubernetesLease(host="127.0.0.1", port=api.port, name="all", account=account)


def use(all_):
    """Do all that a driver does."""
    at = cluster.micro_time()
    record = all_.read()
    for _ in range(2):
        record = all_.write(election.claimed("me", election.Observed(record=record, since=0), at))
    return all_.write(election.released(record))


def test_get_create_and_update_are_enough(api, account):
    released = use(leases(api, account))
    assert (released.holder, leases(api, account).read()) == ("", released)


@pytest.mark.parametrize("verb", ["get", "create", "update"])
def test_each_verb_is_needed_and_named(api, namespace, tmp_path, verb):
    rules = [{**rule, "verbs": [other for other in rule["verbs"] if other != verb]} for rule in RULES]
    account = api.account(tmp_path / "account", namespace, "driver", [rule for rule in rules if rule["verbs"]])
    with pytest.raises(errors.LeaseRefused, match=rf"Lease {namespace}/all: this pod may not {verb} it .403, .*bind a Role"):
        use(leases(api, account))


def test_other_leases_are_out_of_reach(api, account):
    with pytest.raises(errors.LeaseRefused, match="this pod may not get it"):
        cluster.KubernetesLease(host="127.0.0.1", port=api.port, name="of-others", account=account).read()


def test_write_of_an_old_version_is_a_conflict(api, account):
    all_ = leases(api, account)
    record = all_.write(election.claimed("me", election.Observed(record=None, since=0), cluster.micro_time()))
    all_.write(record)
    with pytest.raises(cluster.Conflict):
        all_.write(record)


def test_second_creation_is_a_conflict(api, account):
    new = election.claimed("me", election.Observed(record=None, since=0), cluster.micro_time())
    leases(api, account).write(new)
    with pytest.raises(cluster.Conflict):
        leases(api, account).write(new)


def test_update_of_a_deleted_lease_creates_it_for_one_driver_only(api, namespace, account):
    new = election.claimed("me", election.Observed(record=None, since=0), cluster.micro_time())
    record = leases(api, account).write(new)
    api.call("DELETE", f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/all")
    assert leases(api, account).write(record).holder == "me"
    with pytest.raises(cluster.Conflict):
        leases(api, account).write(record)


def test_wrong_authority_is_named(api, account):
    (account / "ca.crt").write_text(certificates.authority().pem)
    with pytest.raises(errors.LeaseRefused, match=r"does not verify by the authority in .*ca\.crt"):
        leases(api, account).read()


def test_unknown_token_is_named(api, account):
    (account / "token").write_text("of nobody")
    with pytest.raises(errors.LeaseRefused, match=r"does not accept the pod's token .401, .*clock"):
        leases(api, account).read()
