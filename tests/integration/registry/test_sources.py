"""A broadcast snapshot and look-ups give the same result: the same events are due to the same subscriptions."""

import asyncio
import contextlib
import itertools
import random

import psycopg
import pytest

from delivery.config import settings
from delivery.model import SkipReason
from delivery.registry_model import PLATFORM, Retrying, TenantStatus
from delivery.webhooks.http import guard
from delivery.webhooks.routing import lookup_registry, matching, registries
from fanout.local import stack
from subscriptions_db.manifest import manifest
from subscriptions_db.postgres import connect, migrate
from subscriptions_db.registration import apply
from subscriptions_db.secrets import keyring
from subscriptions_db.snapshot import registry_reader
from subscriptions_db.snapshot.lookup import PostgresReader
from tests.support import builders

pytestmark = pytest.mark.integration

GUARD = guard.Guard()
RING = keyring.KeyRing.from_settings(settings.KeysSettings(ring={"k1": stack.new_key()}))
TTL_S = 30.0
SIGNING = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
ENDPOINTS = ("ep1", "ep2", "ep3")
TENANTS = ("1", "2", "3", "4")
DEPARTMENTS = ("100", "200")
TYPES = ("order.created", "order.created.eu", "order", "orders.x", "invoice", "a..b.")
PATTERNS = ("order.created", "order.*", "order.created.*", "order", "*", "invoice", "orders.*", "a.*")
EVENTS = [
    builders.event(event_type=event_type, tenant_id=tenant, sub_tenant_id=department, content={"n": n})
    for event_type, tenant, department, n in itertools.product(TYPES, [*TENANTS, "5"], [*DEPARTMENTS, None], (0, 3))
]


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


class Broadcast:
    """A source that reads the whole registry once, and then the changes."""

    def __init__(self, database):
        self.database = settings.DatabaseSettings(url=database)
        with connect.connect(self.database) as opened:
            self.registry = registries.WholeRegistry("base", registry_reader.read_full(opened, RING, GUARD))

    def catch_up(self):
        with connect.connect(self.database) as opened:
            self.registry.advance(registry_reader.read_changes(opened, RING, GUARD, since=self.registry.revision))

    def close(self):
        pass


class LookUp:
    """A source that looks up what each event needs. After a change, earlier look-ups have expired."""

    def __init__(self, database):
        self.clock = Clock()
        self.reader = PostgresReader(settings.DatabaseSettings(url=database), RING, GUARD)
        self.registry = lookup_registry.LookupRegistry(self.reader, ttl_s=TTL_S, max_answers=10_000, clock=self.clock)

    def catch_up(self):
        self.clock.now += TTL_S

    def close(self):
        self.reader.close()


@pytest.fixture
def connection(database):
    with connect.connect(settings.DatabaseSettings(url=database)) as opened:
        yield opened


@pytest.fixture(params=[Broadcast, LookUp])
def source(request):
    """Return a function that creates the source of this test, which reads the registry at that moment."""
    with contextlib.ExitStack() as opened:

        def make(database):
            made = request.param(database)
            opened.callback(made.close)
            return made

        yield make


def register(connection, subscriptions, **fields):
    document = {
        "tenants": [{"id": tenant, "sub_tenants": list(DEPARTMENTS)} for tenant in TENANTS[:-1]]
        + [{"id": TENANTS[-1], "status": "suspended"}],
        "customers": [{"id": "c1"}],
        "endpoints": [
            {"id": name, "customer": "c1", "url": f"https://example.com/{name}", "signing_secrets": [SIGNING]}
            for name in ENDPOINTS
        ],
        "subscriptions": subscriptions,
    } | fields
    return apply.apply(connection, manifest.check(document, GUARD), RING, prune=True)


def routed(registry, events):
    """Return for each event the status of its tenant, and each due subscription with its endpoint and skip reason."""

    async def ask():
        routers = [(event, await registry.router_for(event)) for event in events]
        return [(router.tenant_status(event.tenant_id), router.matches(event)) for event, router in routers]

    return [
        (
            status,
            {
                match.subscription.subscription_id: (match.endpoint, matching.skip_reason(match.subscription))
                for match in matches
            },
        )
        for status, matches in asyncio.run(ask())
    ]


def due(registry, event):
    [(_, matches)] = routed(registry, [event])
    return set(matches)


def test_type_scope_exclusion_and_filter_decide(connection, database, source):
    register(
        connection,
        [
            {"id": "all", "endpoint": "ep1", "event_type": "*", "everything": True},
            {"id": "all-but", "endpoint": "ep1", "event_type": "order.*", "everything": True, "except_tenants": ["2"]},
            {"id": "some", "endpoint": "ep2", "event_type": "order.created", "tenants": ["1", "2"]},
            {"id": "part", "endpoint": "ep2", "event_type": "order.created", "sub_tenants": {"2": ["100"]}},
            {"id": "less", "endpoint": "ep3", "event_type": "order.created", "tenants": ["2"],
             "except_sub_tenants": {"2": ["100"]}},
            {"id": "rich", "endpoint": "ep3", "event_type": "order.created", "tenants": ["1", "2"],
             "filter": {"data": {"n": [{"numeric": [">", 1]}]}}},
        ],
    )  # fmt: skip
    registry = source(database).registry

    def of(tenant, department=None, n=0, event_type="order.created"):
        event = builders.event(event_type=event_type, tenant_id=tenant, sub_tenant_id=department, content={"n": n})
        return due(registry, event)

    assert of("1") == {"all", "all-but", "some"}
    assert of("1", n=3) == {"all", "all-but", "some", "rich"}
    assert of("2", "100") == {"all", "some", "part"}
    assert of("2", "200") == {"all", "some", "less"}
    assert of("3") == {"all", "all-but"}
    assert of("1", event_type="orders") == {"all"}


def test_both_sources_know_if_a_tenant_is_active_or_suspended(connection, database, source):
    register(connection, [])
    registry = source(database).registry
    events = [builders.event(tenant_id=tenant) for tenant in ("1", "4", "5", "ö 5")]
    assert [status for status, _ in routed(registry, events)] == [TenantStatus.ACTIVE, TenantStatus.SUSPENDED, None, None]


def test_both_sources_quarantine_and_skip_alike(connection, database, source):
    subscription = {"endpoint": "ep1", "event_type": "order.created", "everything": True}
    register(
        connection,
        [
            subscription | {"id": "fine"},
            subscription | {"id": "paused", "status": "paused"},
            subscription | {"id": "odd"},
            subscription | {"id": "moved"},
        ],
    )
    connection.execute("insert into filters values ('odd', '{\"data\": 1}')")
    connection.execute("update subscriptions set endpoint_id = 'ep3' where subscription_id = 'moved'")
    connection.execute("update secrets set key_id = 'lost' where endpoint_id = 'ep3'")
    [(_, found)] = routed(source(database).registry, [builders.event(tenant_id="1")])
    assert {name: skip for name, (_, skip) in found.items()} == {
        "fine": None,
        "paused": SkipReason.SUBSCRIPTION_PAUSED,
        "odd": SkipReason.QUARANTINED,
        "moved": None,  # its endpoint cannot be used as it is: it waits
    }
    assert found["moved"][0].fault


def test_a_batch_is_sent_by_the_present_endpoint_and_subscriptions(connection, database, source):
    register(connection, [{"id": "s1", "endpoint": "ep1", "event_type": "a", "everything": True}])
    opened = source(database)

    def destination(endpoint_id):
        found = asyncio.run(opened.registry.destination(endpoint_id, ()))
        leading = {key for key, row in found.subscriptions.items() if row.endpoint_id == endpoint_id}
        return found.endpoint and found.endpoint.url, leading

    assert destination("ep1") == ("https://example.com/ep1", {"s1"})
    assert destination("unknown") == (None, set())
    connection.execute("update endpoints set url = 'https://example.com/moved' where endpoint_id = 'ep1'")
    connection.execute("delete from subscriptions where subscription_id = 's1'")
    opened.catch_up()
    assert destination("ep1") == ("https://example.com/moved", set())
    connection.execute("delete from endpoints where endpoint_id = 'ep1'")
    opened.catch_up()
    assert destination("ep1") == (None, set())


def test_both_sources_know_deleted_tenants_of_waiting_events(connection, database, source):
    register(connection, [{"id": "s1", "endpoint": "ep1", "event_type": "a", "everything": True}])
    opened = source(database)

    def deleted(*tenants):
        return set(asyncio.run(opened.registry.destination("ep1", tenants)).deleted_tenants)

    assert deleted("1", "unknown", PLATFORM) == {"unknown"}
    connection.execute("update tenants set status = 'suspended' where tenant_id = '1'")
    opened.catch_up()
    assert deleted("1") == set()
    connection.execute("delete from tenants where tenant_id = '1'")
    opened.catch_up()
    assert deleted("1", "2") == {"1"}


def test_both_sources_have_the_same_retry_settings_and_order(connection, database, source):
    subscription = {"id": "s1", "endpoint": "ep1", "event_type": "order.created", "everything": True}
    register(connection, [subscription])
    connection.execute("update endpoints set retry_schedule_s = '{}', retry_timeout_s = 3, order_by = 'a.b'")
    [(_, found)] = routed(source(database).registry, [builders.event(tenant_id="1")])
    endpoint, _ = found["s1"]
    assert (endpoint.retrying, endpoint.order_by) == (Retrying(schedule_s=(), timeout_s=3), "a.b")


@pytest.mark.parametrize(
    "statement",
    [
        "insert into subscriptions values ('s9', 'ep3', 'c1', 'order.created', 'everything')",
        "delete from subscriptions where subscription_id = 's1'",
        "delete from endpoints where endpoint_id = 'ep1'",
        "update subscriptions set event_type = 'invoice' where subscription_id = 's1'",
        "update subscriptions set status = 'paused' where subscription_id = 's2'",
        "update endpoints set status = 'disabled' where endpoint_id = 'ep2'",
        "update endpoints set url = 'https://example.com/new' where endpoint_id = 'ep1'",
        "update endpoints set retry_schedule_s = '{1}', order_by = 'id' where endpoint_id = 'ep1'",
        "insert into scopes values ('s1', 'selected', 'exclude', '1', '100')",
        "delete from scopes where tenant_id = '1'",
        "update tenants set status = 'suspended' where tenant_id = '1'",
        "insert into filters values ('s2', '{\"data\": {\"n\": [3]}}')",
    ],
)
def test_a_change_is_in_effect_once_the_source_has_caught_up(connection, database, source, statement):
    register(
        connection,
        [
            {"id": "s1", "endpoint": "ep1", "event_type": "order.created", "tenants": ["1"]},
            {"id": "s2", "endpoint": "ep2", "event_type": "order.created", "everything": True},
        ],
    )
    here = source(database)
    before = routed(here.registry, EVENTS)
    connection.execute(statement)
    assert routed(here.registry, EVENTS) == before
    here.catch_up()
    assert routed(here.registry, EVENTS) != before
    assert routed(here.registry, EVENTS) == routed(Broadcast(database).registry, EVENTS)


def random_subscription(rng, number):
    chosen = {
        "tenants": rng.sample(TENANTS, rng.randint(0, 3)),
        "sub_tenants": {tenant: rng.sample(DEPARTMENTS, 1) for tenant in rng.sample(TENANTS[:-1], rng.randint(0, 2))},
    }
    return {
        "id": f"s{number}",
        "endpoint": rng.choice(ENDPOINTS),
        "event_type": rng.choice(PATTERNS),
        "status": rng.choice(["active", "active", "paused"]),
        "except_tenants": rng.sample(TENANTS, rng.randint(0, 1)),
        "except_sub_tenants": {tenant: rng.sample(DEPARTMENTS, 1) for tenant in rng.sample(TENANTS[:-1], rng.randint(0, 1))},
        **(chosen if any(chosen.values()) and rng.random() < 0.7 else {"everything": True}),
        **({"filter": {"data": {"n": [{"numeric": [">", 1]}]}}} if rng.random() < 0.3 else {}),
    }


@pytest.mark.parametrize("seed", range(3))
def test_both_sources_agree_on_every_event_after_any_changes(connection, database, seed):
    rng = random.Random(seed)
    with contextlib.closing(LookUp(database)) as looked_up:
        for revision in range(4):
            register(connection, [random_subscription(rng, number) for number in rng.sample(range(40), 25)])
            looked_up.catch_up()
            found = routed(looked_up.registry, EVENTS)
            assert found == routed(Broadcast(database).registry, EVENTS), (seed, revision)
            assert any(matches for _, matches in found)


@pytest.mark.parametrize("is_known", [True, False], ids=["tenant was looked up", "tenant is new"])
@pytest.mark.parametrize("is_to_all_first", [True, False], ids=["to a tenant", "to all"])
def test_a_look_up_finds_a_subscription_once_while_its_scope_changes(connection, database, is_to_all_first, is_known):
    """Regression: the subscription was in neither answer, or in both, until the older answer expired."""
    subscription = {"id": "s1", "endpoint": "ep1", "event_type": "order.*"}
    scopes = [{"everything": True}, {"tenants": ["1"]}]
    before, after = scopes if is_to_all_first else reversed(scopes)
    event, other = builders.event(tenant_id="1"), builders.event(tenant_id="2")
    with contextlib.closing(LookUp(database)) as looked_up:

        def matches():
            router = asyncio.run(looked_up.registry.router_for(event))
            return [match.subscription.subscription_id for match in router.matches(event)]

        register(connection, [subscription | before])
        due(looked_up.registry, other)
        looked_up.clock.now += TTL_S / 3
        assert not is_known or matches() == ["s1"]
        register(connection, [subscription | after])
        for _ in range(2 * int(TTL_S)):
            assert matches() == ["s1"]
            looked_up.clock.now += 1


@pytest.mark.parametrize(
    "lose",
    [
        "delete from revisions where revision > %s",
        "update revisions set changed_at = changed_at + interval '1 s', entity_id = 'other' where revision > %s",
    ],
    ids=["number skipped", "number used again"],
)
def test_a_look_up_finds_that_postgres_lost_the_last_change(connection, database, lose):
    """Regression: a standby continued at a higher number, so a worker kept its answers with the lost change until they expired.

    They gave events to nobody that each state of the registry gave to the subscription.
    """
    subscription = {"id": "s1", "endpoint": "ep1", "event_type": "*"}
    event, other = builders.event(tenant_id="1"), builders.event(tenant_id="2")
    register(connection, [subscription | {"everything": True}])
    kept = registry_reader.revisions(connection).newest
    with contextlib.closing(LookUp(database)) as looked_up:
        register(connection, [subscription | {"tenants": ["1"]}])
        assert due(looked_up.registry, other) == set()
        with connection.transaction():  # the rows of a standby that lacks the change, and then has another one
            connection.execute("set local session_replication_role = replica")  # without triggers, and so without a revision
            connection.execute("delete from scopes")
            connection.execute("update subscriptions set scope = 'everything'")
            connection.execute(lose, [kept])
            connection.execute("set local session_replication_role = origin")
            connection.execute("update tenants set name = 'later' where tenant_id = '4'")
        assert [due(looked_up.registry, asked) for asked in (event, other)] == [{"s1"}, {"s1"}]
        assert looked_up.reader.losses == 1


def test_a_look_up_that_waits_does_not_block_the_event_loop(own_postgres):
    with connect.connect(settings.DatabaseSettings(url=own_postgres.url)) as opened:
        migrate.migrate(opened)
        register(opened, [{"id": "s1", "endpoint": "ep1", "event_type": "*", "everything": True}])
    own_postgres.kill()

    async def ask(registry):
        waiting = asyncio.create_task(registry.router_for(event))
        await asyncio.wait([waiting], timeout=0.5)
        assert not waiting.done()
        await asyncio.to_thread(own_postgres.start)
        return (await waiting).matches(event)

    event = builders.event(tenant_id="1")
    with contextlib.closing(LookUp(own_postgres.url)) as looked_up:
        matches = asyncio.run(ask(looked_up.registry))
    assert [match.subscription.subscription_id for match in matches] == ["s1"]


def test_a_broken_connection_is_replaced(connection, database):
    register(connection, [{"id": "s1", "endpoint": "ep1", "event_type": "*", "everything": True}])
    event = builders.event(tenant_id="1")
    with contextlib.closing(LookUp(database)) as looked_up:
        assert due(looked_up.registry, event) == {"s1"}
        with psycopg.connect(database) as other:
            other.execute("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'fanout look-up'"
                          " and datname = current_database()")  # fmt: skip
        looked_up.catch_up()
        assert due(looked_up.registry, event) == {"s1"}
