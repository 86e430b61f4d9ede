"""The router finds the subscriptions to which an event is due, also after changes of the registry."""

import pytest

from delivery.model import SkipReason
from delivery.registry_model import Revision, SubscriptionStatus
from delivery.webhooks.filters import event_pattern
from delivery.webhooks.routing import matching
from delivery.webhooks.routing.registry_snapshot import SnapshotChanges
from tests.support import builders


def router(*rows, **fields):
    return matching.Router(builders.snapshot(builders.endpoint(), *rows, **fields))


def matched(routes, event):
    return [match.subscription.subscription_id for match in routes.matches(event)]


@pytest.mark.parametrize(
    ("pattern", "event_type", "is_due"),
    [
        ("order.created", "order.created", True),
        ("order.created", "order.created.v2", False),
        ("order.*", "order.created", True),
        ("order.*", "order.item.added", True),
        ("order.*", "order", False),
        ("order.*", "orders.created", False),
        ("*", "anything", True),
    ],
)
def test_a_type_is_exact_or_a_prefix(pattern, event_type, is_due):
    routes = router(builders.subscription(event_type=pattern))
    assert matched(routes, builders.event(event_type=event_type)) == (["s1"] if is_due else [])


@pytest.mark.parametrize(
    ("scope", "tenant_id", "sub_tenant_id", "is_due"),
    [
        (builders.scope(), "t1", None, True),
        (builders.scope(), "unheard-of", "100", True),
        (builders.scope(), "fanout", "c1", False),  # what happens to a customer's endpoint is to be named
        (builders.scope(sub_tenants=builders.sub_tenants(("fanout", "c1"))), "fanout", "c1", True),
        (builders.scope(sub_tenants=builders.sub_tenants(("fanout", "c1"))), "fanout", "c2", False),
        (builders.scope("fanout"), "fanout", "c1", True),
        (builders.scope("t1"), "t1", None, True),
        (builders.scope("t1"), "t1", "100", True),
        (builders.scope("t1"), "t2", None, False),
        (builders.scope(sub_tenants=builders.sub_tenants(("t2", "100"))), "t2", "100", True),
        (builders.scope(sub_tenants=builders.sub_tenants(("t2", "100"))), "t2", "300", False),
        (builders.scope(sub_tenants=builders.sub_tenants(("t2", "100"))), "t2", None, False),
        (builders.scope(sub_tenants=builders.sub_tenants(("t2", "100"))), "t1", "100", False),
        (builders.scope(without_tenants=frozenset({"t1"})), "t1", "100", False),
        (builders.scope(without_sub_tenants=builders.sub_tenants(("t1", "100"))), "t1", "100", False),
        (builders.scope(without_sub_tenants=builders.sub_tenants(("t1", "100"))), "t1", "200", True),
        (builders.scope("t1", without_sub_tenants=builders.sub_tenants(("t1", "100"))), "t1", "100", False),
    ],
)
def test_a_scope_includes_tenants_and_an_exclusion_always_wins(scope, tenant_id, sub_tenant_id, is_due):
    routes = router(builders.subscription(scope=scope))
    assert bool(matched(routes, builders.event(tenant_id=tenant_id, sub_tenant_id=sub_tenant_id))) is is_due


def test_a_sub_tenant_named_beside_its_tenant_is_due_once():
    scope = builders.scope("t1", sub_tenants=builders.sub_tenants(("t1", "100")))
    assert matched(router(builders.subscription(scope=scope)), builders.event(sub_tenant_id="100")) == ["s1"]


def test_a_filter_sees_the_events_attributes_and_its_payload():
    pattern = {"tenant_id": ["t1"], "data": {"amount": [{"numeric": [">", 3]}]}}
    routes = router(builders.subscription(filter_pattern=pattern))
    assert matched(routes, builders.event(content={"amount": 5})) == ["s1"]
    assert matched(routes, builders.event(content={"amount": 3})) == []
    assert matched(routes, builders.event(content=[1, 2])) == []


def test_two_subscriptions_to_one_endpoint_are_two_matches():
    routes = router(builders.subscription("a"), builders.subscription("b", event_type="*"))
    assert sorted(matched(routes, builders.event())) == ["a", "b"]


@pytest.mark.parametrize(
    ("subscription", "reason"),
    [
        ({}, None),
        ({"status": SubscriptionStatus.PAUSED}, SkipReason.SUBSCRIPTION_PAUSED),
        ({"fault": "filter: broken"}, SkipReason.QUARANTINED),
        ({"fault": "filter: broken", "status": SubscriptionStatus.PAUSED}, SkipReason.QUARANTINED),
    ],
)
def test_events_of_a_paused_or_quarantined_subscription_are_skipped(subscription, reason):
    assert matching.skip_reason(builders.subscription(**subscription)) == reason


def test_a_quarantined_filter_hides_no_event_of_its_scope():
    broken = builders.subscription(filter_pattern={"data": {"x": [{"no-such": 1}]}}, fault="filter: no-such")
    assert matched(router(broken), builders.event()) == ["s1"]


class TestManyFilters:
    """In a scope with many subscriptions, an index of their filters selects the filters to evaluate."""

    @pytest.fixture
    def compiled(self, monkeypatch):
        """Return the patterns compiled so far."""
        patterns, compile_pattern = [], event_pattern.compile_pattern
        monkeypatch.setattr(
            event_pattern, "compile_pattern", lambda pattern: patterns.append(pattern) or compile_pattern(pattern)
        )
        return patterns

    def test_a_filter_that_cannot_match_is_not_even_compiled(self, compiled):
        rows = [builders.subscription(f"s{n}", filter_pattern={"data": {"amount": [n]}}) for n in range(20)]
        assert matched(router(*rows), builders.event(content={"amount": 5})) == ["s5"]
        assert compiled == [{"data": {"amount": [5]}}]

    def test_a_filter_that_many_have_is_compiled_once_and_due_to_each(self, compiled):
        alike = [{"data": {"amount": [5]}, "tenant_id": ["t1"]}, {"tenant_id": ["t1"], "data": {"amount": [5]}}]
        rows = [builders.subscription(f"s{n:02}", filter_pattern=alike[n % 2]) for n in range(20)]
        routes = router(*rows)
        for _ in range(2):
            assert sorted(matched(routes, builders.event())) == [f"s{n:02}" for n in range(20)]
        assert len(compiled) == 1

    def test_an_index_of_filters_keeps_exclusions_and_unfiltered_ones(self):
        without_t1 = builders.scope(without_tenants=frozenset({"t1"}))
        rows = [builders.subscription(f"s{n}", filter_pattern={"data": {"amount": [n]}}) for n in range(8)]
        routes = router(
            *rows,
            builders.subscription("all"),
            builders.subscription("less", scope=without_t1),
            builders.subscription("filtered-less", scope=without_t1, filter_pattern={"data": {"amount": [5]}}),
        )
        assert sorted(matched(routes, builders.event())) == ["all", "s5"]
        assert sorted(matched(routes, builders.event(tenant_id="t2"))) == ["all", "filtered-less", "less", "s5"]


class TestChanges:
    """Changes are applied in place, and only the affected patterns are indexed again."""

    def changes(self, **fields):
        return SnapshotChanges(since=Revision(1), revision=Revision(2), **fields)

    def test_a_new_subscription_is_due_from_then_on(self):
        routes = router()
        assert matched(routes, builders.event()) == []
        routes.apply(self.changes(subscriptions={"s1": builders.subscription()}))
        assert matched(routes, builders.event()) == ["s1"]
        assert routes.revision == 2

    def test_a_new_wildcard_reaches_the_types_that_were_indexed_already(self):
        routes = router()
        routes.matches(builders.event())
        routes.apply(self.changes(subscriptions={"s1": builders.subscription(event_type="order.*")}))
        assert matched(routes, builders.event()) == ["s1"]

    @pytest.mark.parametrize("event_type", ["order.created", "order.*", "*"])
    def test_a_deleted_subscription_is_due_no_more(self, event_type):
        routes = router(builders.subscription(event_type=event_type))
        routes.matches(builders.event())
        routes.apply(self.changes(subscriptions={"s1": None}))
        assert matched(routes, builders.event()) == []

    def test_a_subscription_that_changes_its_type_moves(self):
        routes = router(builders.subscription(event_type="order.*"))
        routes.matches(builders.event())
        routes.apply(self.changes(subscriptions={"s1": builders.subscription(event_type="user.*")}))
        assert matched(routes, builders.event()) == []
        assert matched(routes, builders.event(event_type="user.created")) == ["s1"]

    def test_a_change_leaves_the_indexes_of_other_patterns_as_they_are(self):
        routes = router(builders.subscription("a"), builders.subscription("b", event_type="order.*"))
        routes.matches(builders.event())
        before = dict(routes._indexes)
        routes.apply(self.changes(subscriptions={"c": builders.subscription("c", event_type="order.*")}))
        assert sorted(matched(routes, builders.event())) == ["a", "b", "c"]
        assert routes._indexes["order.created"] is before["order.created"]

    def test_a_changed_endpoint_is_used_at_once(self):
        routes = router(builders.subscription())
        routes.apply(self.changes(endpoints={"ep1": builders.endpoint(url="https://new.example.com/")}))
        [match] = routes.matches(builders.event())
        assert match.endpoint.url == "https://new.example.com/"

    def test_an_unchanged_row_of_a_delta_stays_the_same_object(self):
        routes = router(builders.subscription())
        [before] = routes.matches(builders.event())
        routes.apply(self.changes(subscriptions={"s1": builders.subscription()}, endpoints={"ep1": builders.endpoint()}))
        [after] = routes.matches(builders.event())
        assert after.subscription is before.subscription
        assert after.endpoint is before.endpoint

    @pytest.mark.parametrize(("before", "after"), [(1, True), (False, 0)])
    def test_a_filter_that_changes_between_a_number_and_a_boolean_counts(self, before, after):
        """Regression: 1 == True in Python, so the old filter stayed until the worker restarted."""
        routes = router(builders.subscription(filter_pattern={"data": {"paid": [before]}}))
        routes.matches(builders.event(content={"paid": before}))
        changed = builders.subscription(filter_pattern={"data": {"paid": [after]}})
        routes.apply(self.changes(subscriptions={"s1": changed}))
        assert matched(routes, builders.event(content={"paid": after})) == ["s1"]
        assert matched(routes, builders.event(content={"paid": before})) == []

    def test_changes_applied_twice_are_as_applied_once(self):
        routes = router(builders.subscription("a"))
        changes = self.changes(subscriptions={"a": None, "b": builders.subscription("b")})
        routes.apply(changes)
        routes.apply(changes)
        assert matched(routes, builders.event()) == ["b"]
