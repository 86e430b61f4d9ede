"""The dispatcher lets no endpoint delay other endpoints, and exceeds no rate and no limit of requests in flight."""

import asyncio
import collections
import gc
import weakref

import pytest

from delivery.model import OutcomeKind
from delivery.webhooks.dispatching import dispatch
from delivery.webhooks.policy import error_classes, retry_reasons
from tests.support import builders, fakes
from tests.support.dispatching import deliveries, dispatcher_of, new_memory, run


def test_no_limit_of_requests_in_flight_is_exceeded():
    clock = fakes.Clock()
    sender = fakes.FakeSender(lambda *_: None, clock)
    run(sender, deliveries(50, "a") + deliveries(50, "b"), clock, max_in_flight=10, max_in_flight_per_endpoint=4)
    assert sender.most_in_flight == {"a": 4, "b": 4}


def test_the_report_has_the_maximum_in_flight():
    sender = fakes.FakeSender(lambda *_: None, fakes.Clock())

    async def main():
        dispatcher = dispatcher_of(sender, fakes.Clock(), max_in_flight=10)
        for delivery in deliveries(3, "a") + deliveries(4, "b"):
            dispatcher.submit(delivery)
        await dispatcher.finish()
        return dispatcher.report().most_in_flight

    assert asyncio.run(main()) == sum(sender.most_in_flight.values()) == 7


def test_endpoints_share_the_slots_round_robin():
    clock = fakes.Clock()
    sender = fakes.FakeSender(lambda *_: None, clock)
    run(sender, deliveries(100, "hot") + deliveries(3, "quiet"), clock, max_in_flight=2)
    # Two slots and two endpoints: after the first round every second attempt goes to the quiet one, until it has none left.
    assert "quiet" in sender.order[:3]
    assert sender.order.index("quiet") < 3
    assert len([e for e in sender.order[:9] if e == "quiet"]) == 3


def test_an_endpoints_own_bound_holds_over_all_workers():
    clock = fakes.Clock()
    sender = fakes.FakeSender(lambda *_: None, clock)
    endpoints = [builders.endpoint("six", max_in_flight=6), builders.endpoint("one", max_in_flight=1)]
    run(sender, [builders.delivery(endpoint=endpoint) for endpoint in endpoints * 20], clock, workers=2)
    assert sender.most_in_flight == {"six": 3, "one": 1}


def paced(per_second, count, *, others=0, workers=1, queue_timeout_s=1e9):
    """Return the starts of the attempts by endpoint, in seconds, and the outcomes."""
    clock = fakes.PassingClock(now=0.0)
    starts = collections.defaultdict(list)

    class Sender(fakes.FakeSender):
        async def attempt(self, delivery, number):
            starts[delivery.endpoint.endpoint_id].append(clock.now)
            return await super().attempt(delivery, number)

    async def main():
        clock.install()
        dispatcher = dispatcher_of(Sender(lambda *_: None, clock), clock, workers=workers, queue_timeout_s=queue_timeout_s)
        slow = builders.endpoint("paced", max_per_second=per_second)
        for delivery in [builders.delivery(endpoint=slow) for _ in range(count)] + deliveries(others, "free"):
            dispatcher.submit(delivery)
        await dispatcher.finish()
        return dispatcher.drain()

    return starts, asyncio.run(main())


def test_a_rate_that_outlasts_the_task_keeps_no_dispatcher_in_memory():
    """Regression: a timer held the task's dispatcher, with the queues of all endpoints, until the rate allowed a request."""
    clock = fakes.PassingClock(now=0.0)

    async def main():
        clock.install()
        dispatcher = dispatcher_of(fakes.FakeSender(lambda *_: None, clock), clock, queue_timeout_s=3.0)
        for delivery in deliveries(2, max_per_second=0.001):
            dispatcher.submit(delivery)
        await dispatcher.finish()
        assert [outcome.kind for outcome in dispatcher.drain()] == [OutcomeKind.DELIVERED, OutcomeKind.POSTPONED]
        left = weakref.ref(dispatcher)
        del dispatcher
        await asyncio.sleep(1)  # the runners end, and the clock forgets the timer that ran last
        gc.collect()
        return left()

    assert asyncio.run(main()) is None


@pytest.mark.parametrize(("per_second", "workers", "share"), [(5, 1, 5), (10, 2, 5), (100, 1, 100), (0.5, 1, 0.5)])
def test_no_second_has_more_requests_than_the_rate(per_second, workers, share):
    starts, outcomes = paced(per_second, 40, workers=workers)
    assert {outcome.kind for outcome in outcomes} == {OutcomeKind.DELIVERED}
    for start in starts["paced"]:
        assert sum(start <= other < start + 1 - 1e-6 for other in starts["paced"]) <= max(1, share)


def test_a_wait_for_a_rate_delays_no_other_endpoint():
    starts, _ = paced(1, 5, others=50)
    assert (starts["paced"][-1], set(starts["free"])) == (4.0, {0.0})


def test_a_long_wait_for_a_rate_is_deferred_as_rate_limited():
    _, outcomes = paced(1, 10, queue_timeout_s=3.5)
    # One at 0, 1, 2 and 3 s; the others would begin after more than three and a half.
    assert collections.Counter((outcome.kind, outcome.reason) for outcome in outcomes) == {
        (OutcomeKind.DELIVERED, None): 4,
        (OutcomeKind.POSTPONED, retry_reasons.RATE_LIMITED): 6,
    }


def test_a_rate_holds_across_micro_batches():
    clock = fakes.PassingClock(now=0.0)
    memory = new_memory(clock)

    async def main():
        clock.install()
        for _ in range(2):
            dispatcher = dispatcher_of(fakes.FakeSender(lambda *_: None, clock), clock, memory=memory, queue_timeout_s=0.5)
            dispatcher.submit(*deliveries(1, max_per_second=1))
            await dispatcher.finish()
            yield [outcome.reason for outcome in dispatcher.drain()]

    async def reasons():
        return [reasons async for reasons in main()]

    assert asyncio.run(reasons()) == [[None], [retry_reasons.RATE_LIMITED]]


def test_the_lane_pauses_reading_while_many_queues_are_ready():
    clock, gate = fakes.Clock(), asyncio.Event()

    class Sender(fakes.FakeSender):
        async def attempt(self, delivery, number):
            await gate.wait()
            return await super().attempt(delivery, number)

    async def main():
        dispatcher = dispatcher_of(Sender(lambda *_: None, clock), clock, max_in_flight=1)
        for number in range(dispatch.ENOUGH_READY + 5):
            dispatcher.submit(*deliveries(1, f"ep{number}"))
        waiting = asyncio.create_task(dispatcher.wait_for_room())
        for _ in range(10):
            await asyncio.sleep(0)
        was_held = not waiting.done()
        gate.set()
        await waiting
        await dispatcher.finish()
        return was_held, len(dispatcher.drain())

    assert asyncio.run(main()) == (True, dispatch.ENOUGH_READY + 5)


def test_an_abandoned_dispatcher_sends_nothing():
    clock = fakes.Clock()
    sender = fakes.FakeSender(lambda *_: error_classes.SERVER_ERROR, clock)

    async def main():
        dispatcher = dispatcher_of(sender, clock, max_in_flight=2)
        for delivery in deliveries(10):
            dispatcher.submit(delivery)
        await dispatcher.wait_for_room()
        dispatcher.abandon()
        sent = len(sender.order)
        await asyncio.sleep(0.01)  # longer than the quick retry waits
        return sent, len(sender.order)

    sent, in_the_end = asyncio.run(main())
    assert 0 < sent == in_the_end


@pytest.mark.parametrize("wait", [lambda dispatcher: dispatcher.finish(), lambda dispatcher: dispatcher.wait_for_unsettled(0)])
def test_a_cancelled_wait_does_not_revive_a_dispatcher(wait):
    """A worker cancels the wait and abandons the dispatcher; the wait notices its end only afterwards."""
    clock = fakes.Clock()
    sender = fakes.FakeSender(lambda *_: None, clock)

    async def main():
        dispatcher = dispatcher_of(sender, clock)
        dispatcher.submit(*deliveries(1))
        waiting = asyncio.create_task(wait(dispatcher))
        await asyncio.sleep(0)
        waiting.cancel()
        dispatcher.abandon()
        await asyncio.gather(waiting, return_exceptions=True)
        sent = len(sender.order)
        dispatcher.submit(*deliveries(1))
        await asyncio.sleep(0.01)
        return sent, len(sender.order), dispatcher.drain()

    sent, in_the_end, outcomes = asyncio.run(main())
    assert (sent, outcomes) == (in_the_end, [])


def test_a_quick_retry_of_a_failed_task_has_no_outcome():
    """The task runs again and sends the delivery. A delivery that is deferred as well could be sent twice."""
    clock = fakes.Clock()
    sender = fakes.FakeSender(lambda *_: error_classes.SERVER_ERROR, clock)

    async def main():
        dispatcher = dispatcher_of(sender, clock)
        dispatcher.submit(*deliveries(1))
        waiting = asyncio.create_task(dispatcher.finish())
        for _ in range(20):  # until the attempt has failed
            await asyncio.sleep(0)
        assert sender.order
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.sleep(0.01)  # longer than the quick retry waits
        return dispatcher.drain()

    assert asyncio.run(main()) == []
