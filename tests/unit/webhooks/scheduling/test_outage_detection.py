"""The lanes pause while hardly any destination of several customers is reachable, because the fault is ours."""

import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.stages.lanes import network_outage
from delivery.webhooks.scheduling import outage_detection
from delivery.webhooks.state.backlog import Failing
from tests.support import builders, fakes


def seen(reached=0, unreachable=0, customers=5):
    """Return a Reachability with these numbers of destinations. Each customer has some of each kind."""
    numbers = range(reached + unreachable)
    return outage_detection.reachability(
        (
            builders.endpoint(f"ep{n}", url=f"https://host{n}.example/", customer_id=f"{n < reached}{n % customers}"),
            n < reached,
        )
        for n in numbers
    )


ALL_DOWN, ALL_UP = seen(unreachable=20), seen(reached=20)


@pytest.mark.parametrize(
    ("reached", "unreachable", "is_ours"),
    [(0, 9, False), (0, 10, True), (1, 9, True), (3, 7, False), (0, 0, False), (2, 100, False)],
)
def test_most_destinations_unreachable_means_an_outage(reached, unreachable, is_ours):
    """In the last case, 2 of 7 customers responded."""
    assert seen(reached, unreachable).is_broken() == is_ours


def test_endpoints_behind_one_gateway_are_one_destination():
    """Sixty endpoints of one customer at one closed port paused the lanes of all customers."""
    dead = [builders.endpoint(f"d{n}", url=f"https://one.example:8443/{n}", customer_id=f"c{n}") for n in range(60)]
    assert not outage_detection.reachability((endpoint, False) for endpoint in dead).is_broken()


def test_dead_hosts_of_one_customer_pause_no_lane():
    dead = [builders.endpoint(f"d{n}", url=f"https://d{n}.example/", customer_id="acme") for n in range(60)]
    well = [builders.endpoint(f"w{n}", url=f"https://w{n}.example/", customer_id="beta") for n in range(5)]
    assert not outage_detection.reachability((endpoint, False) for endpoint in dead).is_broken()
    assert not outage_detection.reachability(
        [*((endpoint, False) for endpoint in dead), *((endpoint, True) for endpoint in well)]
    ).is_broken()


def test_user_and_capitals_do_not_change_the_destination():
    urls = ["https://a.example/x", "https://A.example/y", "https://u:p@a.example/"]
    assert outage_detection.reachability((builders.endpoint(url=url), False) for url in urls).asked == 1


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 5), st.booleans()), max_size=600), st.randoms())
def test_samples_merge_in_any_order_and_stay_small(known, rng: random.Random):
    parts = [
        outage_detection.reachability(
            [(builders.endpoint(url=f"https://h{host}.example/", customer_id=f"c{customer}"), was_reached)]
        )
        for host, customer, was_reached in known
    ]
    merged = sum(parts, start=outage_detection.NOTHING_ASKED)
    rng.shuffle(parts)
    half = len(parts) // 2
    other = sum(parts[:half], start=outage_detection.NOTHING_ASKED) + sum(parts[half:], start=outage_detection.NOTHING_ASKED)
    assert merged == other
    assert merged.asked <= outage_detection.MAX_SAMPLE


def test_the_pause_doubles_during_an_outage():
    state, pauses, now = outage_detection.NetworkHealth(), [], 1000.0
    for _ in range(6):
        state = state.after(ALL_DOWN, now)
        pauses.append(state.paused_until - now)
        now = state.paused_until
    assert pauses == [5, 10, 20, 40, 60, 60]
    state = state.after(ALL_UP, now)
    assert not state.is_broken
    assert state.after(ALL_DOWN, now).pause_s == 5


def test_lanes_that_find_an_outage_together_pause_once(caplog):
    """Regression: each report doubled the pause. Four lanes whose micro-batches ended together paused for 40 s at once."""
    clock = fakes.Clock(0.0)
    ours = network_outage.Network(clock)
    for now in (0.0, 0.1, 3.0, 4.9):
        clock.now = now
        ours.record(ALL_DOWN)
    assert len(caplog.records) == 1
    clock.now = 5.0
    assert not ours.is_paused
    ours.record(ALL_DOWN)
    clock.now = 14.9
    assert ours.is_paused
    clock.now = 15.0
    assert not ours.is_paused


@pytest.mark.parametrize(
    ("reached", "unreachable", "is_broken"),
    [(0, 0, True), (0, 1, True), (4, 5, True), (5, 5, True), (1, 0, False), (5, 4, False)],
)
def test_an_outage_ends_when_most_destinations_respond(reached, unreachable, is_broken):
    assert outage_detection.NetworkHealth().after(ALL_DOWN, 0.0).after(seen(reached, unreachable), 5.0).is_broken == is_broken


def test_an_outage_pauses_each_lane_with_a_reason():
    clock = fakes.Clock(0.0)
    ours = network_outage.Network(clock)
    take = ours.pausing(lambda: clock.now, threading.Event())
    assert (take(), ours.pause_reason()) == (0.0, None)
    ours.record(ALL_DOWN)
    assert "own network" in ours.pause_reason()
    assert ours.is_broken
    clock.now = 5.0
    assert take() == 5.0


def test_recovery_ends_the_pause_of_all_lanes_at_once():
    """A lane that had just begun a pause of 40 s slept to its end, although another lane found the network working."""
    ours, taken = network_outage.Network(fakes.Clock(0.0)), threading.Barrier(3)
    ours.record(ALL_DOWN)
    take = ours.pausing(lambda: taken.wait(20), threading.Event())
    lanes = [threading.Thread(target=take) for _ in range(2)]
    for lane in lanes:
        lane.start()
    assert taken.n_waiting == 0
    ours.record(seen(reached=1))
    taken.wait(20)  # else it is broken, and raises
    for lane in lanes:
        lane.join()


def test_a_lane_that_is_paused_can_be_stopped():
    stop, ours = threading.Event(), network_outage.Network(fakes.Clock(0.0))
    ours.record(ALL_DOWN)
    stop.set()
    assert ours.pausing(lambda: "registry", stop)() is None


def failing(ours, since_s, failed_s, after_s=20):
    return ours.failing([Failing("ep1", since_s * 1000, failed_s * 1000)], after_s) == ["ep1"]


def test_failures_during_an_outage_disable_no_endpoint():
    """When the receivers responded again after 45 s, all were disabled: one lane had reported it, then the retry lane
    reported."""
    clock = fakes.Clock(1000.0)
    ours = network_outage.Network(clock, clock)
    ours.record(ALL_UP)
    clock.now = 1003.0
    ours.record(ALL_DOWN)
    assert not failing(ours, 1001, 1044)  # while it lasts
    clock.now = 1045.0
    ours.record(ALL_UP)
    assert not failing(ours, 1001, 1044)  # reported by a micro-batch that began before
    assert not failing(ours, 1001, 1050)  # an attempt that had begun before
    assert not failing(ours, 1001, 1074)  # 1 s before, and 19 s after the end of the outage
    assert failing(ours, 1001, 1076)


def test_failures_before_and_after_an_outage_add_up():
    clock = fakes.Clock(1000.0)
    ours = network_outage.Network(clock, clock)
    ours.record(ALL_UP)
    ours.record(ALL_DOWN)
    clock.now = 1045.0
    ours.record(ALL_UP)
    assert failing(ours, 985, 1061)  # 15 s and 6 s


def test_outages_in_quick_succession_are_subtracted_once():
    """Regression: each outage lasts some seconds beyond its end, which the next one began in. These seconds counted twice."""
    clock = fakes.Clock(1000.0)
    ours = network_outage.Network(clock, clock)
    ours.record(ALL_UP)
    for _ in range(20):
        ours.record(ALL_DOWN)
        clock.now += 1.0
        ours.record(ALL_UP)
    assert failing(ours, 990, 1041)  # 10 s before, and 11 s after all outages


def test_without_an_outage_all_failing_time_counts():
    ours = network_outage.Network(fakes.Clock(0.0), fakes.Clock(0.0))
    assert failing(ours, 1000, 1020)
    assert not failing(ours, 1000, 1019)
