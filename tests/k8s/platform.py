"""The platform under test: the user's servers, the registry, the receivers, and one release of the chart."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg

from delivery import errors
from delivery.config import plan_builder, settings
from fanout.admin import registry_commands
from fanout.local import receiver, stack
from fanout.reconcile import proving
from subscriptions_db.manifest import manifest
from tests.k8s import arrivals, load, release, servers
from tests.k8s.cluster import kubectl, layout
from tests.k8s.report import Report

SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
IMAGE = os.environ.get("FANOUT_IMAGE", "localhost/fanout:dev")
"""As podman has it."""
DUPLICATES = 0.001
"""Share of all events that may come twice because of an upgrade."""
BATCH_WAIT_S = 5
ARRIVES_S = 90
"""From the publication of the last event until it is at its receivers, while the machine is busy with other tests."""


class Platform:
    """The receivers, the settings for this machine, and the values for the chart."""

    def __init__(self, running: servers.Servers, receiving: receiver.Receiver, arrived: arrivals.Arrivals) -> None:
        self.servers = running
        self.arrived = arrived
        self.receiver_url = receiving.url
        self.keys = {"one": stack.new_key()}
        self.report = Report()
        self.release = release.Release("fanout")
        self.first_delivery_s = 0.0
        """From `helm install`."""

    @property
    def config(self) -> settings.Settings:
        """Return the settings for the commands that the tests run on this machine."""
        return settings.Settings.model_validate(
            {
                "database": {"url": self.servers.postgres.url},
                "kafka": {"bootstrap_servers": self.servers.kafka},
                "keys": {"ring": self.keys, "active": next(reversed(self.keys))},
                "delivery": self.delivery(),
            }
        )

    @staticmethod
    def delivery() -> dict[str, Any]:
        """Return the settings that open the address guard: for the receivers, and for the pod of `helm test`."""
        networks = [f"{layout.CONTROL_PLANE}/32", layout.PODS]
        return {"allow_http": True, "allow_ports": [], "allow_networks": networks, "unlimited_hosts": [layout.CONTROL_PLANE]}

    def values(self, **replaced: Any) -> dict[str, Any]:
        """Return the values of the release: executors as pods, `serve` twice, what each needs on a small machine."""
        repository, tag = IMAGE.rsplit(":", 1)
        return {
            "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
            "config": {"kafka": {"bootstrap_servers": self.servers.kafka}, "delivery": self.delivery()},
            "secrets": {
                "database": {"name": "fanout-database"},
                "apiDatabase": {"name": "fanout-api-database"},
                "keyRing": {"name": "fanout-keys"},
            },
            "apiServer": f"https://{layout.API_SERVICE}",
            "drivers": {
                "all": {
                    "resources": {"requests": {"cpu": "500m", "memory": "2Gi"}, "limits": {"memory": "4Gi"}},
                    "executors": {"count": 1, "cores": 3, "requestCores": "500m", "heap": "1g", "besidesHeap": "2g"},
                }
            },
            "serve": {"enabled": True, "replicas": 2, "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}}},
        } | replaced

    def write_secrets(self) -> None:
        """Bring the Secrets that the values name to what holds now."""
        ring = ",".join(f"{name}={key}" for name, key in self.keys.items())
        content = {
            "fanout-database": {"url": self.servers.url()},
            "fanout-api-database": {"url": self.servers.url(user="fanout_serve")},
            "fanout-keys": {"ring": ring},
        }
        kubectl.apply(*(secret(name, data) for name, data in content.items()))

    def register(self) -> None:
        """Register two endpoints, for single events and for batches; each event is due to both."""
        endpoints: list[dict[str, Any]] = [
            {"id": "direct", "url": self.receiver_url + arrivals.DIRECT},
            {
                "id": "batch",
                "url": self.receiver_url + arrivals.BATCH,
                "mode": "batch",
                "batch": {"max_wait_s": BATCH_WAIT_S},
            },
        ]
        document = {
            "tenants": [{"id": load.TENANT}],
            "customers": [{"id": "c1"}],
            "endpoints": [endpoint | {"customer": "c1", "signing_secrets": [SECRET]} for endpoint in endpoints],
            "subscriptions": [
                {"id": endpoint["id"], "endpoint": endpoint["id"], "event_type": load.EVENT_TYPE, "everything": True}
                for endpoint in endpoints
            ],
        }
        config = self.config
        registry_commands.apply_manifest(config, manifest.check(document, plan_builder.guard_of(config.delivery)))

    def allow_serve(self) -> None:
        """Make the login of `serve`, as docs/operations.md says. Its roles exist once the schema does."""
        with psycopg.connect(self.servers.postgres.url, autocommit=True) as connection:
            connection.execute("create role fanout_serve login in role fanout_api, fanout_operator")

    def load(self) -> load.Load:
        """Return a source of events that the job reads."""
        config = self.config
        return load.Load(config.kafka, config.source.topic_prefix + load.EVENT_TYPE)

    def await_arrival(self, ids: list[str], *, within_s: float = ARRIVES_S) -> None:
        """Wait until the events have come to both endpoints."""
        for path in (arrivals.DIRECT, arrivals.BATCH):
            release.eventually(
                lambda path=path: self.arrived.missing(ids, path), lambda left: not left, within_s=within_s, every_s=0.5
            )

    def prove(self, step: str, ids: list[str], **figures: float | str) -> dict[str, float]:
        """Wait for the events; require that the receiver and `fanout reconcile` know of none that is lost; report."""
        self.await_arrival(ids)
        assert not self.arrived.unverified
        account = self.reconcile()
        repeated = sum(self.arrived.repeated(ids, path) for path in (arrivals.DIRECT, arrivals.BATCH))
        found: dict[str, float] = {"events": len(ids), "lost": account["lost"], "repeated": repeated}
        self.report.add(step, **figures, **found)
        return found

    def reconcile(self) -> dict[str, float]:
        """Run `fanout reconcile` until it adds up while the job runs; return the sums of all lanes."""

        def proof() -> proving.Proof | str:
            try:
                return proving.reconcile(self.config, settle_s=2)
            except errors.FanoutError as exc:
                return str(exc)

        def holds(found: proving.Proof | str) -> bool:
            return not isinstance(found, str) and found.account.holds

        found = release.eventually(proof, holds, within_s=60, every_s=1)
        lanes = found.account.lanes.values()
        return {"lost": sum(lane.counts.lost for lane in lanes), "delivered": sum(lane.counts.delivered for lane in lanes)}


@contextlib.contextmanager
def started(folder: Path) -> Iterator[Platform]:
    """Start the servers and the receivers; make the namespace, the Secrets and volumes for checkpoints."""
    arrived = arrivals.Arrivals()
    with servers.started(folder) as running, _receiving(arrived) as receiving:
        _make_namespace()
        _make_volumes(folder / "volumes")
        platform = Platform(running, receiving, arrived)
        platform.write_secrets()
        try:
            yield platform
        finally:
            platform.report.write()


def secret(name: str, data: Mapping[str, str]) -> dict[str, Any]:
    """Return a Secret as a manifest."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": release.NAMESPACE},
        "stringData": dict(data),
    }


def _receiving(arrived: arrivals.Arrivals) -> receiver.Receiver:
    return receiver.Receiver(secrets_of=lambda _: [SECRET], on_received=arrived.take, host=layout.CONTROL_PLANE)


def _make_namespace() -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    kubectl.run("delete", "namespace", release.NAMESPACE, "--ignore-not-found", "--timeout=120s", timeout_s=150)
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": release.NAMESPACE, "labels": labels}})


def _make_volumes(folder: Path, count: int = 12) -> None:
    """Make volumes for claims: folders of this machine, which both nodes see as they would see an NFS server."""
    kubectl.run("delete", "persistentvolumes", "--all", "--timeout=60s")
    volumes = []
    for number in range(count):
        path = folder / str(number)
        path.mkdir(parents=True)
        path.chmod(0o777)
        volumes.append(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": f"checkpoint-{number}-{int(time.time())}"},
                "spec": {
                    "capacity": {"storage": "10Gi"},
                    "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
                    "persistentVolumeReclaimPolicy": "Retain",
                    "hostPath": {"path": str(path), "type": "Directory"},
                },
            }
        )
    kubectl.apply(*volumes)
