"""A micro-batch with nothing else to do waits for responses within a deadline, and for no quick retry alone."""

import asyncio
import collections

import pytest

from delivery.model import Attempt, OutcomeKind
from delivery.registry_model import Retrying
from delivery.webhooks.policy import error_classes, retry_reasons
from delivery.webhooks.scheduling.response_times import LATE_MARGIN_S, MIN_MARGIN_S
from tests.simulation import virtual
from tests.support import fakes
from tests.support.dispatching import deliveries, dispatcher_of
from tests.support.micro_batches import FINE, NEVER_S, Endpoints, Worker, apart, fine, playing


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


def test_a_known_slow_endpoint_delays_no_micro_batch_and_signals_no_outage():
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


@pytest.mark.parametrize(("slow", "within_s"), [(16, 0.5), (64, 2.0)])
def test_many_slow_endpoints_leave_slots_for_the_other_endpoints(slow, within_s):
    """Regression: slow endpoints held all slots. The last delivery to another began after 5.7 s beside 16, 23 s beside 64."""
    began = {}

    class Sender:
        async def attempt(self, delivery, number):
            endpoint_id = delivery.endpoint.endpoint_id
            began.setdefault(endpoint_id, asyncio.get_running_loop().time())
            await asyncio.sleep(1.9 if endpoint_id.startswith("slow") else 0.05)
            return Attempt(number, virtual.now_ms(), 5.0, 200, None)

    async def main():
        dispatcher = dispatcher_of(Sender(), asyncio.get_running_loop().time)
        for turn in range(50):
            for delivery in apart(*(f"slow{number}" for number in range(slow)), *(f"fine{turn}-{n}" for n in range(4))):
                dispatcher.submit(delivery)
                await dispatcher.wait_for_room()
        await dispatcher.finish()

    virtual.run(main())
    assert max(at for endpoint_id, at in began.items() if endpoint_id.startswith("fine")) <= within_s


def test_a_new_endpoint_that_hangs_delays_by_the_first_response_deadline():
    async def play(worker):
        await worker.micro_batch(*fine())
        took_s, kinds = await worker.micro_batch(*fine(), *deliveries(1, "hangs"))
        return took_s, kinds

    took_s, kinds = playing(play, {"hangs": NEVER_S} | {f"fine{number}": 0.01 for number in range(20)})
    assert took_s == pytest.approx(MIN_MARGIN_S, abs=0.02)
    assert kinds["hangs", "postponed", retry_reasons.UNDER_WAY] == 1


def test_no_micro_batch_waits_for_a_quick_retry_alone():
    async def play(worker):
        failing = deliveries(2, "fails", retrying=Retrying())
        took = await worker.micro_batch(*fine(), *failing)
        return took, [(len(o.attempts), o.next_attempt.retries) for o in worker.ended if o.delivery in failing], worker

    took, deferred, worker = playing(play, {}, {"fails": error_classes.SERVER_ERROR})
    assert took == (0.0, FINE | {("fails", "postponed", "server_error"): 2})
    assert deferred == [(1, 0)] * 2
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


def test_the_task_waits_for_the_usual_response_time():
    async def play(worker):
        for _ in range(20):
            await worker.micro_batch(*deliveries(1, "was-quick"))
        worker.sender.seconds["was-quick"] = NEVER_S
        return await worker.micro_batch(*fine(), *deliveries(1, "was-quick"))

    took, _ = playing(play, {"was-quick": 0.01})
    assert took == pytest.approx(0.01 + MIN_MARGIN_S)


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


def test_workers_hardly_wait_for_an_endpoint_that_one_of_them_reported():
    """Regression: each of four workers made a micro-batch wait, so the others' 99th percentile rose by half."""

    async def play(first):
        second = Worker(first.sender, first.clock)
        for worker in (first, second):
            await worker.micro_batch(*fine(), *deliveries(1, "was-quick"))
        first.sender.seconds["was-quick"] = NEVER_S
        waited_s, _ = await first.micro_batch(*fine(), *deliveries(1, "was-quick"))
        late = dict.fromkeys(first.report.late, 1.0)
        hardly_s, kinds = await second.micro_batch(*fine(), *deliveries(1, "was-quick"), late=late)
        return waited_s, set(late), hardly_s, kinds["was-quick", "postponed", retry_reasons.UNDER_WAY], second.report.late

    waited_s, late, hardly_s, moved, repeated = playing(play, {"was-quick": 0.01})
    assert (waited_s, hardly_s) == (pytest.approx(0.01 + MIN_MARGIN_S), pytest.approx(0.01 + LATE_MARGIN_S))
    assert (late, moved, repeated) == ({"was-quick"}, 1, frozenset())


@pytest.mark.parametrize("count", [0, 9, 10, 12])
def test_reports_of_late_endpoints_hide_no_outage(count):
    """Regression: with 10 of 12 endpoints reported as late, all attempts moved to the background, and nothing was reported."""

    async def play(worker):
        names = [f"ep{number}" for number in range(12)]
        took_s, kinds = await worker.micro_batch(*apart(*names), late=dict.fromkeys(names[:count], 1.0))
        return took_s, {kind for _, kind, _ in kinds}, worker.report.late

    seconds, errors = ({f"ep{number}": value for number in range(12)} for value in (2.0, "timeout"))
    assert playing(play, seconds, errors) == (2.0, {"dead_lettered"}, frozenset())


def test_a_late_endpoint_moves_as_soon_as_enough_others_have_responded():
    async def play(worker):
        others = [f"fine{number}" for number in range(5)]
        return await worker.micro_batch(*apart(*others, "late"), late={"late": 1.0})

    took_s, kinds = playing(play, {"late": NEVER_S} | {f"fine{number}": 0.05 for number in range(5)})
    assert took_s == pytest.approx(0.06)
    assert kinds["late", "postponed", retry_reasons.UNDER_WAY] == 1


def test_a_healthy_endpoint_far_away_gets_its_usual_time_after_a_report():
    """Regression: with a deadline of 0.02 s all its deliveries went to the retry lane."""

    async def play(worker):
        for _ in range(5):
            await worker.micro_batch(*deliveries(1, "far"))
        return (await worker.micro_batch(*deliveries(40, "far"), late={"far": 1.0}))[1]

    assert playing(play, {"far": 0.1}, max_in_flight_per_endpoint=16) == {("far", "delivered", None): 40}


def test_a_response_of_the_usual_time_ends_the_short_wait():
    async def play(worker):
        await worker.micro_batch(*deliveries(1, "was-late"))
        found = []
        for seconds, reported_at in [(0.01, 1.0), (0.1, 1.0), (0.1, 2.0)]:
            worker.sender.seconds["was-late"] = seconds
            _, kinds = await worker.micro_batch(*deliveries(1, "was-late"), late={"was-late": reported_at})
            found += [(reported_at, outcome, reason) for _, outcome, reason in kinds]
        return found

    assert playing(play, {"was-late": 0.01}) == [
        (1.0, "delivered", None),
        (1.0, "delivered", None),
        (2.0, "postponed", retry_reasons.UNDER_WAY),
    ]


def test_a_handshake_of_a_tenth_of_a_second_moves_no_delivery():
    """The first responses after a pause take a handshake longer. A wait of 0.02 s beyond the usual time would move all."""

    async def play(worker):
        kinds = collections.Counter()
        for _ in range(30):
            worker.sender.seconds["rare"] = 0.1
            kinds += (await worker.micro_batch(*fine(), *deliveries(8, "rare")))[1]
            worker.sender.seconds["rare"] = 0.01
            for _ in range(3):
                kinds += (await worker.micro_batch(*fine(), *deliveries(8, "rare")))[1]
            await asyncio.sleep(60)
        return {(kind, reason) for _, kind, reason in kinds}, worker.report.late

    assert playing(play, {}, max_in_flight_per_endpoint=2) == ({("delivered", None)}, frozenset())


def test_one_slower_response_of_a_hundred_moves_no_delivery():
    async def play(worker):
        found = set()
        for turn in range(500):
            worker.sender.seconds |= {f"ep{number}": 0.06 if (turn + 5 * number) % 100 == 0 else 0.01 for number in range(20)}
            _, kinds = await worker.micro_batch(*apart(*(f"ep{number}" for number in range(20))))
            found |= {(kind, reason) for _, kind, reason in kinds}
        return found

    assert playing(play, {}) == {("delivered", None)}
