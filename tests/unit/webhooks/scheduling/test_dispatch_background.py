"""The dispatcher moves overdue attempts to the background when nothing else is left to do. Their results are reported later."""

import asyncio
import collections

import pytest

from delivery.model import NextAttempt, OutcomeKind, Retrying
from delivery.webhooks.policy import error_classes, retry_reasons
from delivery.webhooks.scheduling import background_attempts
from delivery.webhooks.scheduling.response_times import MIN_FIRST_RESPONSE_DEADLINE_S, MIN_RESPONSE_DEADLINE_S, FirstResponses
from tests.support import fakes
from tests.support.dispatching import deliveries, dispatcher_of

NEVER_S = 3600.0


class Endpoints(fakes.FakeSender):
    """Endpoints that take the time in `seconds` (default 0) and end as in `errors` (default accepted)."""

    def __init__(self, clock, seconds, errors=()):
        super().__init__(lambda delivery, _: dict(errors).get(delivery.endpoint.endpoint_id), clock)
        self.seconds = dict(seconds)

    async def attempt(self, delivery, number):
        self.under_way = getattr(self, "under_way", 0) + 1
        self.most_under_way = max(getattr(self, "most_under_way", 0), self.under_way)
        if wait_s := self.seconds.get(delivery.endpoint.endpoint_id):
            await asyncio.sleep(wait_s)
        self.under_way -= 1
        attempt = await super().attempt(delivery, number)
        return attempt._replace(status=200 if attempt.error_class is None else None)


class Worker:
    """The state of a worker that outlives a micro-batch."""

    def __init__(self, sender, clock, *, most=256, **bounds):
        self.sender, self.clock, self.bounds = sender, clock, bounds
        self.reported = []
        self._came = asyncio.Event()
        self.late = background_attempts.BackgroundAttempts(2.0, most, self._take)
        self.breakers, self.response_times, self.first_responses = {}, {}, FirstResponses()

    async def micro_batch(self, *submitted):
        """Return the seconds that a micro-batch took, and the number of outcomes by endpoint, kind and reason."""
        began = self.clock.now
        dispatcher = dispatcher_of(
            self.sender,
            self.clock,
            breakers=self.breakers,
            background=self.late,
            response_times=self.response_times,
            first_responses=self.first_responses,
            **self.bounds,
        )
        for delivery in submitted:
            dispatcher.submit(delivery)
        await dispatcher.finish()
        self.ended, self.unresponsive = dispatcher.drain(), dispatcher.report().unresponsive
        kinds = collections.Counter((o.delivery.endpoint.endpoint_id, o.kind.value, o.reason) for o in self.ended)
        return round(self.clock.now - began, 3), kinds

    def _take(self, ended):
        self.reported.append(ended)
        self._came.set()

    async def until_reported(self, count=1):
        while len(self.reported) < count:
            self._came.clear()
            await self._came.wait()
        await asyncio.sleep(0)  # its runner ends


def playing(play, seconds, errors=(), **bounds):
    """Run `play(worker)` in passing time, and return what it returns."""
    clock = fakes.PassingClock()

    async def main():
        clock.install()
        return await play(Worker(Endpoints(clock, seconds, errors), clock, **bounds))

    return asyncio.run(main())


def fine(count=20):
    return [delivery for number in range(count) for delivery in deliveries(1, f"fine{number}")]


FINE = {(f"fine{number}", "delivered", None): 1 for number in range(20)}


def apart(*names):
    """Return a delivery to each of these endpoints. Each endpoint has its own host and customer."""
    urls = {name: f"https://{name}.example/" for name in names}
    return [delivery for name in names for delivery in deliveries(1, name, url=urls[name], customer_id=f"c-{name}")]


def test_a_hanging_endpoint_delays_one_micro_batch_only():
    async def play(worker):
        first = await worker.micro_batch(*fine(), *deliveries(30, "hangs"))
        second = await worker.micro_batch(*fine(), *deliveries(30, "hangs"))
        return first, second, worker.sender.order.count("hangs") + worker.sender.under_way

    first, second, asked = playing(play, {"hangs": NEVER_S}, max_in_flight_per_endpoint=16)
    assert first == (
        0.5,
        FINE | {("hangs", "postponed", retry_reasons.UNDER_WAY): 16, ("hangs", "postponed", retry_reasons.SLOW): 14},
    )
    assert asked == 16
    assert second == (0.0, FINE | {("hangs", "postponed", retry_reasons.SLOW): 30})


def test_only_an_endpoint_without_a_response_is_unresponsive():
    async def play(worker):
        reported = []
        for _ in range(2):
            await worker.micro_batch(*fine(), *deliveries(3, "hangs"), *deliveries(2, "slow"))
            reported.append(worker.unresponsive)
        return reported

    assert playing(play, {"hangs": NEVER_S, "slow": 0.3}, max_in_flight_per_endpoint=1) == [{"hangs"}, frozenset()]


def test_a_known_slow_endpoint_is_not_reported_each_time():
    async def play(worker):
        reported = []
        for _ in range(3):
            await worker.micro_batch(*deliveries(1, "slow"))
            reported.append(worker.unresponsive)
            await worker.until_reported(len(reported))
        return reported

    assert playing(play, {"slow": 0.8}) == [{"slow"}, frozenset(), frozenset()]


def test_a_known_slow_endpoint_delays_no_micro_batch_and_is_no_sign_of_an_outage():
    async def play(worker):
        names, others = [f"slow{number}" for number in range(5)], apart(*(f"fine{number}" for number in range(20)))
        await worker.micro_batch(*others, *apart(*names))
        await worker.until_reported(len(names))
        alone = await worker.micro_batch(*apart(*names))
        await worker.until_reported(2 * len(names))
        return alone, await worker.micro_batch(*others, *apart(*names))

    under_way = {(f"slow{number}", "postponed", retry_reasons.UNDER_WAY): 1 for number in range(5)}
    alone, beside_others = playing(play, {f"slow{number}": 1.5 for number in range(5)})
    assert alone == (0.0, under_way)
    assert beside_others == (0.0, FINE | under_way)


def test_a_new_endpoint_that_hangs_delays_a_micro_batch_by_what_others_took_at_first():
    async def play(worker):
        await worker.micro_batch(*fine())
        took_s, kinds = await worker.micro_batch(*fine(), *deliveries(1, "hangs"))
        return took_s, kinds

    took_s, kinds = playing(play, {"hangs": NEVER_S} | {f"fine{number}": 0.01 for number in range(20)})
    assert took_s == pytest.approx(MIN_FIRST_RESPONSE_DEADLINE_S, abs=0.02)
    assert kinds["hangs", "postponed", retry_reasons.UNDER_WAY] == 1


def test_no_micro_batch_waits_for_a_quick_retry_alone():
    async def play(worker):
        failing = deliveries(2, "fails", retrying=Retrying())
        took = await worker.micro_batch(*fine(), *failing)
        return took, [(len(o.attempts), o.next_attempt.retries) for o in worker.ended if o.delivery in failing], worker

    took, handed_over, worker = playing(play, {}, {"fails": error_classes.SERVER_ERROR})
    assert took == (0.0, FINE | {("fails", "postponed", "server_error"): 2})
    assert handed_over == [(1, 0)] * 2
    again_ms = {o.next_attempt.at_ms for o in worker.ended if o.kind is OutcomeKind.POSTPONED}
    assert all(0 < at_ms - round(worker.clock.now * 1000) <= 2 for at_ms in again_ms)


def test_a_quick_retry_is_made_in_the_lane_while_the_micro_batch_lasts():
    async def play(worker):
        return await worker.micro_batch(*deliveries(1, "fails", retrying=Retrying()), *deliveries(1, "slow")), worker.ended

    (took_s, _), ended = playing(play, {"slow": 0.1}, {"fails": error_classes.SERVER_ERROR})
    assert took_s == pytest.approx(0.1, abs=0.01)
    assert sorted(len(outcome.attempts) for outcome in ended) == [1, 3]


def test_a_quick_retry_without_a_schedule_or_amid_an_outage_is_made_in_the_lane():
    async def play(worker):
        await worker.micro_batch(*fine(), *deliveries(1, "fails", retrying=Retrying(schedule_s=())))
        without_schedule = [len(outcome.attempts) for outcome in worker.ended if outcome.attempts[-1].error_class]
        names = [f"away{number}" for number in range(5)]
        await worker.micro_batch(*[delivery for name in names for delivery in apart(name)])
        return without_schedule, [len(outcome.attempts) for outcome in worker.ended]

    errors = {"fails": error_classes.SERVER_ERROR} | {f"away{number}": "connect" for number in range(5)}
    assert playing(play, {}, errors) == ([3], [3] * 5)


def test_an_accepted_background_attempt_is_reported_by_name():
    async def play(worker):
        await worker.micro_batch(*deliveries(1, "slow", retrying=Retrying()))
        [placeholder] = worker.ended
        at_ms = round(worker.clock.now * 1000)
        await worker.until_reported()
        return placeholder, at_ms, worker.reported

    placeholder, at_ms, [reported] = playing(play, {"slow": 1.5})
    assert (placeholder.attempts, placeholder.next_attempt) == ((), NextAttempt(at_ms + 32_000, 0))
    assert reported.name == placeholder.background_attempt
    assert (reported.outcome.kind, [attempt.number for attempt in reported.outcome.attempts]) == (OutcomeKind.DELIVERED, [1])
    assert reported.outcome.delivery == placeholder.delivery


@pytest.mark.parametrize(
    ("error_class", "schedule_s", "kind", "wait_s"),
    [
        ("timeout", (7, 60), OutcomeKind.POSTPONED, 7),
        ("timeout", (), OutcomeKind.DEAD_LETTERED, None),
        (
            error_classes.SERVER_ERROR,
            (7, 60),
            OutcomeKind.POSTPONED,
            0.001,
        ),  # a quick retry was left, but no time in the lane
        (error_classes.SERVER_ERROR, (), OutcomeKind.POSTPONED, 0.001),
    ],
)
def test_a_failed_background_attempt_is_reported_by_name(error_class, schedule_s, kind, wait_s):
    async def play(worker):
        await worker.micro_batch(*deliveries(1, "slow", retrying=Retrying(schedule_s=schedule_s)))
        await worker.until_reported()
        return worker.reported[0].outcome, worker.clock.now

    outcome, now = playing(play, {"slow": 1.5}, {"slow": error_class})
    assert (outcome.kind, outcome.reason, len(outcome.attempts)) == (kind, error_class, 1)
    assert (outcome.next_attempt is None) == (wait_s is None)
    if wait_s is not None:
        assert outcome.next_attempt.at_ms == pytest.approx((now + wait_s) * 1000, abs=500)


def test_earlier_attempts_are_reported_with_the_placeholder():
    class Sender(Endpoints):
        async def attempt(self, delivery, number):
            self.seconds = {"slow": 0 if number == 1 else 1.5}
            attempt = await super().attempt(delivery, number)
            return attempt._replace(error_class=error_classes.SERVER_ERROR if number == 1 else None)

    async def main():
        clock = fakes.PassingClock()
        clock.install()
        worker = Worker(Sender(clock, {}), clock)
        await worker.micro_batch(*deliveries(1, "slow"))
        await worker.until_reported()
        return worker.ended[0], worker.reported[0].outcome

    placeholder, outcome = asyncio.run(main())
    assert [attempt.number for attempt in placeholder.attempts] == [1]
    assert ([a.number for a in outcome.earlier], [a.number for a in outcome.attempts]) == ([1], [2])


def test_timeouts_of_background_attempts_open_the_breaker():
    async def play(worker):
        await worker.micro_batch(*fine(), *deliveries(2, "hangs", retrying=Retrying()))
        await worker.until_reported(2)
        return await worker.micro_batch(*deliveries(1, "hangs"))

    took, kinds = playing(play, {"hangs": 2.0}, {"hangs": "timeout"})
    assert (took, kinds) == (0.0, {("hangs", "postponed", retry_reasons.CIRCUIT_OPEN): 1})


def test_a_responding_endpoint_gets_requests_despite_a_slow_one():
    class Sender(Endpoints):
        async def attempt(self, delivery, number):
            self.seconds = {"busy": 2.0 if not self.order and not getattr(self, "begun", 0) else 0.2}
            self.begun = 1
            return await super().attempt(delivery, number)

    async def main():
        clock = fakes.PassingClock()
        clock.install()
        worker = Worker(Sender(clock, {}), clock, max_in_flight_per_endpoint=2)
        first = await worker.micro_batch(*deliveries(6, "busy"))
        return first, await worker.micro_batch(*deliveries(1, "busy"))

    (_, first), (_, second) = asyncio.run(main())
    assert first == {("busy", "delivered", None): 5, ("busy", "postponed", retry_reasons.UNDER_WAY): 1}
    assert second == {("busy", "delivered", None): 1}


def test_background_attempts_count_against_the_endpoint_limit():
    async def play(worker):
        await worker.micro_batch(*deliveries(1, "slow", max_in_flight=1))
        _, kinds = await worker.micro_batch(*deliveries(1, "slow", max_in_flight=1))
        await worker.until_reported()
        _, later = await worker.micro_batch(*deliveries(1, "slow", max_in_flight=1))
        return kinds, later, worker.sender.most_under_way

    kinds, later, most = playing(play, {"slow": 1.0})
    assert kinds == {("slow", "postponed", retry_reasons.SLOW): 1}
    assert later == {("slow", "postponed", retry_reasons.UNDER_WAY): 1}
    assert most == 1


def test_the_task_waits_for_the_usual_response_time():
    async def play(worker):
        for _ in range(20):
            await worker.micro_batch(*deliveries(1, "was-quick"))
        worker.sender.seconds["was-quick"] = NEVER_S
        return await worker.micro_batch(*fine(), *deliveries(1, "was-quick"))

    took, _ = playing(play, {"was-quick": 0.01})
    assert took == MIN_RESPONSE_DEADLINE_S


def test_a_possible_local_outage_makes_the_task_wait():
    async def play(worker):
        return await worker.micro_batch(*apart(*(f"ep{number}" for number in range(12))))

    took, kinds = playing(
        play, {f"ep{number}": 2.0 for number in range(12)}, {f"ep{number}": "timeout" for number in range(12)}
    )
    assert took == 2.0
    assert {(kind, reason) for _, kind, reason in kinds} == {("dead_lettered", "timeout")}


def test_a_task_waits_when_the_background_is_full():
    async def play(worker):
        return await worker.micro_batch(*deliveries(5, "slow"))

    took, kinds = playing(play, {"slow": 1.5}, most=3)
    assert (took, kinds) == (1.5, {("slow", "postponed", retry_reasons.UNDER_WAY): 3, ("slow", "delivered", None): 2})


def test_a_responding_endpoint_with_a_long_queue_gets_time():
    """Half a second without a response was enough to defer thousands of its deliveries."""

    class Sender(Endpoints):
        async def attempt(self, delivery, number):
            self.seconds = {"busy": 1.0 if len(self.order) in {10, 11} else 0.01}
            return await super().attempt(delivery, number)

    async def main():
        clock = fakes.PassingClock()
        clock.install()
        return await Worker(Sender(clock, {}), clock, max_in_flight_per_endpoint=2).micro_batch(*deliveries(50, "busy"))

    _, kinds = asyncio.run(main())
    assert kinds == {("busy", "delivered", None): 50}


def test_an_ended_background_attempt_frees_its_slot():
    """No runner took the slot: waiting deliveries were deferred although the endpoint responded."""

    class Sender(Endpoints):
        async def attempt(self, delivery, number):
            is_throttled = self.begun == 1  # the second one, which is throttled after the first has moved to the background
            self.seconds = {"busy": [1.0, 0.05, 0.01][self.begun]}
            self.begun += 1
            attempt = await super().attempt(delivery, number)
            return (
                attempt._replace(error_class=error_classes.THROTTLED, status=429, retry_after_s=0.5)
                if is_throttled
                else attempt
            )

        begun = 0

    async def main():
        clock = fakes.PassingClock()
        clock.install()
        return await Worker(Sender(clock, {}), clock, max_in_flight_per_endpoint=2).micro_batch(*deliveries(2, "busy"))

    took, kinds = asyncio.run(main())
    assert (took, kinds) == (1.01, {("busy", "postponed", retry_reasons.UNDER_WAY): 1, ("busy", "delivered", None): 1})


def test_an_endpoint_that_responds_meanwhile_is_not_slow():
    """The endpoint counted as slow while one of its responses took long: a count of zero was taken for one."""
    background = fakes.unreported_background()

    async def main():
        runner = asyncio.ensure_future(asyncio.sleep(NEVER_S))
        background.begin(deliveries(1, "busy")[0], runner, is_unresponsive=False)
        deferrals = fakes.deferrals(fakes.Clock(), background=background)
        reason = deferrals.reason_for(deliveries(1, "busy")[0].endpoint)
        background.begin(deliveries(1, "busy")[0], runner, is_unresponsive=True)
        return reason, deferrals.reason_for(deliveries(1, "busy")[0].endpoint)

    assert asyncio.run(main()) == (None, retry_reasons.SLOW)


def test_unresponsive_endpoints_are_judged_together():
    async def play(worker):
        for number, usual_s in enumerate([0.02, 0.05, 0.08]):
            for _ in range(20):
                worker.sender.seconds[f"ep{number}"] = usual_s
                await worker.micro_batch(*apart(f"ep{number}"))
            worker.sender.seconds[f"ep{number}"] = 2.0
        worker.sender.seconds |= {"new1": 2.0, "new2": 2.0}
        return await worker.micro_batch(*apart("ep0", "ep1", "ep2", "new1", "new2"))

    took, kinds = playing(play, {})
    assert (took, {kind for _, kind, _ in kinds}) == (2.0, {"delivered"})


def test_no_counts_remain_after_all_background_attempts():
    async def play(worker):
        await worker.micro_batch(*deliveries(3, "slow"))
        [to] = {outcome.delivery.endpoint.endpoint_id for outcome in worker.ended}
        before = worker.late.in_flight_to(to), worker.late.is_unresponsive(to)
        await worker.until_reported(3)
        return before, (worker.late.in_flight_to(to), worker.late.is_unresponsive(to))

    assert playing(play, {"slow": 1.5}) == ((3, True), (0, False))
