"""The next step of a delivery after an attempt in a fast lane."""

import pytest

from delivery.model import Attempt
from delivery.webhooks.dispatching import settling
from delivery.webhooks.dispatching.settling import NextStep
from delivery.webhooks.policy import backoff, error_classes

POLICY = backoff.QuickRetry(max_attempts=2, first_wait_s=0.5, jitter=0.0)
ACCEPTED, REFUSED, BROKEN = (None, 200), (error_classes.REFUSED, 400), (error_classes.SERVER_ERROR, 500)


OPEN, BACKGROUND = {"is_breaker_open": True}, {"is_in_background": True}


@pytest.mark.parametrize(
    ("result", "number", "state", "settlement"),
    [
        pytest.param(ACCEPTED, 1, {}, (NextStep.DELIVERED, 0.0, False), id="accepted"),
        pytest.param(ACCEPTED, 1, OPEN, (NextStep.DELIVERED, 0.0, False), id="accepted though the breaker is open"),
        pytest.param(BROKEN, 1, {}, (NextStep.QUICK_RETRY, 0.5, False), id="often passes"),
        pytest.param(BROKEN, 1, BACKGROUND, (NextStep.DEFERRED_QUICK_RETRY, 0.5, False), id="often passes, in the background"),
        pytest.param(BROKEN, 2, {}, (NextStep.FAILED, 0.0, False), id="no attempt left"),
        pytest.param(REFUSED, 1, {}, (NextStep.FAILED, 0.0, False), id="does not pass"),
        pytest.param(BROKEN, 1, OPEN, (NextStep.FAILED, 0.0, True), id="the breaker is open"),
    ],
)
def test_the_next_step_follows_from_result_breaker_and_background(result, number, state, settlement):
    error_class, status = result
    attempt = Attempt(number, 0, 1.0, status, error_class)
    assert settling.settle(attempt, POLICY, **{"is_breaker_open": False, "is_in_background": False, **state}) == settlement
