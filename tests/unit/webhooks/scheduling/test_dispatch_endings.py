"""Every delivery ends in one outcome: delivered, handed over to the retry lane, or a dead letter."""

import asyncio
import collections

import pytest

from delivery import errors
from delivery.model import Again, OutcomeKind, Retrying
from delivery.webhooks.policy import retry_decision
from tests.support import builders, fakes
from tests.support.dispatching import deliveries, dispatcher_of, run


def test_each_delivery_ends_in_exactly_one_outcome():
    clock = fakes.Clock()
    fates = [None, retry_decision.SERVER_ERROR, retry_decision.REFUSED, "timeout"]
    sender = fakes.FakeSender(lambda delivery, _: fates[hash(delivery.webhook_id) % 4], clock)
    submitted = [d for n in range(20) for d in deliveries(25, f"ep{n}")]
    outcomes = run(sender, submitted, clock, max_in_flight=16)
    assert collections.Counter(o.delivery.webhook_id for o in outcomes) == collections.Counter(d.webhook_id for d in submitted)


def test_nothing_to_deliver_ends_at_once():
    clock = fakes.Clock()
    assert run(fakes.FakeSender(lambda *_: None, clock), [], clock) == []


def test_a_failure_that_often_passes_is_retried_and_every_attempt_is_told():
    clock = fakes.Clock()
    sender = fakes.FakeSender(lambda _, number: retry_decision.SERVER_ERROR if number < 3 else None, clock)
    [outcome] = run(sender, deliveries(1), clock)
    assert outcome.kind is OutcomeKind.DELIVERED
    assert [(a.number, a.error_class) for a in outcome.attempts] == [(1, "server_error"), (2, "server_error"), (3, None)]


@pytest.mark.parametrize(
    ("error_class", "attempts"), [(retry_decision.SERVER_ERROR, 3), (retry_decision.REFUSED, 1), ("timeout", 1)]
)
def test_when_the_lane_has_no_attempt_left_the_delivery_is_dead_lettered_with_the_last_error(error_class, attempts):
    clock = fakes.Clock()
    [outcome] = run(fakes.FakeSender(lambda *_: error_class, clock), deliveries(1), clock)
    assert (outcome.kind, outcome.reason, len(outcome.attempts)) == (OutcomeKind.DEAD_LETTERED, error_class, attempts)


def test_what_fails_is_postponed_by_its_endpoints_schedule():
    clock = fakes.Clock()
    submitted = deliveries(1, retrying=Retrying(schedule_s=(7, 60)))
    [outcome] = run(fakes.FakeSender(lambda *_: retry_decision.SERVER_ERROR, clock), submitted, clock)
    assert (outcome.kind, outcome.reason, len(outcome.attempts)) == (OutcomeKind.POSTPONED, "server_error", 3)
    assert outcome.again == Again(round((clock.now + 7) * 1000), 1)


def test_a_fault_of_our_own_postpones_and_uses_up_no_wait():
    clock = fakes.Clock()
    [outcome] = run(fakes.FakeSender(lambda *_: "local", clock), deliveries(1, retrying=Retrying()), clock)
    assert (outcome.kind, outcome.reason, outcome.again.retries) == (OutcomeKind.POSTPONED, "local", 0)


@pytest.mark.parametrize(("schedule_s", "kind"), [((5,), OutcomeKind.POSTPONED), ((), OutcomeKind.DEAD_LETTERED)])
def test_an_endpoint_that_says_that_it_is_gone_is_told_of_once(schedule_s, kind):
    clock = fakes.Clock()
    sender = fakes.FakeSender(
        lambda delivery, _: retry_decision.GONE if delivery.endpoint.endpoint_id == "gone" else None, clock
    )

    async def main():
        dispatcher = dispatcher_of(sender, clock)
        for delivery in deliveries(2, "gone", retrying=Retrying(schedule_s=schedule_s)) + deliveries(2, "here"):
            dispatcher.submit(delivery)
        await dispatcher.finish()
        kinds = {o.kind for o in dispatcher.drain() if o.delivery.endpoint.endpoint_id == "gone"}
        return kinds, dispatcher.report().gone

    assert asyncio.run(main()) == ({kind}, {"gone"})


def test_what_is_postponed_without_need_of_a_schedule_uses_up_none_and_may_go_at_once():
    outcome = fakes.deferrals(fakes.Clock(5.0)).unattempted(builders.delivery(), retry_decision.LANE_DEADLINE)
    assert (outcome.kind, outcome.again) == (OutcomeKind.POSTPONED, Again(5000, 0))


def test_it_is_told_how_many_endpoints_were_asked_and_to_how_many_there_was_no_way():
    clock = fakes.Clock()
    fates = {
        "down": "connect",
        "unknown": "dns",
        "fine": None,
        "unwilling": retry_decision.REFUSED,
        "unset": retry_decision.CONFIGURATION,
    }

    class Sender(fakes.FakeSender):
        async def attempt(self, delivery, number):
            attempt = await super().attempt(delivery, number)
            if delivery.endpoint.endpoint_id == "flaps" and number == 1:
                return attempt._replace(error_class="connect")
            return attempt._replace(status=403 if attempt.error_class == retry_decision.REFUSED else None)

    async def main():
        dispatcher = dispatcher_of(Sender(lambda delivery, _: fates.get(delivery.endpoint.endpoint_id), clock), clock)
        for name in [*fates, "flaps"]:
            dispatcher.submit(*deliveries(1, name, url=f"https://{name}.example/"))
        await dispatcher.finish()
        return dispatcher.report().reachability

    seen = asyncio.run(main())
    assert (seen.asked, seen.unreachable) == (5, 2)


def test_our_own_exhaustion_is_never_counted_against_the_endpoint():
    """Thirty attempts of a second each are far beyond the lane's deadline, and the endpoint was not asked once."""
    clock = fakes.Clock()
    sender = fakes.FakeSender(lambda *_: errors.LocalFailure.error_class, clock, seconds_per_attempt=1.0)
    outcomes = run(sender, deliveries(10), clock, max_in_flight_per_endpoint=1, queue_timeout_s=3.0)
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

    sender = Sender(lambda _, number: retry_decision.THROTTLED if number == 1 else None, clock)
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


def test_who_has_finished_leaves_no_task_behind_in_the_workers_event_loop():
    clock = fakes.Clock()

    async def main():
        dispatcher = dispatcher_of(fakes.FakeSender(lambda *_: None, clock), clock)
        for delivery in deliveries(20):
            dispatcher.submit(delivery)
        await dispatcher.finish()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait(others, timeout=5)
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(main()) == set()
