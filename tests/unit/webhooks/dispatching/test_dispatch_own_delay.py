"""A lack of CPU on our machine is no fault of an endpoint: it defers nothing, and no endpoint counts as unresponsive."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delivery.model import Attempt, OutcomeKind
from delivery.webhooks.scheduling import endpoint_clock
from tests.simulation import virtual
from tests.support import builders, dispatching
from tests.unit.webhooks.scheduling.test_endpoint_clock import Delay

ENDPOINTS = 8


class Answering:
    """Endpoints that respond after `wait_s`. While the process is stopped, responses wait in its sockets."""

    def __init__(self, wait_s):
        self._wait_s = wait_s

    async def attempt(self, delivery, number):  # noqa: ARG002
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(self._wait_s)
        return Attempt(number=number, started_at_ms=0, duration_ms=(loop.time() - began) * 1000, status=200, error_class=None)


def delivered(wait_s, stalls=(), delay=None, count=200):
    """Return the outcomes and the unresponsive endpoints of a micro-batch. `stalls`: (begin, length) in seconds."""

    async def main():
        loop = asyncio.get_running_loop()
        clock = endpoint_clock.EndpointClock(delay or Delay())

        async def stalling():
            for after_s, for_s in stalls:
                await asyncio.sleep(after_s)
                loop.stall(for_s)

        disturbed = asyncio.create_task(stalling())
        dispatcher = dispatching.dispatcher_of(
            Answering(wait_s), loop.time, endpoint_time=clock.time, max_in_flight_per_endpoint=4
        )
        for number in range(count):
            dispatcher.submit(builders.delivery(endpoint=builders.endpoint(f"ep{number % ENDPOINTS}")))
        await dispatcher.finish()
        disturbed.cancel()
        clock.stop()
        return dispatcher.drain(), dispatcher.report().unresponsive

    return virtual.run(main())


@settings(max_examples=60)
@given(
    st.floats(0.001, 0.1),
    st.lists(st.tuples(st.floats(0.25, 0.8), st.floats(0.0, 20.0)), max_size=12),
)
def test_stalls_of_this_process_defer_nothing(wait_s, stalls):
    outcomes, unresponsive = delivered(wait_s, stalls)

    assert {outcome.kind for outcome in outcomes} == {OutcomeKind.DELIVERED}
    assert not unresponsive


@pytest.mark.parametrize("share", [0.5, 0.8, 1.0])
def test_responses_that_we_read_slowly_defer_nothing(share):
    """With 7/8 of the time spent waiting for a CPU, a response after 0.1 s seems to take 0.8 s."""
    outcomes, unresponsive = delivered(0.1 / max(1 - share, endpoint_clock.LEAST_SPEED), delay=Delay(share), count=40)

    assert {outcome.kind for outcome in outcomes} == {OutcomeKind.DELIVERED}
    assert not unresponsive


def test_an_overloaded_machine_still_detects_a_hanging_endpoint():
    outcomes, _ = delivered(60.0, delay=Delay(1.0), count=2)

    assert {outcome.reason for outcome in outcomes} == {"under_way"}
