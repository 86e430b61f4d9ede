"""The values for trials bring Kafka and Postgres along as pods: one command, and an event is delivered."""

import time

import pytest

from tests.k8s import release
from tests.k8s.cluster import __main__ as cluster
from tests.k8s.platform import IMAGE

VALUES = release.CHART / "values-development.yaml"
SERVERS = {"kafka": "localhost/fanout-kafka:dev", "postgres": "localhost/fanout-postgres:dev"}


@pytest.mark.usefixtures("platform")
def test_the_development_values_bring_all_that_a_delivery_needs(request):
    for image in SERVERS.values():
        cluster.image(image)
    repository, tag = IMAGE.rsplit(":", 1)
    values = {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "development": {name: {"image": image} for name, image in SERVERS.items()},
    }
    trial = release.Release("trial")
    request.addfinalizer(trial.uninstall)
    began = time.monotonic()
    trial.helm("install", trial.name, str(release.CHART), "--values", str(VALUES), values=values)
    trial.await_ready("driver", within_s=240)
    ready_s = time.monotonic() - began
    said = trial.helm("test", trial.name, "--timeout", "150s")
    assert "Succeeded" in said
    request.config.k8s_report.add("development values", ready_s=ready_s, tested_s=time.monotonic() - began)
