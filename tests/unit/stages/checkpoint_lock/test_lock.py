"""The Lease seen from one driver, with an API server that is away, refuses, or was never there. The real one: tests/k8s."""

import dataclasses
import http.client
import ssl
import threading
import types

import pytest

from delivery import errors
from delivery.config import settings
from delivery.stages.checkpoint_lock import cluster, election, kubernetes_lease, lock
from fanout.local.kafka_server import free_port
from tests.support import certificates


class OthersLease:
    """A Lease that another driver holds, and renews before each look of ours."""

    name = "all"

    def __init__(self):
        self.record = election.LeaseRecord(holder="other", duration_s=15, version="0")

    def read(self):
        self.record = dataclasses.replace(self.record, version=f"{int(self.record.version) + 1}")
        return self.record

    def write(self, record):
        raise AssertionError(record)


@pytest.fixture
def account(tmp_path):
    for name, text in {"token": "t", "namespace": "n"}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_command_is_refused_by_the_name_of_the_driver_that_renews():
    holder = kubernetes_lease.Holder(OthersLease(), "me", pytest.fail, retry_s=0.01)
    with pytest.raises(
        errors.CheckpointInUse, match=r"other, a driver or .*, holds the Lease all and renews it\. .* Stop that driver"
    ):
        holder.acquire(threading.Event(), is_patient=False)


def test_a_waiting_driver_names_the_holder_and_can_be_stopped(caplog):
    stop, others = threading.Event(), OthersLease()
    holder = kubernetes_lease.Holder(others, "me", pytest.fail, retry_s=0.01)
    threading.Timer(0.2, stop.set).start()
    assert holder.acquire(stop) is False
    assert holder.pause_reason == "waits for the Lease all, held by other"
    assert caplog.text.count("this process waits for the Lease all, held by other. It delivers and changes nothing") == 1
    assert int(others.record.version) > 1


def test_a_lease_outside_a_pod_is_refused_with_the_way_out(monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(errors.LeaseRefused, match=r"runs in no pod of Kubernetes .* leave spark\.checkpoint_lease empty"):
        lock.Lock(settings.SparkSettings(checkpoint="s3a://bucket/all", checkpoint_lease="all"), ["direct"])


@pytest.mark.parametrize("missing", ["token", "namespace", "ca.crt"])
def test_a_missing_file_of_the_service_account_is_named(account, missing):
    (account / missing).unlink(missing_ok=True)
    with pytest.raises(errors.LeaseRefused, match=f"{missing} cannot be read .*give the driver's pod a service account"):
        cluster.KubernetesLease(host="127.0.0.1", port=1, name="all", account=account).read()


@pytest.fixture
def answered(account, monkeypatch):
    """Make a client of an API server that answers every request with this status and body."""

    def make(status, body):
        answer = types.SimpleNamespace(status=status, read=lambda: body)
        connection = types.SimpleNamespace(request=lambda *_: None, getresponse=lambda: answer, close=lambda: None)
        monkeypatch.setattr(http.client, "HTTPSConnection", lambda *_, **__: connection)
        monkeypatch.setattr(ssl, "create_default_context", lambda **_: types.SimpleNamespace(verify_flags=0))
        return cluster.KubernetesLease(host="127.0.0.1", port=1, name="all", account=account)

    return make


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, r"Lease n/all: the API server does not accept the pod's token \(401, no\): check the service account, .*clock"),
        (403, r"Lease n/all: this pod may not get it \(403, no\): bind a Role with get, create and update"),
    ],
)
def test_each_refusal_names_its_own_cure(answered, status, message):
    """A Role was advised for a token that the API server did not accept."""
    with pytest.raises(errors.LeaseRefused, match=message):
        answered(status, b'{"message": "no"}').read()


@pytest.mark.parametrize("body", [b"{}", b"[]", b'{"metadata": null}', b'{"metadata": {"resourceVersion": "1"}, "spec": 1}'])
def test_an_answer_that_is_no_lease_is_worth_asking_again(answered, body):
    """Regression: a proxy's JSON ended the renewing thread, and the driver killed itself without naming the cause."""
    all_ = answered(200, body)
    for request in (all_.read, lambda: all_.write(election.LeaseRecord(holder="me", duration_s=15, version="1"))):
        with pytest.raises(cluster.Unavailable, match=r"127\.0\.0\.1:1 answers, but not with a Lease"):
            request()


class TroubledLease:
    """A Lease that this driver acquires. Renewals then fail as in `story`, and later ones succeed."""

    name = "all"

    def __init__(self, *story):
        self.story, self.record, self.is_renewed = [None, *story], None, threading.Event()

    def read(self):
        return self.record

    def write(self, record):
        if not self.story:
            self.is_renewed.set()
        elif (failure := self.story.pop(0)) is not None:
            raise failure
        self.record = dataclasses.replace(record, version=f"{int(record.version or 0) + 1}")
        return self.record


def test_each_problem_of_a_renewal_is_logged_once(caplog):
    """Regression: a conflict was not logged, and hid the API server's absence until the driver killed itself."""
    conflict, away = cluster.Conflict(), cluster.Unavailable("1.2.3.4:443 does not answer")
    leases = TroubledLease(conflict, conflict, away, away)  # a conflict is tried again at once
    holder = kubernetes_lease.Holder(leases, "me", pytest.fail, retry_s=0.001)
    assert holder.acquire(threading.Event())
    try:
        assert leases.is_renewed.wait(5)
    finally:
        holder.release()
    causes = [record.args[1] for record in caplog.records if "could not be renewed" in record.message]
    assert causes == ["another driver or a person changed it: find out who, and stop it", "1.2.3.4:443 does not answer"]


def test_a_refused_driver_says_that_nothing_was_started(account):
    (account / "token").unlink()
    refused = cluster.KubernetesLease(host="127.0.0.1", port=1, name="all", account=account)
    with pytest.raises(errors.LeaseRefused, match=r"token cannot be read .*\. Nothing was started$"):
        kubernetes_lease.Holder(refused, "me", pytest.fail).acquire(threading.Event())


def test_without_a_lease_nothing_is_waited_for(tmp_path):
    mine = lock.Lock(settings.SparkSettings(checkpoint=str(tmp_path)), ["direct"])
    assert mine.pause_reason() is None
    with mine.acquired(threading.Event()) as is_held:
        assert is_held


def test_an_api_server_that_is_away_is_worth_asking_again(account):
    (account / "ca.crt").write_text(certificates.authority().pem)
    port = free_port()
    with pytest.raises(cluster.Unavailable, match=f"127.0.0.1:{port} does not answer .*Connection refused"):
        cluster.KubernetesLease(host="127.0.0.1", port=port, name="all", account=account).read()
