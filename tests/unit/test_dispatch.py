"""Every delivery ends in one outcome, and no endpoint makes the others wait."""

import asyncio
import collections

import pytest

from delivery import errors
from delivery.model import Again, OutcomeKind, Retrying
from delivery.webhooks import dispatch, limits, retry
from tests import builders, fakes


def deliveries(count, endpoint_id="ep1", **fields):
    endpoint = builders.endpoint(endpoint_id, **fields)
    return [builders.delivery(endpoint=endpoint) for _ in range(count)]


def dispatcher_of(sender, clock, *, paces=None, circuits=None, **bounds):
    kept = {} if circuits is None else circuits
    return dispatch.Dispatcher(
        sender,
        limits.Limits(**bounds),
        retry.QuickRetry(first_wait_s=0.001),
        fakes.handover(clock, circuits=kept),
        paces={} if paces is None else paces,
        circuits=kept,
        clock=clock,
    )


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


def test_what_fails_is_postponed_by_its_endpoints_schedule():
    clock = fakes.Clock()
    submitted = deliveries(1, retrying=Retrying(schedule_s=(7, 60)))
    [outcome] = run(fakes.FakeSender(lambda *_: retry.SERVER_ERROR, clock), submitted, clock)
    assert (outcome.kind, outcome.reason, len(outcome.attempts)) == (OutcomeKind.POSTPONED, "server_error", 3)
    assert outcome.again == Again(round((clock.now + 7) * 1000), 1)


def test_a_fault_of_our_own_postpones_and_uses_up_no_wait():
    clock = fakes.Clock()
    [outcome] = run(fakes.FakeSender(lambda *_: "local", clock), deliveries(1, retrying=Retrying()), clock)
    assert (outcome.kind, outcome.reason, outcome.again.retries) == (OutcomeKind.POSTPONED, "local", 0)


@pytest.mark.parametrize(("schedule_s", "kind"), [((5,), OutcomeKind.POSTPONED), ((), OutcomeKind.DEAD_LETTERED)])
def test_an_endpoint_that_says_that_it_is_gone_is_told_of_once(schedule_s, kind):
    clock = fakes.Clock()
    sender = fakes.FakeSender(lambda delivery, _: retry.GONE if delivery.endpoint.endpoint_id == "gone" else None, clock)

    async def main():
        dispatcher = dispatcher_of(sender, clock)
        for delivery in deliveries(2, "gone", retrying=Retrying(schedule_s=schedule_s)) + deliveries(2, "here"):
            dispatcher.submit(delivery)
        await dispatcher.finish()
        kinds = {o.kind for o in dispatcher.ended() if o.delivery.endpoint.endpoint_id == "gone"}
        return kinds, dispatcher.gone(), dispatcher.gone()

    assert asyncio.run(main()) == ({kind}, {"gone"}, frozenset())


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
    clock, circuits = fakes.PassingClock(), {}
    sender = sender_of(clock)

    async def main():
        clock.install()
        told = []
        for submitted in micro_batches:
            began, dispatcher = clock.now, dispatcher_of(sender, clock, circuits=circuits, **bounds)
            for delivery in submitted:
                dispatcher.submit(delivery)
            await dispatcher.finish()
            ended = dispatcher.ended()
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
        ("hangs", OutcomeKind.POSTPONED, retry.CIRCUIT_OPEN, 0): 84,
    })  # fmt: skip
    assert second == (0.0, {
        ("fine", OutcomeKind.DELIVERED, None, 1): 100,
        ("hangs", OutcomeKind.POSTPONED, retry.CIRCUIT_OPEN, 0): 100,
    })  # fmt: skip


def test_few_deliveries_that_time_out_are_waited_for_at_once_too():
    """Two timeouts open the circuit: the third in line does not begin after them."""
    [(took, endings)] = in_passing_time(
        lambda clock: SlowSender(clock, {"hangs": 2.0}, hangs=["hangs"]), deliveries(3, "hangs"), max_in_flight_per_endpoint=2
    )
    assert (took, endings["hangs", OutcomeKind.POSTPONED, retry.CIRCUIT_OPEN, 0]) == (2.0, 1)


def test_after_a_failure_the_endpoint_is_asked_by_one_request_at_a_time_until_it_answers():
    clock = fakes.Clock()
    fates = iter([retry.REFUSED, retry.SERVER_ERROR] + [None] * 100)
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
    outcomes = run(fakes.FakeSender(lambda *_: retry.SERVER_ERROR, clock), deliveries(6), clock, max_in_flight=1)
    told = collections.Counter((o.kind, o.reason, len(o.attempts)) for o in outcomes)
    # Five first attempts open it. The fifth is not tried again; the four before it come back to an open circuit.
    assert told == {
        (OutcomeKind.POSTPONED, retry.CIRCUIT_OPEN, 1): 4,
        (OutcomeKind.DEAD_LETTERED, "server_error", 1): 1,
        (OutcomeKind.POSTPONED, retry.CIRCUIT_OPEN, 0): 1,
    }


def test_who_keeps_a_micro_batch_waiting_by_itself_is_handed_over_after_the_lane_deadline():
    [(took, endings)] = in_passing_time(
        lambda clock: SlowSender(clock, {"slow": 2.0}),
        deliveries(100, "slow") + deliveries(50, "fine"),
        max_in_flight_per_endpoint=1,
        lane_deadline_s=3.0,
    )
    # Attempts begin at 0 s and 2 s. At 3 s the deadline has passed; what is under way is waited for.
    assert (took, endings) == (4.0, {
        ("fine", OutcomeKind.DELIVERED, None, 1): 50,
        ("slow", OutcomeKind.DELIVERED, None, 1): 2,
        ("slow", OutcomeKind.POSTPONED, retry.LANE_DEADLINE, 0): 98,
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
            await dispatcher.down_to(unsettled)
        return clock.now - began, collections.Counter(outcome.reason for outcome in dispatcher.ended())

    assert asyncio.run(main()) == (3.0, {None: 1, retry.LANE_DEADLINE: 18})


def test_what_has_not_waited_for_long_is_no_straggler_while_more_may_come():
    clock = fakes.PassingClock()

    async def main():
        clock.install()
        dispatcher = dispatcher_of(SlowSender(clock, {"slow": 2.0}), clock, max_in_flight_per_endpoint=1)
        for number in (2, 1, 1):  # two wait at first; then one is added whenever one has ended
            for delivery in deliveries(number, "slow"):
                dispatcher.submit(delivery)
            await dispatcher.down_to(1)
        return {outcome.kind for outcome in dispatcher.ended()}

    assert asyncio.run(main()) == {OutcomeKind.DELIVERED}


def test_nobody_is_handed_over_for_waiting_for_a_slot_that_others_have():
    endpoints = [f"ep{n}" for n in range(10)]
    [(took, endings)] = in_passing_time(
        lambda clock: SlowSender(clock, dict.fromkeys(endpoints, 1.0)),
        [delivery for endpoint in endpoints for delivery in deliveries(1, endpoint)],
        max_in_flight=1,
        lane_deadline_s=3.0,
    )
    assert (took, {kind for _, kind, _, _ in endings}) == (10.0, {OutcomeKind.DELIVERED})


def test_a_retry_that_would_come_after_the_stragglers_were_handed_over_is_handed_over_too():
    class Sender(fakes.FakeSender):
        async def attempt(self, delivery, number):
            return (await super().attempt(delivery, number))._replace(retry_after_s=2.0)

    [(_, endings)] = in_passing_time(
        lambda clock: Sender(lambda *_: retry.THROTTLED, clock), deliveries(1), lane_deadline_s=1.0
    )
    assert endings == {("ep1", OutcomeKind.POSTPONED, retry.LANE_DEADLINE, 1): 1}


def test_what_is_postponed_without_need_of_a_schedule_uses_up_none_and_may_go_at_once():
    outcome = fakes.handover(fakes.Clock(5.0)).unattempted(builders.delivery(), retry.LANE_DEADLINE)
    assert (outcome.kind, outcome.again) == (OutcomeKind.POSTPONED, Again(5000, 0))


def test_it_is_told_how_many_endpoints_were_asked_and_to_how_many_there_was_no_way():
    clock = fakes.Clock()
    fates = {"down": "connect", "unknown": "dns", "fine": None, "unwilling": retry.REFUSED, "unset": retry.CONFIGURATION}

    class Sender(fakes.FakeSender):
        async def attempt(self, delivery, number):
            attempt = await super().attempt(delivery, number)
            if delivery.endpoint.endpoint_id == "flaps" and number == 1:
                return attempt._replace(error_class="connect")
            return attempt._replace(status=403 if attempt.error_class == retry.REFUSED else None)

    async def main():
        dispatcher = dispatcher_of(Sender(lambda delivery, _: fates.get(delivery.endpoint.endpoint_id), clock), clock)
        for name in [*fates, "flaps"]:
            dispatcher.submit(*deliveries(1, name))
        await dispatcher.finish()
        return dispatcher.reached()

    assert asyncio.run(main()) == dispatch.Reached(asked=5, unreachable=2)


def test_our_own_exhaustion_is_never_counted_against_the_endpoint():
    """Thirty attempts of a second each are far beyond the lane's deadline, and the endpoint was not asked once."""
    clock = fakes.Clock()
    sender = fakes.FakeSender(lambda *_: errors.LocalFailure.error_class, clock, seconds_per_attempt=1.0)
    outcomes = run(sender, deliveries(10), clock, max_in_flight_per_endpoint=1, lane_deadline_s=3.0)
    assert collections.Counter((o.reason, len(o.attempts)) for o in outcomes) == {("local", 3): 10}


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


def paced(per_second, count, *, others=0, workers=1, lane_deadline_s=1e9):
    """Return (start of each attempt, in seconds, by endpoint; outcomes)."""
    clock = fakes.PassingClock(now=0.0)
    starts = collections.defaultdict(list)

    class Sender(fakes.FakeSender):
        async def attempt(self, delivery, number):
            starts[delivery.endpoint.endpoint_id].append(clock.now)
            return await super().attempt(delivery, number)

    async def main():
        clock.install()
        dispatcher = dispatcher_of(Sender(lambda *_: None, clock), clock, workers=workers, lane_deadline_s=lane_deadline_s)
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


def test_what_would_wait_too_long_for_its_pace_is_handed_over_with_that_reason():
    _, outcomes = paced(1, 10, lane_deadline_s=3.5)
    # One at 0, 1, 2 and 3 s; the others would begin after more than three and a half.
    assert collections.Counter((outcome.kind, outcome.reason) for outcome in outcomes) == {
        (OutcomeKind.DELIVERED, None): 4,
        (OutcomeKind.POSTPONED, retry.RATE_LIMITED): 6,
    }


def test_a_pace_goes_on_over_micro_batches():
    paces, clock = {}, fakes.PassingClock(now=0.0)

    async def main():
        clock.install()
        for _ in range(2):
            dispatcher = dispatcher_of(fakes.FakeSender(lambda *_: None, clock), clock, paces=paces, lane_deadline_s=0.5)
            dispatcher.submit(*deliveries(1, max_per_second=1))
            await dispatcher.finish()
            yield [outcome.reason for outcome in dispatcher.ended()]

    async def told():
        return [reasons async for reasons in main()]

    assert asyncio.run(told()) == [[None], [retry.RATE_LIMITED]]


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
