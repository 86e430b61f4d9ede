"""Executors are scaled on what waits: one, several in a spike, one again; lost 0."""

import time

from tests.k8s import release, report

BASE_PER_S = 50
SPIKE = 120_000
"""Events at once: on two quiet cores one executor delivers some 6,000 a second, and 20,000 were gone before anybody looked."""
DRAIN_WITHIN_S = 5
SCALE_IN_AFTER_S = 20
SCALE_OUT_S = 30
"""On a machine without slowdown."""
SCALE_IN_S = 300
DRAINED_S = 600
"""The receiver shares the cores. On a slow machine some of its answers come too late, and their events wait 5 minutes for a
retry."""


def test_a_spike_brings_executors_and_its_end_removes_them(ready):
    values = ready.values()
    executors = values["drivers"]["all"]["executors"]
    del executors["count"]
    executors |= {"autoscaling": {"min": 1, "max": 2}, "cores": 2}
    values["config"]["scaling"] = {"drain_within_s": DRAIN_WITHIN_S, "scale_in_after_s": SCALE_IN_AFTER_S}
    old = ready.release.await_ready("driver")
    ready.release.upgrade(values)
    ready.release.await_ready("driver", other_than=release.uid(old))

    def many():
        return len(ready.release.running("executor"))

    release.eventually(many, lambda now: now == 1, within_s=60)
    load = ready.load()
    with load.steadily(BASE_PER_S):
        time.sleep(15)  # the pace is measured before the spike
        bound, began = report.Bound(SCALE_OUT_S), time.monotonic()
        load.publish(SPIKE)
        release.eventually(many, lambda now: now == 2, within_s=120)
        out_s, out_bound_s = time.monotonic() - began, bound.seconds()
        ready.await_arrival(load.ids[: SPIKE // 2], within_s=DRAINED_S)
        release.eventually(
            lambda: ready.arrived.missing(load.ids[:SPIKE]), lambda left: not left, within_s=DRAINED_S, every_s=1
        )
        drained = time.monotonic()
        release.eventually(many, lambda now: now == 1, within_s=SCALE_IN_S)
        in_s = time.monotonic() - drained
    found = ready.prove(
        "scaled 1, 2, 1", load.ids, scale_out_s=out_s, scale_out_bound_s=out_bound_s, drained_s=drained - began, scale_in_s=in_s
    )
    assert found["lost"] == 0
    assert out_s <= out_bound_s
    assert in_s <= SCALE_IN_S
