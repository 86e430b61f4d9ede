"""The release is removed, and comes back."""

import time

from tests.k8s import release
from tests.k8s.cluster import kubectl


def left_behind():
    """The names of what still belongs to a release."""
    found = kubectl.get("all,configmaps,secrets,roles,rolebindings", "--namespace", release.NAMESPACE)["items"]
    return [
        resource["metadata"]["name"]
        for resource in found
        if "app.kubernetes.io/instance" in resource["metadata"].get("labels", {})
    ]


def test_an_uninstall_keeps_the_claim_and_a_new_install_goes_on_from_there(ready):
    load = ready.load()
    before = load.publish(100)
    ready.await_arrival(before)
    claim = kubectl.get("persistentvolumeclaim", "fanout-all", "--namespace", release.NAMESPACE)["metadata"]["uid"]
    ready.release.uninstall()
    # Pods end within their grace period.
    release.eventually(left_behind, lambda left: not left, within_s=120)
    assert kubectl.get("persistentvolumeclaim", "fanout-all", "--namespace", release.NAMESPACE)["metadata"]["uid"] == claim

    after = load.publish(100)
    began = time.monotonic()
    ready.release.install(ready.values())
    ready.release.await_ready("driver")
    found = ready.prove("uninstalled, installed again", before + after, ready_s=time.monotonic() - began)
    assert found["lost"] == found["repeated"] == 0
