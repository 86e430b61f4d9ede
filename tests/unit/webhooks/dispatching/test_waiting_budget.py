"""The tasks of a worker wait in vain for a bounded time, however many endpoints become slow."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.webhooks.dispatching.waiting_budget import CAPACITY_S, REFILL, WaitingBudget
from delivery.webhooks.scheduling.response_times import LATE_MARGIN_S, MIN_MARGIN_S
from tests.support.dispatching import deliveries
from tests.support.micro_batches import NEVER_S, fine, playing


def test_a_full_wait_is_granted_while_the_budget_lasts_and_after_a_pause():
    budget, granted = WaitingBudget(), []
    for now in (0.0, 1.0, 2.0, 3.0, 3.0 + MIN_MARGIN_S / REFILL):
        granted.append(budget.margin_s(now))
        budget.spend(granted[-1], now)
    assert granted == [MIN_MARGIN_S, MIN_MARGIN_S, LATE_MARGIN_S, LATE_MARGIN_S, MIN_MARGIN_S]


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1)), max_size=50))
def test_full_waits_are_bounded_in_each_stretch_of_time(steps):
    """A full wait may begin only if the budget has enough for it, so at most the budget and its refill are spent on them."""
    budget, now, full_s = WaitingBudget(), 0.0, 0.0
    for pause_s, waited_s in steps:
        now += pause_s
        if budget.margin_s(now) == MIN_MARGIN_S:
            full_s += min(waited_s, MIN_MARGIN_S)
        budget.spend(waited_s, now)
    assert full_s <= CAPACITY_S + now * REFILL + 1e-9


def test_a_lane_in_which_no_event_waits_has_no_bound():
    budget = WaitingBudget(math.inf)
    budget.spend(1e6, 0.0)
    assert budget.margin_s(0.0) == MIN_MARGIN_S


def test_many_endpoints_that_become_slow_in_turn_hardly_delay_the_others():
    """Regression: each of them made a micro-batch longer by 0.15 s, and a share of 5 % of all endpoints doubled the median."""
    names = [f"slow{number}" for number in range(40)]

    async def play(worker):
        for name in names:
            await worker.micro_batch(*fine(), *deliveries(1, name))
        worker.sender.seconds |= dict.fromkeys(names, NEVER_S)
        return [(await worker.micro_batch(*fine(), *deliveries(1, name)))[0] for name in names]

    took_s = playing(play, dict.fromkeys(names, 0.01))
    assert took_s[:2] == [pytest.approx(0.01 + MIN_MARGIN_S)] * 2
    assert took_s[2:] == [pytest.approx(0.01 + LATE_MARGIN_S, abs=0.001)] * 38
