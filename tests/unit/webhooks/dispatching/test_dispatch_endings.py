"""Every delivery of a dispatcher ends in one outcome: delivered, deferred to the retry lane, or dead-lettered."""

import asyncio
import collections
import math

import pytest

from delivery import errors
from delivery.model import NextAttempt, OutcomeKind
from delivery.registry_model import Retrying
from delivery.webhooks.policy import error_classes, retry_reasons
from tests.support import builders, fakes
from tests.support.dispatching import deliveries, dispatcher_of, run


def test_each_delivery_ends_in_exactly_one_outcome():
    clock = fakes.Clock()
    fates = [None, error_classes.SERVER_ERROR, error_classes.REFUSED, "timeout"]
    sender = fakes.FakeSender(lambda delivery, _: fates[hash(delivery.webhook_id) % 4], clock)
    submitted = [d for n in range(20) for d in deliveries(25, f"ep{n}")]
    outcomes = run(sender, submitted, clock, max_in_flight=16)
    assert collections.Counter(o.delivery.webhook_id for o in outcomes) == collections.Counter(d.webhook_id for d in submitted)


def test_nothing_to_deliver_ends_at_once():
    clock = fakes.Clock()
    assert run(fakes.FakeSender(lambda *_: None, clock), [], clock) == []


def test_a_transient_failure_is_retried_with_all_attempts_kept():
    clock = fakes.Clock()
    sender = fakes.FakeSender(lambda _, number: error_classes.SERVER_ERROR if number < 3 else None, clock)
    [outcome] = run(sender, deliveries(1), clock)
    assert outcome.kind is OutcomeKind.DELIVERED
    assert [(a.number, a.error_class) for a in outcome.attempts] == [(1, "server_error"), (2, "server_error"), (3, None)]


@pytest.mark.parametrize(
    ("error_class", "attempts"), [(error_classes.SERVER_ERROR, 3), (error_classes.REFUSED, 1), ("timeout", 1)]
)
def test_the_last_failed_attempt_leads_to_a_dead_letter(error_class, attempts):
    clock = fakes.Clock()
    [outcome] = run(fakes.FakeSender(lambda *_: error_class, clock), deliveries(1), clock)
    assert (outcome.kind, outcome.reason, len(outcome.attempts)) == (OutcomeKind.DEAD_LETTERED, error_class, attempts)


def test_a_failed_delivery_is_deferred_by_its_schedule():
    clock = fakes.Clock()
    submitted = deliveries(1, retrying=Retrying(schedule_s=(7, 60)))
    sender = fakes.FakeSender(lambda *_: error_classes.SERVER_ERROR, clock)
    [outcome] = run(sender, submitted, clock, response_deadline_s=math.inf)
    assert (outcome.kind, outcome.reason, len(outcome.attempts)) == (OutcomeKind.POSTPONED, "server_error", 3)
    assert outcome.next_attempt == NextAttempt(round((clock.now + 7) * 1000), 1)


def test_our_own_fault_defers_and_uses_up_no_wait():
    clock = fakes.Clock()
    [outcome] = run(fakes.FakeSender(lambda *_: "local", clock), deliveries(1, retrying=Retrying()), clock)
    assert (outcome.kind, outcome.reason, outcome.next_attempt.retries) == (OutcomeKind.POSTPONED, "local", 0)


@pytest.mark.parametrize(("schedule_s", "kind"), [((5,), OutcomeKind.POSTPONED), ((), OutcomeKind.DEAD_LETTERED)])
def test_an_endpoint_that_is_gone_is_reported(schedule_s, kind):
    clock = fakes.Clock()
    sender = fakes.FakeSender(
        lambda delivery, _: error_classes.GONE if delivery.endpoint.endpoint_id == "gone" else None, clock
    )

    async def main():
        dispatcher = dispatcher_of(sender, clock)
        for delivery in deliveries(2, "gone", retrying=Retrying(schedule_s=schedule_s)) + deliveries(2, "here"):
            dispatcher.submit(delivery)
        await dispatcher.finish()
        kinds = {o.kind for o in dispatcher.drain() if o.delivery.endpoint.endpoint_id == "gone"}
        return kinds, {endpoint.endpoint_id for endpoint in dispatcher.report().gone}

    assert asyncio.run(main()) == ({kind}, {"gone"})


def test_an_endpoint_is_gone_by_the_url_that_said_so():
    """Regression: with look-ups, deliveries of one task may have the earlier and the new URL. The new one was reported."""
    clock = fakes.Clock()
    sender = fakes.FakeSender(
        lambda delivery, _: error_classes.GONE if delivery.endpoint.url.endswith("/before") else None, clock
    )

    async def main():
        dispatcher = dispatcher_of(sender, clock)
        for name in ("after", "before"):
            for delivery in deliveries(1, url=f"https://example.com/{name}"):
                dispatcher.submit(delivery)
        await dispatcher.finish()
        return dispatcher.report().gone

    assert asyncio.run(main()) == {builders.endpoint(url="https://example.com/before").as_attempted()}


def test_a_deferral_without_an_attempt_uses_up_no_wait():
    outcome = fakes.deferrals(fakes.Clock(5.0)).deferred_now(builders.delivery(), retry_reasons.LANE_DEADLINE)
    assert (outcome.kind, outcome.next_attempt) == (OutcomeKind.POSTPONED, NextAttempt(5000, 0))


def test_results_count_unreachable_destinations():
    clock = fakes.Clock()
    fates = {
        "down": "connect",
        "unknown": "dns",
        "fine": None,
        "unwilling": error_classes.REFUSED,
        "unset": retry_reasons.CONFIGURATION,
    }

    class Sender(fakes.FakeSender):
        async def attempt(self, delivery, number):
            attempt = await super().attempt(delivery, number)
            if delivery.endpoint.endpoint_id == "flaps" and number == 1:
                return attempt._replace(error_class="connect")
            return attempt._replace(status=403 if attempt.error_class == error_classes.REFUSED else None)

    async def main():
        dispatcher = dispatcher_of(Sender(lambda delivery, _: fates.get(delivery.endpoint.endpoint_id), clock), clock)
        for name in [*fates, "flaps"]:
            dispatcher.submit(*deliveries(1, name, url=f"https://{name}.example/"))
        await dispatcher.finish()
        return dispatcher.report().reachability

    seen = asyncio.run(main())
    assert (seen.asked, seen.unreachable) == (5, 2)


def test_our_own_exhaustion_never_counts_against_endpoints():
    """Thirty attempts of a second each exceed the queue timeout by far, although the endpoint was never reached."""
    clock = fakes.Clock()
    sender = fakes.FakeSender(lambda *_: errors.LocalFailure.error_class, clock, seconds_per_attempt=1.0)
    outcomes = run(sender, deliveries(10), clock, max_in_flight_per_endpoint=1, queue_timeout_s=3.0)
    assert collections.Counter((o.reason, len(o.attempts)) for o in outcomes) == {("local", 3): 10}


def test_the_lane_waits_for_a_short_retry_after_only():
    clock = fakes.Clock()
    asked_s = {"soon": 0.02, "late": 60.0}
    began = {}

    class Sender(fakes.FakeSender):
        async def attempt(self, delivery, number):
            endpoint_id = delivery.endpoint.endpoint_id
            began.setdefault(endpoint_id, []).append(asyncio.get_running_loop().time())
            attempt = await super().attempt(delivery, number)
            return attempt._replace(retry_after_s=asked_s[endpoint_id])

    sender = Sender(lambda _, number: error_classes.THROTTLED if number == 1 else None, clock)
    outcomes = run(sender, deliveries(1, "soon") + deliveries(1, "late"), clock)
    assert {o.delivery.endpoint.endpoint_id: (o.kind, o.reason) for o in outcomes} == {
        "soon": (OutcomeKind.DELIVERED, None),
        "late": (OutcomeKind.DEAD_LETTERED, "throttled"),
    }
    first, second = began["soon"]
    assert second - first >= asked_s["soon"]


def test_an_error_of_the_sender_fails_the_task():
    clock = fakes.Clock()

    def broken(*_):
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        run(fakes.FakeSender(broken, clock), deliveries(3), clock)


def test_a_finished_dispatcher_leaves_no_asyncio_task():
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
