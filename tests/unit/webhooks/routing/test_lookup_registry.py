"""Answers of Postgres are cached until they expire. Equal rows are shared. The event loop runs during a query."""

import asyncio
import pickle
import threading
from dataclasses import replace

import pytest

from delivery import errors
from delivery.config import settings, settings_loader
from delivery.registry_model import DeliveryMode, Revision
from delivery.webhooks.events import parsing
from delivery.webhooks.http import guard
from delivery.webhooks.routing import intake, lookup_registry
from subscriptions_db.following import lookup_source as stage
from tests.support import builders

TTL_S = 30.0
KEY = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="


class Reader:
    """A Reader that answers from a snapshot in memory."""

    losses = 0

    def __init__(self, snapshot):
        self.snapshot = snapshot
        self.asked = []

    def candidates(self, event_type, tenant_id, _=None):
        self.asked.append((event_type, tenant_id))
        rows = {
            key: row
            for key, row in self.snapshot.subscriptions.items()
            if (row.scope.everything if tenant_id is None else tenant_id in row.scope.tenants)
        }
        endpoints = {row.endpoint_id: replace(self.snapshot.endpoints[row.endpoint_id]) for row in rows.values()}
        return replace(self.snapshot, subscriptions=rows, endpoints=endpoints)

    def endpoint(self, _):
        return self.snapshot

    def tenants(self, _):
        return self.snapshot


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def reader():
    return Reader(builders.snapshot(builders.endpoint(), builders.subscription(scope=builders.scope("t1")), revision=5))


@pytest.fixture
def registry(reader, clock):
    return lookup_registry.LookupRegistry(reader, ttl_s=TTL_S, max_answers=10, clock=clock)


def matches(registry, **fields):
    event = builders.event(**fields)

    async def ask():
        return (await registry.router_for(event)).matches(event)

    return asyncio.run(ask())


def test_the_first_event_causes_two_queries_the_next_none(registry, reader):
    for _ in range(2):
        assert [match.subscription.subscription_id for match in matches(registry)] == ["s1"]
    assert reader.asked == [("order.created", None), ("order.created", "t1")]


def test_subscriptions_to_all_tenants_are_queried_once(registry, reader):
    for number in range(4):
        matches(registry, tenant_id=f"t{number}")
    assert len(reader.asked) == 1 + 4


def test_an_answer_is_kept_for_its_time_and_no_longer(registry, reader, clock):
    matches(registry)
    reader.snapshot = builders.snapshot(revision=6)
    clock.now += TTL_S - 1
    assert matches(registry)
    clock.now += 1
    assert not matches(registry)


def test_the_rows_of_an_endpoint_are_known_until_they_are_too_old(registry, clock):
    """A lease takes the present rows from here before each attempt, and ends where its endpoint has none."""
    assert registry.rows_now("ep1", {"t1"}) is None
    found = asyncio.run(registry.destination("ep1", {"t1", "deleted"}))
    assert found.deleted_tenants == ["deleted"]
    clock.now += TTL_S - 1
    assert registry.rows_now("ep1", {"t1", "deleted"}) == found
    assert registry.rows_now("ep1", {"t1", "never asked"}) == found._replace(deleted_tenants=[])
    clock.now += 1
    assert registry.rows_now("ep1", {"t1"}) is None


def test_a_tenant_without_an_answer_stays_as_its_lease_knows_it(registry, reader, clock):
    asyncio.run(registry.destination("ep1", {"t1", "deleted"}))
    clock.now += TTL_S / 2
    asyncio.run(registry.destination("ep1", {"t1"}, read_again=True))
    clock.now += TTL_S / 2  # the answer about the deleted tenant has expired
    for known in (["deleted"], []):
        assert registry.rows_now("ep1", {"t1", "deleted"}, known).deleted_tenants == known
    reader.snapshot = replace(reader.snapshot, tenants={})
    asyncio.run(registry.destination("ep1", {"t1"}, read_again=True))
    assert registry.rows_now("ep1", {"t1"}, []).deleted_tenants == ["t1"]


def test_no_more_answers_are_kept_than_the_bound(registry, reader):
    for number in range(20):
        matches(registry, tenant_id=f"t{number}")
    matches(registry, tenant_id="t0")
    assert reader.asked.count(("order.created", "t0")) == 2
    assert reader.asked.count(("order.created", None)) == 1  # used by every event, so it is not the one to go


def test_answers_with_the_same_endpoint_share_it_until_it_changes(registry, reader, clock):
    """The sender caches its preparations for an endpoint by the identity of the object."""
    scope = builders.scope("t1", "t2")
    reader.snapshot = builders.snapshot(builders.endpoint(), builders.subscription(scope=scope))
    [first], [second] = matches(registry, tenant_id="t1"), matches(registry, tenant_id="t2")
    assert first.endpoint is second.endpoint
    clock.now += TTL_S
    [again] = matches(registry, tenant_id="t1")
    assert again.endpoint is first.endpoint
    reader.snapshot = builders.snapshot(builders.endpoint(url="https://example.com/new"), builders.subscription(scope=scope))
    clock.now += TTL_S
    [changed] = matches(registry, tenant_id="t1")
    assert changed.endpoint.url == "https://example.com/new"


def test_no_cached_answer_is_older_than_the_revision(registry, reader, clock):
    assert (registry.revision, registry.newest) == (0, 0)
    matches(registry, tenant_id="t1")
    clock.now += 10
    reader.snapshot = replace(reader.snapshot, revision=Revision(6))
    matches(registry, tenant_id="t2")
    assert registry.revision == 5
    clock.now += TTL_S - 1
    registry.confirm(Revision(7))
    assert (registry.revision, registry.newest) == (5, 7)
    clock.now += 1
    assert registry.revision == 6
    clock.now += TTL_S
    assert registry.revision == 7


def destination(registry):
    return asyncio.run(registry.destination("ep1", ["t1"]))


def test_a_revision_that_falls_forgets_all_answers(registry, reader, clock):
    """Regression: after a failover that lost commits, a cached answer without a new subscription claimed to know its revision.

    The events of that subscription in the retry lane were skipped as `subscription_deleted`.
    """
    registry.confirm(Revision(100))  # a task brings it, and the reader has not answered yet
    reader.snapshot = replace(reader.snapshot, subscriptions={}, revision=Revision(99))
    assert (destination(registry).subscriptions, registry.newest) == ({}, 100)
    added = builders.subscription(scope=builders.scope("t1"))
    reader.snapshot = replace(reader.snapshot, subscriptions={added.subscription_id: added}, revision=Revision(91))
    clock.now += 1
    matches(registry, tenant_id="t1")
    assert (registry.revision, registry.newest) == (91, 91)
    assert destination(registry).subscriptions == {"s1": added}


def test_a_receipt_names_no_revision_that_an_answer_lacks(registry, reader, clock):
    """Regression: the revision was read after the second look-up, which may wait for Postgres until the first is too old."""
    asyncio.run(registry.router_for(builders.event(tenant_id="t2")))  # brings the answer for all tenants, at revision 5
    answer = reader.candidates

    def late(*key):
        registry.confirm(Revision(6))
        clock.now += TTL_S
        return answer(*key)

    reader.candidates = late
    taking = intake.Intake(registry, parsing.Layout(), DeliveryMode.DIRECT, lambda event, _: event)
    clock.now += TTL_S - 1
    asyncio.run(taking.accept(builders.record(value=b'{"tenant_id": "t1"}'), []))
    assert [receipt.revision for receipt in taking.receipts()] == [5]


def test_the_event_loop_goes_on_while_a_look_up_waits(registry, reader):
    was_reached = threading.Event()
    answer = reader.candidates

    def slow(*key):
        assert was_reached.wait(10)
        return answer(*key)

    reader.candidates = slow

    async def ask():
        waiting = asyncio.create_task(registry.router_for(builders.event()))
        await asyncio.sleep(0)
        was_reached.set()  # only reached when the look-up does not hold the loop
        await waiting

    asyncio.run(ask())


@pytest.fixture
def source():
    return stage.LookupSource(
        database=settings.DatabaseSettings(url="postgresql://fanout:hunter2@127.0.0.1:1/fanout"),
        keys=settings.KeysSettings(ring={"k1": KEY}),
        guard=guard.Guard(),
        ttl_s=TTL_S,
        max_answers=10,
        revision=Revision(5),
    )


def test_the_source_of_a_task_can_be_pickled(source):
    assert pickle.loads(pickle.dumps(source)) == source


def test_a_worker_keeps_its_answers_between_micro_batches(source):
    first = source.registry(None)
    assert first.revision == 5
    assert replace(source, revision=Revision(6)).registry(first) is first


def test_a_setting_chooses_the_source_of_the_registry():
    assert settings.Settings().snapshot.source == "broadcast"
    assert settings_loader.read({"FANOUT_SNAPSHOT_SOURCE": "lookup"}).snapshot.source == "lookup"
    with pytest.raises(errors.SettingsError, match=r"snapshot\.source"):
        settings_loader.read({"FANOUT_SNAPSHOT_SOURCE": "api"})
