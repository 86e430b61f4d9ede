"""When hardly any endpoint can be reached the fault is ours: the lanes hold, ever longer, until some can be."""

import threading

import pytest

from delivery.stages import network
from delivery.webhooks import egress
from tests import fakes


@pytest.mark.parametrize(
    ("asked", "unreachable", "is_ours"),
    [(9, 9, False), (10, 10, True), (10, 8, True), (10, 7, False), (1000, 799, False), (1000, 800, True), (0, 0, False)],
)
def test_the_fault_is_ours_when_most_of_enough_endpoints_cannot_be_reached(asked, unreachable, is_ours):
    assert egress.is_ours(asked, unreachable) == is_ours


def test_the_hold_doubles_up_to_a_bound_while_it_lasts_and_begins_anew_afterwards():
    state, holds = egress.Egress(), []
    for _ in range(6):
        state = state.told(100, 100, 1000.0)
        holds.append(state.until - 1000.0)
    assert holds == [5, 10, 20, 40, 60, 60]
    state = state.told(100, 0, 1000.0)
    assert not state.is_broken
    assert state.told(100, 100, 1000.0).held_s == 5


@pytest.mark.parametrize(
    ("asked", "unreachable", "is_broken"),
    [(0, 0, True), (1, 1, True), (9, 5, True), (10, 5, True), (1, 0, False), (9, 4, False)],
)
def test_a_broken_network_is_mended_when_most_of_those_asked_are_reached_however_few(asked, unreachable, is_broken):
    assert egress.Egress().told(100, 100, 0.0).told(asked, unreachable, 5.0).is_broken == is_broken


class Stop(threading.Event):
    """Time passes while somebody waits for it."""

    def __init__(self, clock):
        super().__init__()
        self._clock = clock
        self.waits = []

    def wait(self, timeout=None):
        self.waits.append(timeout)
        self._clock.now += timeout
        return self.is_set()


def test_the_next_micro_batch_of_each_lane_waits_and_says_why():
    clock = fakes.Clock(0.0)
    stop, ours = Stop(clock), network.Network(clock)
    take = ours.holding(lambda: "registry", stop)
    assert (take(), stop.waits, ours.hold_reason()) == ("registry", [], None)
    ours.told(20, 20)
    assert "own network" in ours.hold_reason()
    assert ours.is_broken
    assert (take(), stop.waits) == ("registry", [5.0])
    ours.told(20, 0)
    assert (take(), stop.waits, ours.hold_reason()) == ("registry", [5.0], None)


def test_who_waits_is_stopped():
    clock = fakes.Clock(0.0)
    stop, ours = Stop(clock), network.Network(clock)
    ours.told(20, 20)
    stop.set()
    assert ours.holding(lambda: "registry", stop)() is None
