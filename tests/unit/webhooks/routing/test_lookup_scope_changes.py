"""A subscription matches exactly once while its scope changes, although its two answers were read at different revisions."""

import asyncio
import random

import pytest

from delivery.registry_model import Revision
from delivery.webhooks.routing import lookup_registry, matching
from tests.support import builders, fakes

TTL_S = 30.0
ALL, ONLY_T1 = builders.scope(), builders.scope("t1")


class Postgres:
    """A registry in memory whose subscriptions change. Each answer is consistent at the newest revision."""

    def __init__(self, **scopes):
        self.revision = 1
        self.rows = {name: builders.subscription(name, scope=scope) for name, scope in scopes.items()}
        self.changed = dict.fromkeys(self.rows, 1)
        self.asked = []
        self.losses = 0

    def change(self, name, scope, event_type="order.created"):
        """Give a subscription another scope; delete it if `scope` is None."""
        self.revision += 1
        self.changed[name] = self.revision
        self.rows.pop(name, None)
        if scope is not None:
            self.rows[name] = builders.subscription(name, scope=scope, event_type=event_type)

    def candidates(self, event_type, tenant_id, since=None):
        self.asked.append(tenant_id)
        found = [
            row
            for name, row in self.rows.items()
            if matching.takes_type(row.event_type, event_type)
            and (
                tenant_id in row.scope.tenants
                or (row.scope.everything and (tenant_id is None or (since is not None and self.changed[name] > since)))
            )
        ]
        return builders.snapshot(builders.endpoint(), *found, revision=self.revision)


class Job:
    """A worker that looks up the registry, and a clock."""

    def __init__(self, postgres, max_answers=100):
        self.clock = fakes.Clock()
        self.registry = lookup_registry.LookupRegistry(postgres, ttl_s=TTL_S, max_answers=max_answers, clock=self.clock)

    def due(self, tenant):
        """Return the ids of the subscriptions to which an event of a tenant is due, as often as it is due."""
        event = builders.event(tenant_id=tenant)

        async def ask():
            return (await self.registry.router_for(event)).matches(event)

        return sorted(match.subscription.subscription_id for match in asyncio.run(ask()))


@pytest.mark.parametrize(("before", "after"), [(ALL, ONLY_T1), (ONLY_T1, ALL)], ids=["to a tenant", "to all"])
@pytest.mark.parametrize("is_known", [True, False], ids=["tenant was looked up", "tenant is new"])
@pytest.mark.parametrize("first", ["t0", "t1"])
def test_a_tenant_in_both_scopes_matches_exactly_once(before, after, is_known, first):
    """Regression: the subscription was in neither answer, or in both, until the older answer expired. Nobody got the events."""
    job = Job(postgres := Postgres(s1=before))
    job.due(first)
    if is_known:
        job.clock.now += TTL_S / 2
        assert job.due("t1") == ["s1"]
    job.clock.now += TTL_S / 3
    postgres.change("s1", after)
    for _ in range(3 * int(TTL_S)):
        assert job.due("t1") == ["s1"]
        job.clock.now += 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (ALL, builders.scope("t1", without_tenants=frozenset({"t1"}))),
        (ONLY_T1, builders.scope(without_tenants=frozenset({"t1"}))),
    ],
    ids=["answer for the tenant is newer", "answer for all tenants is newer"],
)
def test_the_newer_answer_decides_about_a_subscription_in_both(before, after):
    """Otherwise a subscription would take events by the scope that it had before the change."""
    job = Job(postgres := Postgres(s1=before))
    job.due("t0")
    job.clock.now += TTL_S / 2
    if before is ONLY_T1:
        job.due("t1")
    postgres.change("s1", after)
    job.clock.now += TTL_S / 2 if before is ONLY_T1 else 0
    assert job.due("t1") == []


def test_a_tenant_that_is_given_to_another_subscription_is_not_lost():
    """One transaction excludes a tenant from a subscription, and registers another subscription that names the tenant."""
    job = Job(postgres := Postgres(s1=ALL))
    job.due("t0")
    job.clock.now += TTL_S / 2
    assert job.due("t1") == ["s1"]
    postgres.change("s1", builders.scope(without_tenants=frozenset({"t1"})))
    postgres.change("s2", ONLY_T1)
    found = []
    for _ in range(2 * int(TTL_S)):
        found += job.due("t1")
        job.clock.now += 1
    assert found == ["s1"] * 15 + ["s2"] * 45


def test_an_answer_outlives_the_answer_for_all_tenants():
    """Nothing has moved when the answer for all tenants is read again. So no answer for a tenant needs to be read again."""
    job = Job(postgres := Postgres(s1=ALL))
    job.due("t0")
    job.clock.now += TTL_S - 1
    job.due("t1")
    postgres.change("s2", ALL)
    job.clock.now += TTL_S - 1
    assert job.due("t1") == ["s1", "s2"]
    assert postgres.asked == [None, "t0", "t1", None]


def test_changes_of_other_subscriptions_cause_no_look_up():
    """A registry may change a hundred times a second."""
    job = Job(postgres := Postgres(s1=ALL, s2=ONLY_T1))
    for number in range(20):
        postgres.change(f"other{number}", ALL, event_type="invoice")
        postgres.change(f"t9-{number}", builders.scope("t9"))
        assert job.due(f"t{number % 2}") == ["s1", "s2"][: 1 + number % 2]
    assert postgres.asked == [None, "t0", "t1"]


def test_a_moved_subscription_costs_one_look_up_of_each_older_answer():
    job = Job(postgres := Postgres(s1=ONLY_T1, s2=ALL))
    for tenant in ("t0", "t1"):
        job.due(tenant)
    del postgres.asked[:]
    postgres.change("s1", ALL)
    for _ in range(3):
        assert [job.due(tenant) for tenant in ("t2", "t1", "t0")] == [["s1", "s2"]] * 3
    assert postgres.asked == ["t2", None]
    postgres.change("s1", ONLY_T1)
    job.clock.now += TTL_S
    del postgres.asked[:]
    job.due("t0")
    assert postgres.asked == [None, "t0"]


@pytest.mark.parametrize("max_answers", [2, 100])
@pytest.mark.parametrize("seed", range(12))
def test_what_an_event_matches_lies_within_the_time_to_live(seed, max_answers):
    """An event matches, once, each subscription that took it all along, and none that never took it."""
    rng = random.Random(seed)
    job = Job(postgres := Postgres(), max_answers=max_answers)
    tenants = [f"t{number}" for number in range(4)]
    history = [(job.clock.now, {})]
    for _ in range(200):
        job.clock.now += rng.choice([0, 1, 5])
        if rng.random() < 0.2:
            chosen = rng.choice([None, ALL, builders.scope(*rng.sample(tenants, 3)), builders.scope(*rng.sample(tenants, 1))])
            postgres.change(f"s{rng.randrange(4)}", chosen)
            history.append((job.clock.now, dict(postgres.rows)))
        tenant = rng.choice(tenants)
        ends = [changed_at for changed_at, _ in history[1:]] + [job.clock.now]
        known = [rows for (_, rows), end in zip(history, ends, strict=True) if end >= job.clock.now - TTL_S]
        taking = [{name for name, row in rows.items() if row.scope.everything or tenant in row.scope.tenants} for rows in known]
        found = job.due(tenant)
        assert len(found) == len(set(found))
        assert set.intersection(*taking) <= set(found) <= set.union(*taking), (seed, tenant)


def test_a_revision_that_falls_causes_no_endless_look_ups():
    """Postgres lost commits in a failover, so the log of changes continues at a lower number."""
    job = Job(postgres := Postgres(s1=ALL, s2=ALL))
    postgres.revision = 100
    job.due("t1")
    postgres.change("s1", None)
    job.clock.now += TTL_S
    job.due("t1")
    postgres.revision = Revision(50)
    job.clock.now += TTL_S
    job.due("t1")
    del postgres.asked[:]
    assert job.due("t1") == ["s2"]
    assert postgres.asked == []


@pytest.mark.parametrize(("resumed_at", "found_losses"), [(1, 0), (34, 1)], ids=["the number falls", "the number jumps"])
def test_a_subscription_that_a_lost_commit_had_moved_takes_each_event(resumed_at, found_losses):
    """Regression: the answer for all tenants had the lost change, and the tenant's answer was older. Nobody got the events."""
    job = Job(postgres := Postgres(s1=ALL))
    postgres.change("s1", ONLY_T1)
    assert job.due("t0") == []
    postgres.change("s1", ALL)  # the standby lacks the change
    postgres.changed["s1"], postgres.revision = 1, resumed_at
    answer = postgres.candidates

    def first_answer(*key):
        postgres.losses, postgres.candidates = found_losses, answer
        return answer(*key)

    postgres.candidates = first_answer
    for _ in range(3):
        assert [job.due(tenant) for tenant in ("t1", "t0")] == [["s1"], ["s1"]]
        job.clock.now += 1
    assert postgres.asked == [None, "t0", "t1", None, "t0"]
