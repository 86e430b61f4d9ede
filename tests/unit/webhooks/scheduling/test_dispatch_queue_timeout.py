"""An endpoint that fails, or is slow, is waited for but once: breakers and stragglers.

Here a micro-batch has the patience to wait for every attempt; test_dispatch_late is of what it has none for.
"""

import asyncio
import collections
import math

from delivery.model import OutcomeKind
from delivery.webhooks.policy import retry_decision
from tests.support import fakes
from tests.support.dispatching import deliveries, dispatcher_of, run


class SlowSender(fakes.FakeSender):
    """Takes as long as `seconds` says of an endpoint, by the event loop's clock; those in `hangs` answer never."""

    def __init__(self, clock, seconds, hangs=()):
        super().__init__(lambda delivery, _: "timeout" if delivery.endpoint.endpoint_id in hangs else None, clock)
        self._seconds_of = seconds

    async def attempt(self, delivery, number):
        if seconds := self._seconds_of.get(delivery.endpoint.endpoint_id):
            await asyncio.sleep(seconds)
        return await super().attempt(delivery, number)


def in_passing_time(sender_of, *micro_batches, **bounds):
    """Deliver one micro-batch after the other; return of each (seconds it took, count by endpoint, kind, reason, attempts)."""
    clock, breakers, bounds = fakes.PassingClock(), {}, {"response_deadline_s": math.inf} | bounds
    sender = sender_of(clock)

    async def main():
        clock.install()
        told = []
        for submitted in micro_batches:
            began, dispatcher = clock.now, dispatcher_of(sender, clock, breakers=breakers, **bounds)
            for delivery in submitted:
                dispatcher.submit(delivery)
            await dispatcher.finish()
            ended = dispatcher.drain()
            endings = collections.Counter((o.delivery.endpoint.endpoint_id, o.kind, o.reason, len(o.attempts)) for o in ended)
            told.append((clock.now - began, endings))
        return told

    return asyncio.run(main())


def test_an_endpoint_that_hangs_costs_one_micro_batch_the_time_of_an_attempt_and_the_next_none():
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
        ("hangs", OutcomeKind.POSTPONED, retry_decision.CIRCUIT_OPEN, 0): 84,
    })  # fmt: skip
    assert second == (0.0, {
        ("fine", OutcomeKind.DELIVERED, None, 1): 100,
        ("hangs", OutcomeKind.POSTPONED, retry_decision.CIRCUIT_OPEN, 0): 100,
    })  # fmt: skip


def test_few_deliveries_that_time_out_are_waited_for_at_once_too():
    """Two timeouts open the circuit: the third in line does not begin after them."""
    [(took, endings)] = in_passing_time(
        lambda clock: SlowSender(clock, {"hangs": 2.0}, hangs=["hangs"]), deliveries(3, "hangs"), max_in_flight_per_endpoint=2
    )
    assert (took, endings["hangs", OutcomeKind.POSTPONED, retry_decision.CIRCUIT_OPEN, 0]) == (2.0, 1)


def test_after_a_failure_the_endpoint_is_asked_by_one_request_at_a_time_until_it_answers():
    clock = fakes.Clock()
    fates = iter([retry_decision.REFUSED, retry_decision.SERVER_ERROR] + [None] * 100)
    under_way = []

    class Sender(fakes.FakeSender):
        async def attempt(self, delivery, number):
            attempt = await super().attempt(delivery, number)
            under_way.append(sum(self.in_flight.values()))
            return attempt

    run(Sender(lambda *_: next(fates), clock), deliveries(40), clock, max_in_flight_per_endpoint=2)
    assert under_way[:3] == [1, 1, 0]  # beside the one that ended; after the failure nothing more was begun
    assert 1 in under_way[3:6]


def test_a_delivery_whose_quick_retry_comes_when_the_circuit_is_open_is_handed_over_with_its_attempts():
    clock = fakes.Clock()
    outcomes = run(fakes.FakeSender(lambda *_: retry_decision.SERVER_ERROR, clock), deliveries(6), clock, max_in_flight=1)
    told = collections.Counter((o.kind, o.reason, len(o.attempts)) for o in outcomes)
    # Five first attempts open it. The fifth is not tried again; the four before it come back to an open circuit.
    assert told == {
        (OutcomeKind.POSTPONED, retry_decision.CIRCUIT_OPEN, 1): 4,
        (OutcomeKind.DEAD_LETTERED, "server_error", 1): 1,
        (OutcomeKind.POSTPONED, retry_decision.CIRCUIT_OPEN, 0): 1,
    }


def test_who_keeps_a_micro_batch_waiting_by_itself_is_handed_over_after_the_lane_deadline():
    [(took, endings)] = in_passing_time(
        lambda clock: SlowSender(clock, {"slow": 2.0}),
        deliveries(100, "slow") + deliveries(50, "fine"),
        max_in_flight_per_endpoint=1,
        queue_timeout_s=3.0,
    )
    # Attempts begin at 0 s and 2 s. At 3 s the deadline has passed; what is under way is waited for.
    assert (took, endings) == (4.0, {
        ("fine", OutcomeKind.DELIVERED, None, 1): 50,
        ("slow", OutcomeKind.DELIVERED, None, 1): 2,
        ("slow", OutcomeKind.POSTPONED, retry_decision.LANE_DEADLINE, 0): 98,
    })  # fmt: skip


def test_nor_does_it_keep_the_lane_from_reading_on_for_longer_than_that():
    """As the batch lane waits for room in memory: for one after the other to end."""
    clock = fakes.PassingClock()

    async def main():
        clock.install()
        began, dispatcher = clock.now, dispatcher_of(SlowSender(clock, {"slow": 2.0}), clock, max_in_flight_per_endpoint=1)
        for delivery in deliveries(20, "slow"):
            dispatcher.submit(delivery)
        for unsettled in range(10, 0, -1):
            await dispatcher.wait_for_unsettled(unsettled)
        return clock.now - began, collections.Counter(outcome.reason for outcome in dispatcher.drain())

    assert asyncio.run(main()) == (3.0, {None: 1, retry_decision.LANE_DEADLINE: 18})


def test_what_has_not_waited_for_long_is_no_straggler_while_more_may_come():
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


def test_nobody_is_handed_over_for_waiting_for_a_slot_that_others_have():
    endpoints = [f"ep{n}" for n in range(10)]
    [(took, endings)] = in_passing_time(
        lambda clock: SlowSender(clock, dict.fromkeys(endpoints, 1.0)),
        [delivery for endpoint in endpoints for delivery in deliveries(1, endpoint)],
        max_in_flight=1,
        queue_timeout_s=3.0,
    )
    assert (took, {kind for _, kind, _, _ in endings}) == (10.0, {OutcomeKind.DELIVERED})


def test_a_retry_that_would_come_after_the_stragglers_were_handed_over_is_handed_over_too():
    class Sender(fakes.FakeSender):
        async def attempt(self, delivery, number):
            return (await super().attempt(delivery, number))._replace(retry_after_s=2.0)

    [(_, endings)] = in_passing_time(
        lambda clock: Sender(lambda *_: retry_decision.THROTTLED, clock), deliveries(1), queue_timeout_s=1.0
    )
    assert endings == {("ep1", OutcomeKind.POSTPONED, retry_decision.LANE_DEADLINE, 1): 1}
