"""A failing or slow endpoint delays a micro-batch once: circuit breakers and the queue timeout.

Here a micro-batch waits for every attempt; test_dispatch_background is about the response deadline.
"""

import asyncio
import collections
import math

from delivery.model import OutcomeKind
from delivery.webhooks.policy import error_classes, retry_reasons
from tests.support import fakes
from tests.support.dispatching import deliveries, dispatcher_of, new_memory, run


class SlowSender(fakes.FakeSender):
    """A sender that takes the endpoint's time in `seconds`, by the event loop's clock. Endpoints in `hangs` never respond."""

    def __init__(self, clock, seconds, hangs=()):
        super().__init__(lambda delivery, _: "timeout" if delivery.endpoint.endpoint_id in hangs else None, clock)
        self._seconds_of = seconds

    async def attempt(self, delivery, number):
        if seconds := self._seconds_of.get(delivery.endpoint.endpoint_id):
            await asyncio.sleep(seconds)
        return await super().attempt(delivery, number)


def in_passing_time(sender_of, *micro_batches, **bounds):
    """Deliver micro-batches in turn; return for each (seconds it took, count by endpoint, kind, reason, attempts)."""
    clock, bounds = fakes.PassingClock(), {"response_deadline_s": math.inf} | bounds
    sender, memory = sender_of(clock), new_memory(clock)

    async def main():
        clock.install()
        counted = []
        for submitted in micro_batches:
            began, dispatcher = clock.now, dispatcher_of(sender, clock, memory=memory, **bounds)
            for delivery in submitted:
                dispatcher.submit(delivery)
            await dispatcher.finish()
            ended = dispatcher.drain()
            endings = collections.Counter((o.delivery.endpoint.endpoint_id, o.kind, o.reason, len(o.attempts)) for o in ended)
            counted.append((clock.now - began, endings))
        return counted

    return asyncio.run(main())


def test_a_hanging_endpoint_costs_one_attempt_once():
    micro_batch = deliveries(100, "hangs") + deliveries(100, "fine")
    first, second = in_passing_time(
        lambda clock: SlowSender(clock, {"hangs": 2.0}, hangs=["hangs"]),
        micro_batch,
        micro_batch,
        max_in_flight_per_endpoint=16,
    )
    assert first == (2.0, {
        ("fine", OutcomeKind.DELIVERED, None, 1): 100,
        ("hangs", OutcomeKind.DEAD_LETTERED, "timeout", 1): 16,
        ("hangs", OutcomeKind.POSTPONED, retry_reasons.CIRCUIT_OPEN, 0): 84,
    })  # fmt: skip
    assert second == (0.0, {
        ("fine", OutcomeKind.DELIVERED, None, 1): 100,
        ("hangs", OutcomeKind.POSTPONED, retry_reasons.CIRCUIT_OPEN, 0): 100,
    })  # fmt: skip


def test_a_few_timeouts_run_in_parallel():
    """Two timeouts open the breaker: the third in line does not begin after them."""
    [(took, endings)] = in_passing_time(
        lambda clock: SlowSender(clock, {"hangs": 2.0}, hangs=["hangs"]), deliveries(3, "hangs"), max_in_flight_per_endpoint=2
    )
    assert (took, endings["hangs", OutcomeKind.POSTPONED, retry_reasons.CIRCUIT_OPEN, 0]) == (2.0, 1)


def test_a_failing_endpoint_gets_one_request_at_a_time():
    clock = fakes.Clock()
    fates = iter([error_classes.REFUSED, error_classes.SERVER_ERROR] + [None] * 100)
    under_way = []

    class Sender(fakes.FakeSender):
        async def attempt(self, delivery, number):
            attempt = await super().attempt(delivery, number)
            under_way.append(sum(self.in_flight.values()))
            return attempt

    run(Sender(lambda *_: next(fates), clock), deliveries(40), clock, max_in_flight_per_endpoint=2)
    assert under_way[:3] == [1, 1, 0]  # beside the one that ended; after the failure no further request began
    assert 1 in under_way[3:6]


def test_a_quick_retry_at_an_open_breaker_is_deferred():
    clock = fakes.Clock()
    outcomes = run(fakes.FakeSender(lambda *_: error_classes.SERVER_ERROR, clock), deliveries(6), clock, max_in_flight=1)
    counted = collections.Counter((o.kind, o.reason, len(o.attempts)) for o in outcomes)
    # Five first attempts open it. The fifth is not retried; the four before it are retried at an open breaker.
    assert counted == {
        (OutcomeKind.POSTPONED, retry_reasons.CIRCUIT_OPEN, 1): 4,
        (OutcomeKind.DEAD_LETTERED, "server_error", 1): 1,
        (OutcomeKind.POSTPONED, retry_reasons.CIRCUIT_OPEN, 0): 1,
    }


def test_the_queue_timeout_defers_what_waits_for_its_endpoint():
    [(took, endings)] = in_passing_time(
        lambda clock: SlowSender(clock, {"slow": 2.0}),
        deliveries(100, "slow") + deliveries(50, "fine"),
        max_in_flight_per_endpoint=1,
        queue_timeout_s=3.0,
    )
    # Attempts begin at 0 s and 2 s. At 3 s the timeout has passed, and the attempt in flight is awaited.
    assert (took, endings) == (4.0, {
        ("fine", OutcomeKind.DELIVERED, None, 1): 50,
        ("slow", OutcomeKind.DELIVERED, None, 1): 2,
        ("slow", OutcomeKind.POSTPONED, retry_reasons.LANE_DEADLINE, 0): 98,
    })  # fmt: skip


def test_the_queue_timeout_also_bounds_a_wait_for_memory():
    """The batch lane waits for memory in this way: until one delivery after the other has ended."""
    clock = fakes.PassingClock()

    async def main():
        clock.install()
        began, dispatcher = clock.now, dispatcher_of(SlowSender(clock, {"slow": 2.0}), clock, max_in_flight_per_endpoint=1)
        for delivery in deliveries(20, "slow"):
            dispatcher.submit(delivery)
        for unsettled in range(10, 0, -1):
            await dispatcher.wait_for_unsettled(unsettled)
        return clock.now - began, collections.Counter(outcome.reason for outcome in dispatcher.drain())

    assert asyncio.run(main()) == (3.0, {None: 1, retry_reasons.LANE_DEADLINE: 18})


def test_the_queue_timeout_spares_recent_deliveries():
    clock = fakes.PassingClock()

    async def main():
        clock.install()
        dispatcher = dispatcher_of(SlowSender(clock, {"slow": 2.0}), clock, max_in_flight_per_endpoint=1)
        for number in (2, 1, 1):  # two wait at first; then one is added whenever one has ended
            for delivery in deliveries(number, "slow"):
                dispatcher.submit(delivery)
            await dispatcher.wait_for_unsettled(1)
        return {outcome.kind for outcome in dispatcher.drain()}

    assert asyncio.run(main()) == {OutcomeKind.DELIVERED}


def test_a_wait_for_a_busy_slot_is_not_deferred():
    endpoints = [f"ep{n}" for n in range(10)]
    [(took, endings)] = in_passing_time(
        lambda clock: SlowSender(clock, dict.fromkeys(endpoints, 1.0)),
        [delivery for endpoint in endpoints for delivery in deliveries(1, endpoint)],
        max_in_flight=1,
        queue_timeout_s=3.0,
    )
    assert (took, {kind for _, kind, _, _ in endings}) == (10.0, {OutcomeKind.DELIVERED})


def test_a_retry_after_the_queue_timeout_is_deferred():
    class Sender(fakes.FakeSender):
        async def attempt(self, delivery, number):
            return (await super().attempt(delivery, number))._replace(retry_after_s=2.0)

    [(_, endings)] = in_passing_time(
        lambda clock: Sender(lambda *_: error_classes.THROTTLED, clock), deliveries(1), queue_timeout_s=1.0
    )
    assert endings == {("ep1", OutcomeKind.POSTPONED, retry_reasons.LANE_DEADLINE, 1): 1}


def test_deliveries_that_wait_for_the_slots_of_others_are_not_deferred():
    """Regression: with all slots in use, healthy endpoints were postponed after the queue timeout, and backed off from."""
    endpoints = [f"ep{number}" for number in range(4)]
    [(took_s, endings)] = in_passing_time(
        lambda clock: SlowSender(clock, dict.fromkeys(endpoints, 0.2)),
        [delivery for _ in range(100) for endpoint_id in endpoints for delivery in deliveries(1, endpoint_id)],
        max_in_flight=16,
    )
    assert endings == {(endpoint_id, OutcomeKind.DELIVERED, None, 1): 100 for endpoint_id in endpoints}
    assert took_s > 3.0  # the queue timeout
