"""The chart is installed on a real API server: what comes up, how soon, and how closed it is."""

import json
import urllib.request

import pytest

from tests.k8s import release
from tests.k8s.cluster import kubectl

FIRST_DELIVERY_S = 90


def test_the_first_delivery_comes_soon_after_the_install(installed):
    assert installed.first_delivery_s <= FIRST_DELIVERY_S


def test_every_pod_of_the_release_becomes_ready(installed):
    release.eventually(lambda: len(installed.release.ready("serve")), lambda many: many == 2, within_s=120)
    assert len(installed.release.ready("driver")) == 1
    assert len(installed.release.running("executor")) == 1


def test_the_service_leads_to_the_http_api(installed):
    release.eventually(lambda: len(installed.release.ready("serve")), within_s=120)
    address = kubectl.get("service", "fanout-serve", "--namespace", release.NAMESPACE)["spec"]["clusterIP"]
    with urllib.request.urlopen(f"http://{address}/readyz", timeout=10) as answer:
        assert answer.status == 200


@pytest.mark.usefixtures("platform")
def test_the_namespace_refuses_pods_that_are_not_restricted():
    overrides = {"spec": {"hostNetwork": True}}
    arguments = ["run", "open", "--image=localhost/pause:1", "--dry-run=server", f"--overrides={json.dumps(overrides)}"]
    done = kubectl.run(*arguments, "--namespace", release.NAMESPACE, check=False)
    assert 'violates PodSecurity "restricted' in done.stderr


def test_helm_test_delivers_one_signed_event(installed):
    said = installed.release.helm("test", installed.release.name, "--logs", "--timeout", "120s")
    assert "Succeeded" in said
