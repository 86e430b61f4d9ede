"""Every delivery ends in one outcome, and no endpoint makes the others wait."""

import asyncio
import collections

import pytest

from delivery import errors
from delivery.model import OutcomeKind
from delivery.webhooks import dispatch, limits, retry
from tests import builders, fakes


def deliveries(count, endpoint_id="ep1"):
    endpoint = builders.endpoint(endpoint_id)
    return [builders.delivery(endpoint=endpoint) for _ in range(count)]


def dispatcher_of(sender, clock, **bounds):
    return dispatch.Dispatcher(sender, limits.Limits(**bounds), retry.QuickRetry(first_wait_s=0.001), paces={}, clock=clock)


def run(sender, submitted, clock, **bounds):
    async def main():
        dispatcher = dispatcher_of(sender, clock, **bounds)
        for delivery in submitted:
            dispatcher.submit(delivery)
        await dispatcher.finish()
        return dispatcher.ended()

    return asyncio.run(main())


def test_each_delivery_ends_in_exactly_one_outcome():
    clock = fakes.Clock()
    fates = [None, retry.SERVER_ERROR, retry.REFUSED, "timeout"]
    sender = fakes.FakeSender(lambda delivery, _: fates[hash(delivery.webhook_id) % 4], clock)
    submitted = [d for n in range(20) for d in deliveries(25, f"ep{n}")]
    outcomes = run(sender, submitted, clock, max_in_flight=16)
    assert collections.Counter(o.delivery.webhook_id for o in outcomes) == collections.Counter(d.webhook_id for d in submitted)


def test_nothing_to_deliver_ends_at_once():
    clock = fakes.Clock()
    assert run(fakes.FakeSender(lambda *_: None, clock), [], clock) == []


def test_no_bound_on_what_is_under_way_is_passed():
    clock = fakes.Clock()
    sender = fakes.FakeSender(lambda *_: None, clock)
    run(sender, deliveries(50, "a") + deliveries(50, "b"), clock, max_in_flight=10, max_in_flight_per_endpoint=4)
    assert sender.most_in_flight == {"a": 4, "b": 4}


def test_the_most_that_was_under_way_is_told():
    sender = fakes.FakeSender(lambda *_: None, fakes.Clock())

    async def main():
        dispatcher = dispatcher_of(sender, fakes.Clock(), max_in_flight=10)
        for delivery in deliveries(3, "a") + deliveries(4, "b"):
            dispatcher.submit(delivery)
        await dispatcher.finish()
        return dispatcher.most_in_flight

    assert asyncio.run(main()) == sum(sender.most_in_flight.values()) == 7


def test_endpoints_take_turns_however_much_one_of_them_has_waiting():
    clock = fakes.Clock()
    sender = fakes.FakeSender(lambda *_: None, clock)
    run(sender, deliveries(100, "hot") + deliveries(3, "quiet"), clock, max_in_flight=2)
    # Two slots and two endpoints: after the first round every second attempt is the quiet one's, until it has none left.
    assert "quiet" in sender.order[:3]
    assert sender.order.index("quiet") < 3
    assert len([e for e in sender.order[:9] if e == "quiet"]) == 3


def test_a_failure_that_often_passes_is_retried_and_every_attempt_is_told():
    clock = fakes.Clock()
    sender = fakes.FakeSender(lambda _, number: retry.SERVER_ERROR if number < 3 else None, clock)
    [outcome] = run(sender, deliveries(1), clock)
    assert outcome.kind is OutcomeKind.DELIVERED
    assert [(a.number, a.error_class) for a in outcome.attempts] == [(1, "server_error"), (2, "server_error"), (3, None)]


@pytest.mark.parametrize(("error_class", "attempts"), [(retry.SERVER_ERROR, 3), (retry.REFUSED, 1), ("timeout", 1)])
def test_when_the_lane_has_no_attempt_left_the_delivery_is_dead_lettered_with_the_last_error(error_class, attempts):
    clock = fakes.Clock()
    [outcome] = run(fakes.FakeSender(lambda *_: error_class, clock), deliveries(1), clock)
    assert (outcome.kind, outcome.reason, len(outcome.attempts)) == (OutcomeKind.DEAD_LETTERED, error_class, attempts)


def test_an_endpoint_that_accepts_nothing_for_a_lane_deadline_is_given_up_and_the_others_are_not():
    clock = fakes.Clock()

    def decide(delivery, _):
        return "timeout" if delivery.endpoint.endpoint_id == "hangs" else None

    class Sender(fakes.FakeSender):
        async def attempt(self, delivery, number):
            clock.now += 2.0 if delivery.endpoint.endpoint_id == "hangs" else 0.0
            return await super().attempt(delivery, number)

    outcomes = run(
        Sender(decide, clock),
        deliveries(100, "hangs") + deliveries(100, "fine"),
        clock,
        max_in_flight_per_endpoint=1,
        lane_deadline_s=3.0,
    )
    kinds = collections.Counter((o.delivery.endpoint.endpoint_id, o.kind, o.reason) for o in outcomes)
    assert kinds["fine", OutcomeKind.DELIVERED, None] == 100
    # Attempts begin at 0 s and 2 s; at 4 s the deadline of 3 s has passed.
    assert kinds["hangs", OutcomeKind.DEAD_LETTERED, "timeout"] == 2
    assert kinds["hangs", OutcomeKind.DEAD_LETTERED, retry.LANE_DEADLINE] == 98


def test_an_endpoint_that_keeps_accepting_is_never_given_up_however_long_it_takes():
    clock = fakes.Clock()
    sender = fakes.FakeSender(lambda *_: None, clock, seconds_per_attempt=2.0)
    outcomes = run(sender, deliveries(100), clock, max_in_flight_per_endpoint=1, lane_deadline_s=3.0)
    assert {o.kind for o in outcomes} == {OutcomeKind.DELIVERED}


def test_our_own_exhaustion_is_never_counted_against_the_endpoint():
    """Thirty attempts of a second each are far beyond the lane's deadline, and the endpoint was not asked once."""
    clock = fakes.Clock()
    sender = fakes.FakeSender(lambda *_: errors.LocalFailure.error_class, clock, seconds_per_attempt=1.0)
    outcomes = run(sender, deliveries(10), clock, max_in_flight_per_endpoint=1, lane_deadline_s=3.0)
    assert collections.Counter((o.reason, len(o.attempts)) for o in outcomes) == {("local", 3): 10}


def test_an_endpoint_that_had_nothing_to_accept_for_a_while_is_not_given_up_unasked():
    clock = fakes.Clock()
    sender = fakes.FakeSender(lambda *_: None, clock)

    async def main():
        dispatcher = dispatcher_of(sender, clock, lane_deadline_s=3.0)
        first, second = deliveries(2)
        dispatcher.submit(first)
        await dispatcher.finish()
        clock.now += 10.0  # the micro-batch was busy with others
        dispatcher.submit(second)
        await dispatcher.finish()
        return dispatcher.ended()

    assert [outcome.kind for outcome in asyncio.run(main())] == [OutcomeKind.DELIVERED] * 2


def test_a_retry_after_that_the_lane_has_time_for_is_waited_for_and_a_longer_one_ends_the_delivery():
    clock = fakes.Clock()
    asked_s = {"soon": 0.02, "late": 60.0}
    began = {}

    class Sender(fakes.FakeSender):
        async def attempt(self, delivery, number):
            endpoint_id = delivery.endpoint.endpoint_id
            began.setdefault(endpoint_id, []).append(asyncio.get_running_loop().time())
            attempt = await super().attempt(delivery, number)
            return attempt._replace(retry_after_s=asked_s[endpoint_id])

    sender = Sender(lambda _, number: retry.THROTTLED if number == 1 else None, clock)
    outcomes = run(sender, deliveries(1, "soon") + deliveries(1, "late"), clock)
    assert {o.delivery.endpoint.endpoint_id: (o.kind, o.reason) for o in outcomes} == {
        "soon": (OutcomeKind.DELIVERED, None),
        "late": (OutcomeKind.DEAD_LETTERED, "throttled"),
    }
    first, second = began["soon"]
    assert second - first >= asked_s["soon"]


def test_a_fault_of_the_sender_itself_fails_the_task_instead_of_losing_the_delivery():
    clock = fakes.Clock()

    def broken(*_):
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        run(fakes.FakeSender(broken, clock), deliveries(3), clock)


def test_an_endpoints_own_bound_holds_over_all_workers():
    clock = fakes.Clock()
    sender = fakes.FakeSender(lambda *_: None, clock)
    endpoints = [builders.endpoint("six", max_in_flight=6), builders.endpoint("one", max_in_flight=1)]
    run(sender, [builders.delivery(endpoint=endpoint) for endpoint in endpoints * 20], clock, workers=2)
    assert sender.most_in_flight == {"six": 3, "one": 1}


class WallClock(fakes.Clock):
    """Time that passes while the event loop waits; a wait is over at once."""

    def install(self):
        loop = asyncio.get_running_loop()

        def call_later(wait_s, callback, *arguments):
            def due():
                self.now = max(self.now, at)
                callback(*arguments)

            at = self.now + wait_s
            return original(wait_s / 1000, due)

        original, loop.call_later = loop.call_later, call_later


def paced(per_second, count, *, others=0, workers=1, rate_wait_s=1e9):
    """Return (start of each attempt, in seconds, by endpoint; outcomes)."""
    clock = WallClock(now=0.0)
    starts = collections.defaultdict(list)

    class Sender(fakes.FakeSender):
        async def attempt(self, delivery, number):
            starts[delivery.endpoint.endpoint_id].append(clock.now)
            return await super().attempt(delivery, number)

    async def main():
        clock.install()
        dispatcher = dispatcher_of(Sender(lambda *_: None, clock), clock, workers=workers, rate_wait_s=rate_wait_s)
        slow = builders.endpoint("paced", max_per_second=per_second)
        for delivery in [builders.delivery(endpoint=slow) for _ in range(count)] + deliveries(others, "free"):
            dispatcher.submit(delivery)
        await dispatcher.finish()
        return dispatcher.ended()

    return starts, asyncio.run(main())


@pytest.mark.parametrize(("per_second", "workers", "share"), [(5, 1, 5), (10, 2, 5), (100, 1, 100), (0.5, 1, 0.5)])
def test_in_no_second_do_more_requests_begin_than_the_rate_allows(per_second, workers, share):
    starts, outcomes = paced(per_second, 40, workers=workers)
    assert {outcome.kind for outcome in outcomes} == {OutcomeKind.DELIVERED}
    for start in starts["paced"]:
        assert sum(start <= other < start + 1 - 1e-6 for other in starts["paced"]) <= max(1, share)


def test_who_waits_for_a_pace_holds_up_nobody():
    starts, _ = paced(1, 5, others=50)
    assert (starts["paced"][-1], set(starts["free"])) == (4.0, {0.0})


def test_what_would_wait_too_long_for_its_pace_ends_with_that_reason():
    _, outcomes = paced(1, 10, rate_wait_s=3.0)
    # One at 0, 1, 2 and 3 s; the others would begin after more than three seconds.
    assert collections.Counter(outcome.reason for outcome in outcomes) == {None: 4, retry.RATE_LIMITED: 6}


def test_a_pace_goes_on_over_micro_batches():
    paces, clock = {}, fakes.Clock(now=0.0)
    limited = builders.endpoint(max_per_second=1)

    async def one_micro_batch():
        sender, bounds = fakes.FakeSender(lambda *_: None, clock), limits.Limits(rate_wait_s=0.5)
        dispatcher = dispatch.Dispatcher(sender, bounds, retry.QuickRetry(), paces=paces, clock=clock)
        dispatcher.submit(builders.delivery(endpoint=limited))
        await dispatcher.finish()
        return [outcome.reason for outcome in dispatcher.ended()]

    assert [asyncio.run(one_micro_batch()) for _ in range(2)] == [[None], [retry.RATE_LIMITED]]


def test_no_more_is_asked_for_while_many_endpoints_wait_for_a_slot():
    clock, gate = fakes.Clock(), asyncio.Event()

    class Sender(fakes.FakeSender):
        async def attempt(self, delivery, number):
            await gate.wait()
            return await super().attempt(delivery, number)

    async def main():
        dispatcher = dispatcher_of(Sender(lambda *_: None, clock), clock, max_in_flight=1)
        for number in range(dispatch.ENOUGH_IN_TURN + 5):
            dispatcher.submit(*deliveries(1, f"ep{number}"))
        waiting = asyncio.create_task(dispatcher.room())
        for _ in range(10):
            await asyncio.sleep(0)
        was_held = not waiting.done()
        gate.set()
        await waiting
        await dispatcher.finish()
        return was_held, len(dispatcher.ended())

    assert asyncio.run(main()) == (True, dispatch.ENOUGH_IN_TURN + 5)


def test_what_was_abandoned_is_sent_no_more():
    clock = fakes.Clock()
    sender = fakes.FakeSender(lambda *_: retry.SERVER_ERROR, clock)

    async def main():
        dispatcher = dispatcher_of(sender, clock, max_in_flight=2)
        for delivery in deliveries(10):
            dispatcher.submit(delivery)
        await dispatcher.room()
        dispatcher.abandon()
        sent = len(sender.order)
        await asyncio.sleep(0.01)  # longer than the quick retry waits
        return sent, len(sender.order)

    sent, in_the_end = asyncio.run(main())
    assert 0 < sent == in_the_end
