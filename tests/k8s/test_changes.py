"""An operator changes what runs, while events come: lost 0, and the pause is measured at the receiver."""

import contextlib
import time

from fanout.admin import registry_commands
from fanout.local import stack
from tests.k8s import release, report
from tests.k8s.cluster import containers, kubectl
from tests.k8s.platform import BATCH_WAIT_S, DUPLICATES, IMAGE

NEXT = "localhost/fanout:next"
"""Another name of the same image: for Kubernetes another version."""
PER_S = 500
LONGEST_PAUSE_S = 30
"""On a machine without slowdown."""
STEADY_S = 5
"""Before and after each change the load is steady for so long."""


@contextlib.contextmanager
def changing(platform, step, *, per_s):
    """Have events come while the driver's pod is replaced; yield figures; prove that nothing is lost."""
    load, figures = platform.load(), {}
    old = platform.release.await_ready("driver")
    with load.steadily(per_s):
        release.eventually(lambda: platform.arrived.missing(load.ids[:1]), lambda left: not left, within_s=60)
        time.sleep(STEADY_S)
        bound, began = report.Bound(LONGEST_PAUSE_S), time.monotonic()
        yield figures
        platform.release.await_ready("driver", other_than=release.uid(old))
        figures["ready_s"] = time.monotonic() - began
        figures["pause_bound_s"] = bound.seconds()
        seen = platform.arrived.total()
        release.eventually(platform.arrived.total, lambda now: now > seen, within_s=60)
        time.sleep(STEADY_S)
        figures["pause_s"] = platform.arrived.longest_pause_s(began, time.monotonic())
    figures |= platform.prove(step, load.ids, **figures)


def image_of(pod):
    return pod["spec"]["containers"][0]["image"]


def test_an_upgrade_under_load_loses_nothing_and_pauses_briefly(ready):
    containers.tag(IMAGE, NEXT)
    repository, tag = NEXT.rsplit(":", 1)
    with changing(ready, "upgrade", per_s=PER_S) as figures:
        ready.release.upgrade(ready.values(image={"repository": repository, "tag": tag, "pullPolicy": "Never"}))
    assert image_of(ready.release.await_ready("driver")) == NEXT
    assert figures["lost"] == 0
    assert figures["repeated"] <= DUPLICATES * figures["events"]
    assert figures["pause_s"] <= figures["pause_bound_s"]


def test_a_rollback_brings_the_former_image_back(ready):
    with changing(ready, "rollback", per_s=100) as figures:
        ready.release.helm("rollback", ready.release.name)
    assert image_of(ready.release.await_ready("driver")) == IMAGE
    assert figures["lost"] == 0


def test_a_changed_setting_reaches_the_driver(ready):
    values = ready.values()
    values["config"]["retry"] = {"settle_s": 2}
    with changing(ready, "config changed", per_s=100) as figures:
        ready.release.upgrade(values)
    pod = release.name(ready.release.await_ready("driver"))
    in_pod = ["--namespace", release.NAMESPACE, pod, "--", "grep", "settle_s", "/etc/fanout/fanout.toml"]
    assert "settle_s = 2" in kubectl.run("exec", *in_pod).stdout
    assert figures["lost"] == 0


def test_a_rotated_key_ring_goes_on_delivering(ready):
    """By the steps of docs/operations.md: both keys, everything sealed by the new one, the new one alone."""
    old_keys = dict(ready.keys)
    ready.keys = old_keys | {"two": stack.new_key()}
    ready.write_secrets()
    values = ready.values()
    values["config"]["keys"] = {"active": "two"}
    with changing(ready, "key ring rotated: both keys", per_s=100) as figures:
        ready.release.upgrade(values)
    assert figures["lost"] == 0
    registry_commands.rotate_keys(ready.config)
    ready.keys = {"two": ready.keys["two"]}
    ready.write_secrets()
    with changing(ready, "key ring rotated: the new key", per_s=100) as figures:
        ready.release.upgrade(values | {"secretsRevision": "2"})
    assert figures["lost"] == 0
    assert not ready.arrived.unverified


def test_batches_wait_no_longer_than_their_bound_after_all_that(ready):
    ids = ready.load().publish(10)
    ready.await_arrival(ids, within_s=BATCH_WAIT_S + 30)
