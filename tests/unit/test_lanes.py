"""What the workers tell of a micro-batch reaches who acts on it, in every lane."""

from delivery.stages import held, lanes, network, observer, telemetry
from delivery.webhooks import egress, retry
from delivery.webhooks.results import Results
from delivery.webhooks.tally import Tally


class Accumulator:
    def __init__(self, zero, merging):
        self.value, self._merging = zero, merging

    def add(self, more):
        self.value = self._merging.addInPlace(self.value, more)


def observed(*results):
    """Return what the driver is told of these results."""
    total, gone = Accumulator(Tally(), observer.Merging()), Accumulator(frozenset(), observer.MergingGone())
    observe = observer.Observer(total=total, gone=gone, level="ERROR", format="text", attempt_sample=0.0)
    for one in results:
        observe(one)
    return telemetry.Told(total.value, gone.value)


def test_endpoints_that_are_gone_are_disabled_and_nobody_else_is_told_of():
    disabled = []
    common = lanes.Common(
        held=held.Held(), network=network.Network(), disable=lambda ids, why: disabled.append((set(ids), why))
    )
    common.told(observed(Results(asked=2), Results(asked=1)))
    assert disabled == []
    common.told(observed(Results(gone=frozenset({"a"})), Results(), Results(gone=frozenset({"a", "b"}))))
    assert disabled == [({"a", "b"}, retry.GONE)]


def test_what_the_tasks_could_not_reach_is_added_up_and_stops_all_lanes():
    ours = network.Network()
    common = lanes.Common(held=held.Held(), network=ours, disable=lambda *_: None)
    half = Results(asked=egress.MIN_ASKED // 2, unreachable=egress.MIN_ASKED // 2)
    common.told(observed(half))
    assert not ours.is_broken
    common.told(observed(half, half))
    assert ours.is_broken
