"""The release is removed, and comes back."""

import time

from tests.k8s import release
from tests.k8s.cluster import kubectl


def test_an_uninstall_keeps_the_claim_and_a_new_install_goes_on_from_there(ready):
    load = ready.load()
    before = load.publish(100)
    ready.await_arrival(before)
    claim = kubectl.get("persistentvolumeclaim", "fanout-all", "--namespace", release.NAMESPACE)["metadata"]["uid"]
    ready.release.uninstall()
    release.eventually(lambda: ready.release.pods("executor"), lambda left: not left, within_s=60)

    left = kubectl.get("all,configmaps,secrets,roles,rolebindings", "--namespace", release.NAMESPACE)["items"]
    assert not [one["metadata"]["name"] for one in left if one["metadata"].get("labels", {}).get("app.kubernetes.io/instance")]
    assert kubectl.get("persistentvolumeclaim", "fanout-all", "--namespace", release.NAMESPACE)["metadata"]["uid"] == claim

    after = load.publish(100)
    began = time.monotonic()
    ready.release.install(ready.values())
    ready.release.await_ready("driver")
    found = ready.prove("uninstalled, installed again", before + after, ready_s=time.monotonic() - began)
    assert found["lost"] == found["repeated"] == 0
