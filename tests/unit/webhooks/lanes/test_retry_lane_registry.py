"""A lease is delivered by the registry that its worker has at each attempt; a registry that is behind ends nothing."""

import asyncio
import dataclasses

import pytest

from delivery.model import OutcomeKind
from delivery.registry_model import EndpointStatus, Retrying, SubscriptionStatus
from delivery.webhooks.lanes import retry_lane
from delivery.webhooks.policy import retry_reasons
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.routing import lookup_registry, registries
from delivery.webhooks.routing.registry_snapshot import SnapshotChanges
from delivery.webhooks.scheduling import host_limits, limits
from tests.support import builders, fakes
from tests.support.leases import NOW_MS, lease, registry, waiting
from tests.support.retry_lanes import Sender, lane_of, together


def paced(**fields):
    """One attempt each five seconds."""
    return builders.endpoint(retrying=Retrying(), max_per_second=0.2, **fields)


def deliver_paced(change):
    """Deliver a lease of three entries to a paced endpoint. `change(lane, registry)` is called after the first attempt.

    Return the number of attempts, and what is requeued.
    """
    clock, sender = fakes.PassingClock(NOW_MS / 1000), Sender()

    async def main():
        clock.install()
        lane = lane_of(sender, clock)
        known = registries.WholeRegistry("base", registry(max_per_second=0.2))
        first = await lane.start([retry_messages.encoded(lease(waiting(), waiting(), waiting()))], known, 10)
        await asyncio.sleep(1)
        change(lane, known)
        return together(first, await lane.finish_task(60))

    [report] = asyncio.run(main()).reports
    return len(sender.sent), [(back.place, back.reason, back.attempts) for back in report.requeued]


@pytest.mark.parametrize(
    "row",
    [paced(status=EndpointStatus.PAUSED), paced(url="https://moved.example.com/"), None],
    ids=["paused", "moved", "deleted"],
)
@pytest.mark.parametrize("has_new_snapshot", [False, True])
def test_no_attempt_of_a_lease_begins_after_its_endpoint_was_paused(row, has_new_snapshot):
    """Regression: for up to 30 s the other entries of the lease went to the old URL, with the old secret."""

    def change(lane, known):
        if has_new_snapshot:  # a task of another lane brought it
            lane.follow(registries.WholeRegistry("new", builders.snapshot(*([row] if row else []), revision=2)))
        else:
            known.advance(SnapshotChanges(since=1, revision=2, endpoints={"ep1": row}))

    assert deliver_paced(change) == (1, [(1, "server_error", ()), (2, "server_error", ())])


def test_a_lease_in_the_line_of_a_host_ends_when_its_endpoint_moves():
    """Regression: its entries waited up to 30 s for the host that the customer had left."""
    clock, sender = fakes.PassingClock(NOW_MS / 1000), Sender()

    async def main():
        clock.install()
        chosen = limits.Limits(max_per_host=1)
        hosts = host_limits.Hosts(chosen, clock)
        lane = retry_lane.RetryLane(sender, chosen, paces={}, known_hosts=hosts, clock=clock, now_s=clock)
        hosts.host_of("https://example.com/").enter()
        known = registries.WholeRegistry("base", registry(url="https://example.com/"))
        first = await lane.start([retry_messages.encoded(lease(waiting(), waiting()))], known, 0.1)
        moved = builders.snapshot(builders.endpoint(url="https://moved.example.com/"), builders.subscription(), revision=2)
        await asyncio.sleep(1)  # the lease stands in the line now
        began = clock()
        lane.follow(registries.WholeRegistry("new", moved))
        ended = together(first, await lane.finish_task(60))
        return ended, clock() - began

    results, waited_s = asyncio.run(main())
    [report] = results.reports
    assert ([back.place for back in report.requeued], sender.sent, waited_s < 1) == ([0, 1], [], True)


def test_a_lease_follows_the_subscriptions_of_a_new_snapshot():
    paused = builders.subscription(status=SubscriptionStatus.PAUSED)

    def change(lane, _):
        lane.follow(registries.WholeRegistry("new", dataclasses.replace(registry(paused, max_per_second=0.2), revision=2)))

    assert deliver_paced(change) == (1, [])


@pytest.mark.parametrize("has_new_snapshot", [False, True])
def test_no_attempt_of_a_lease_begins_after_its_tenant_was_deleted(has_new_snapshot):
    """Regression: for up to 30 s the other entries of the lease were sent."""

    def change(lane, known):
        if has_new_snapshot:
            newer = dataclasses.replace(registry(max_per_second=0.2), tenants={}, revision=2)
            lane.follow(registries.WholeRegistry("new", newer))
        else:
            known.advance(SnapshotChanges(since=1, revision=2, tenants={"t1": None}))

    assert deliver_paced(change) == (1, [])


def test_a_lease_ignores_a_registry_older_than_its_own():
    """Spark runs a task again with the registry of its first run. Rows that are newer are not deleted."""

    def change(lane, _):
        lane.follow(registries.WholeRegistry("old", builders.snapshot(revision=0)))

    assert deliver_paced(change) == (3, [])


class Cached(registries.WholeRegistry):
    """A registry that answers from a cache without subscriptions, unless it is asked to read again."""

    async def destination(self, endpoint_id, tenants, *, read_again=False):
        known = await super().destination(endpoint_id, tenants)
        return known if read_again else known._replace(subscriptions={})


def test_an_entry_given_up_does_not_end_by_a_cached_answer():
    """Regression: its subscription was newer than the answer. So it was skipped as deleted, and got no dead letter."""

    async def main():
        lane = lane_of(Sender())
        given_up = lease(waiting(), number=0, given_up=retry_reasons.EXPIRED)
        first = await lane.start([retry_messages.encoded(given_up)], Cached("base", registry()), 10)
        return together(first, await lane.finish_task(10))

    [outcome] = asyncio.run(main()).results.outcomes
    assert outcome.kind is OutcomeKind.DEAD_LETTERED


class Postgres:
    """A Reader of a registry in memory. All tenants but `gone` are registered."""

    losses = 0

    def __init__(self, gone=()):
        self._gone = gone

    def endpoint(self, _):
        return registry()

    def tenants(self, asked):
        return builders.snapshot(tenants=[tenant for tenant in asked if tenant not in self._gone])


@pytest.mark.parametrize("max_answers", [1, 5, 100])
def test_a_lease_with_more_tenants_than_cached_answers_is_attempted(max_answers):
    """Regression: with look-ups it was leased again and again, without a request, until its entries expired."""
    entries = [waiting(builders.event(event_id=f"e{number}", tenant_id=f"t{number}")) for number in range(20)]

    async def main():
        lane = lane_of(sender := Sender())
        known = lookup_registry.LookupRegistry(Postgres(gone=("t3", "t19")), ttl_s=30, max_answers=max_answers)
        first = await lane.start([retry_messages.encoded(lease(*entries))], known, 10)
        return sender, together(first, await lane.finish_task(10))

    sender, ended = asyncio.run(main())
    assert sender.ids() == [f"e{number}" for number in range(20) if number not in {3, 19}]
    assert [report.requeued for report in ended.reports] == [[]]


class LookedUp(registries.WholeRegistry):
    """A registry with one more change after a look-up than before it."""

    async def destination(self, *asked, **options):
        known = await super().destination(*asked, **options)
        if self.revision == 1:
            self.advance(SnapshotChanges(since=1, revision=2))
        return known


def test_a_change_during_a_look_up_is_not_in_the_destination():
    unknown = waiting(through=("s-new",), revision=2, since_ms=NOW_MS)

    async def main():
        lane = lane_of(Sender())
        known = LookedUp("base", registry())
        first = await lane.start([retry_messages.encoded(lease(unknown))], known, 10)
        assert known.revision == 2
        return together(first, await lane.finish_task(10))

    [report] = asyncio.run(main()).reports
    assert [back.reason for back in report.requeued] == [retry_reasons.REGISTRY_BEHIND]


class Outdated(registries.WholeRegistry):
    """A registry whose cached answer lacks a subscription that a new look-up finds."""

    async def destination(self, *asked, read_again=False):
        known = await super().destination(*asked, read_again=read_again)
        return known if read_again else known._replace(subscriptions={})


def test_rows_that_a_cached_answer_lacks_are_looked_up_again():
    """Regression: after a failover that lost commits, retries of a new subscription were skipped as `subscription_deleted`."""

    async def main():
        lane = lane_of(Sender())
        first = await lane.start([retry_messages.encoded(lease(waiting()))], Outdated("base", registry()), 10)
        return together(first, await lane.finish_task(10))

    [report] = asyncio.run(main()).reports
    assert (report.delivered, report.requeued) == (1, [])
