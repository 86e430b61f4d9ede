"""The Lease seen from one driver, with an API server that is away, refuses, or was never there. The real one: tests/k8s."""

import dataclasses
import http.client
import ssl
import threading
import types

import pytest

from delivery import errors
from delivery.config import settings
from delivery.stages.checkpoint import cluster, election, lease, lock
from fanout.local.kafka import free_port
from tests.support import certificates


class OthersLease:
    """A Lease that another driver holds, and renews before each look of ours."""

    name = "all"

    def __init__(self):
        self.record = election.Record(holder="other", duration_s=15, version="0")

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


def test_a_command_is_refused_by_the_name_of_the_driver_that_renews(monkeypatch):
    monkeypatch.setattr(election, "RETRY_S", 0.01)
    holder = lease.Holder(OthersLease(), "me", pytest.fail)
    with pytest.raises(errors.CheckpointInUse, match="driver other holds the Lease all and renews it: stop that driver first"):
        holder.acquire(threading.Event(), is_patient=False)


def test_a_waiting_driver_names_the_holder_and_can_be_stopped(monkeypatch, caplog):
    monkeypatch.setattr(election, "RETRY_S", 0.01)
    stop, others = threading.Event(), OthersLease()
    holder = lease.Holder(others, "me", pytest.fail)
    threading.Timer(0.2, stop.set).start()
    assert holder.acquire(stop) is False
    assert holder.pause_reason == "waits for the Lease all, held by other"
    assert caplog.text.count("this driver waits for the Lease all, held by other. It delivers nothing") == 1
    assert int(others.record.version) > 1


def test_a_lease_outside_a_pod_is_refused_with_the_way_out(monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(errors.LeaseRefused, match=r"runs in no pod of Kubernetes .*: leave spark\.checkpoint_lease empty here"):
        lock.Lock(settings.Spark(checkpoint="s3a://bucket/all", checkpoint_lease="all"), ["direct"])


@pytest.mark.parametrize("missing", ["token", "namespace", "ca.crt"])
def test_a_missing_file_of_the_service_account_is_named(account, missing):
    (account / missing).unlink(missing_ok=True)
    with pytest.raises(errors.LeaseRefused, match=f"{missing} cannot be read .*give the driver's pod a service account"):
        cluster.Leases(host="127.0.0.1", port=1, name="all", account=account).read()


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, r"Lease n/all: the API server does not accept the pod's token \(401, no\): check the service account, .*clock"),
        (403, r"Lease n/all: this pod may not get it \(403, no\): bind a Role with get, create and update"),
    ],
)
def test_each_refusal_names_its_own_cure(account, monkeypatch, status, message):
    """A Role was advised for a token that the API server did not accept."""
    answer = types.SimpleNamespace(status=status, read=lambda: b'{"message": "no"}')
    connection = types.SimpleNamespace(request=lambda *_: None, getresponse=lambda: answer, close=lambda: None)
    monkeypatch.setattr(http.client, "HTTPSConnection", lambda *_, **__: connection)
    monkeypatch.setattr(ssl, "create_default_context", lambda **_: types.SimpleNamespace(verify_flags=0))
    with pytest.raises(errors.LeaseRefused, match=message):
        cluster.Leases(host="127.0.0.1", port=1, name="all", account=account).read()


def test_a_refused_driver_says_that_nothing_was_started(account):
    (account / "token").unlink()
    refused = cluster.Leases(host="127.0.0.1", port=1, name="all", account=account)
    with pytest.raises(errors.LeaseRefused, match=r"token cannot be read .*\. Nothing was started$"):
        lease.Holder(refused, "me", pytest.fail).acquire(threading.Event())


def test_without_a_lease_nothing_is_waited_for(tmp_path):
    mine = lock.Lock(settings.Spark(checkpoint=str(tmp_path)), ["direct"])
    assert mine.pause_reason() is None
    with mine.acquired(threading.Event()) as is_held:
        assert is_held


def test_an_api_server_that_is_away_is_worth_asking_again(account):
    (account / "ca.crt").write_text(certificates.authority().pem)
    port = free_port()
    with pytest.raises(cluster.Unavailable, match=f"127.0.0.1:{port} does not answer .*Connection refused"):
        cluster.Leases(host="127.0.0.1", port=port, name="all", account=account).read()
