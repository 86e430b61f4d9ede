"""Attempts that the dispatcher has moved to the background: their limits, and the results that are reported later."""

import asyncio

import pytest

from delivery.model import Attempt, NextAttempt, OutcomeKind
from delivery.registry_model import Retrying
from delivery.webhooks.policy import error_classes, retry_reasons
from delivery.webhooks.scheduling import limits
from delivery.webhooks.scheduling.response_times import MIN_MARGIN_S
from tests.support import fakes
from tests.support.dispatching import deliveries, new_memory
from tests.support.micro_batches import NEVER_S, Endpoints, Worker, fine, playing


def test_only_an_endpoint_without_a_response_is_unresponsive():
    async def play(worker):
        reported = []
        for _ in range(2):
            await worker.micro_batch(*fine(), *deliveries(3, "hangs"), *deliveries(2, "slow"))
            reported.append(worker.report.unresponsive)
        return reported

    assert playing(play, {"hangs": NEVER_S, "slow": 0.3}, max_in_flight_per_endpoint=1) == [{"hangs"}, frozenset()]


@pytest.mark.parametrize(("pause_s", "reported"), [(0.4, []), (2.0, [{"pauses"}])], ids=["shorter", "longer"])
def test_only_an_endpoint_silent_for_the_patience_is_reported_and_once(pause_s, reported):
    """An attempt moves to the background sooner than that. A pause of 0.2 s diverted all events of the endpoint for 30 s."""

    async def play(worker):
        await worker.micro_batch(*deliveries(1, "pauses"))
        worker.sender.seconds["pauses"] = pause_s
        took_s, kinds = await worker.micro_batch(*fine(), *deliveries(1, "pauses"))
        found = [worker.report.unresponsive]
        for _ in range(4):
            await asyncio.sleep(0.2)
            await worker.micro_batch(*fine())
            found.append(worker.report.unresponsive)
        return took_s, kinds["pauses", "postponed", retry_reasons.UNDER_WAY], [named for named in found if named]

    took_s, moved, found = playing(play, {"pauses": 0.01})
    assert took_s == pytest.approx(MIN_MARGIN_S, abs=0.02)
    assert (moved, found) == (1, reported)


def test_an_endpoint_that_hangs_again_without_a_response_is_reported_again():
    """Regression: a reported silence stayed recorded, so a later hang without a response in between was not reported."""
    memory, [delivery] = new_memory(lambda: 0.0), deliveries(1, "hangs")
    queue = memory.queue_of(delivery.endpoint, limits.Limits(), fakes.unreported_background())
    memory.add_without_response(queue, since=10.0, has_waited=True)
    reported = [memory.take_unresponsive(1.0, now) for now in (10.5, 11.0, 12.0)]
    memory.add_without_response(queue, since=50.0, has_waited=True)
    reported += [memory.take_unresponsive(1.0, now) for now in (50.5, 51.0)]
    assert reported == [frozenset(), {"hangs"}, frozenset(), frozenset(), {"hangs"}]


def test_two_queues_of_an_endpoint_share_one_circuit_breaker():
    """Regression: the first failure in the second queue stored a closed breaker in place of the open one."""
    memory, [delivery] = new_memory(lambda: 0.0), deliveries(1, "fails")
    first, second = (memory.queue_of(delivery.endpoint, limits.Limits(), fakes.unreported_background()) for _ in range(2))
    failure = Attempt(number=1, started_at_ms=0, duration_ms=1.0, status=500, error_class=error_classes.SERVER_ERROR)
    clocks = {"breakers": memory.breakers, "clock": lambda: 1.0, "endpoint_time": lambda: 1.0}
    assert [first.observe(delivery.endpoint, failure, 0.0, 0.0, **clocks) for _ in range(5)][-1]
    assert second.observe(delivery.endpoint, failure, 0.0, 0.0, **clocks)


def test_a_known_slow_endpoint_is_not_reported_each_time():
    async def play(worker):
        reported = []
        for _ in range(3):
            await worker.micro_batch(*deliveries(1, "slow"))
            reported.append(worker.report.unresponsive)
            await worker.until_reported(len(reported))
        return reported

    assert playing(play, {"slow": 0.8}) == [{"slow"}, frozenset(), frozenset()]


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


def test_no_counts_remain_after_all_background_attempts():
    async def play(worker):
        await worker.micro_batch(*deliveries(3, "slow"))
        [to] = {outcome.delivery.endpoint.endpoint_id for outcome in worker.ended}
        before = worker.background.in_flight_to(to), worker.background.is_unresponsive(to)
        await worker.until_reported(3)
        return before, (worker.background.in_flight_to(to), worker.background.is_unresponsive(to))

    assert playing(play, {"slow": 1.5}) == ((3, True), (0, False))
