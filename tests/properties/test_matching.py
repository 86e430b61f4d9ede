"""The router finds the same subscriptions as a naive join, at first and after any changes."""

from hypothesis import given, settings
from hypothesis import strategies as st

from delivery.registry_model import PLATFORM, Revision
from delivery.webhooks.filters import event_pattern
from delivery.webhooks.routing import matching
from delivery.webhooks.routing.registry_snapshot import SnapshotChanges
from tests.support import builders, thoroughness

TYPES = ("a.x", "a.y", "a.x.z", "b")
TENANTS = ("1", "2", PLATFORM)
DEPARTMENTS = ("10", "20")

departments = st.frozensets(st.tuples(st.sampled_from(TENANTS), st.sampled_from(DEPARTMENTS)), max_size=3)
tenants = st.frozensets(st.sampled_from(TENANTS), max_size=2)
scopes = st.one_of(
    st.builds(
        lambda without, less: builders.scope(without_tenants=without, without_sub_tenants=less),
        tenants,
        departments,
    ),
    st.builds(
        lambda included, part, without, less: builders.Scope(
            tenants=included, sub_tenants=part, without_tenants=without, without_sub_tenants=less
        ),
        tenants,
        departments,
        tenants,
        departments,
    ),
)
patterns = st.sampled_from([None, {"data": {"n": [1, 2]}}, {"data": {"n": [{"numeric": [">", 1]}]}}, {"sub_tenant_id": ["10"]}])
event_types = st.sampled_from([*TYPES, "a.*", "a.x.*", "b.*", "*"])
subscription_ids = st.sampled_from([f"s{n}" for n in range(6)])


@st.composite
def subscriptions(draw):
    return builders.subscription(
        draw(subscription_ids), event_type=draw(event_types), scope=draw(scopes), filter_pattern=draw(patterns)
    )


events = st.builds(
    lambda event_type, tenant, department, n: builders.event(
        event_type=event_type, tenant_id=tenant, sub_tenant_id=department, content={"n": n}
    ),
    st.sampled_from(TYPES),
    st.sampled_from(TENANTS),
    st.sampled_from([*DEPARTMENTS, None]),
    st.integers(0, 3),
)
histories = st.lists(st.dictionaries(subscription_ids, st.one_of(st.none(), subscriptions()), max_size=4), max_size=4)


def naive_join(event, rows):
    """Yield the subscriptions to which an event is due. Test each, by the conditions of the delivery contract."""
    for row in rows:
        tenant, part = event.tenant_id, (event.tenant_id, event.sub_tenant_id)
        type_fits = row.event_type == event.event_type or (
            row.event_type.endswith("*") and event.event_type.startswith(row.event_type[:-1])
        )
        at_a_tenant = event.tenant_id != PLATFORM
        included = (row.scope.everything and at_a_tenant) or tenant in row.scope.tenants or part in row.scope.sub_tenants
        excluded = tenant in row.scope.without_tenants or part in row.scope.without_sub_tenants
        content_fits = row.filter_pattern is None or event_pattern.compile_pattern(row.filter_pattern).matches(
            matching.filter_document(event)
        )
        if type_fits and included and not excluded and content_fits:
            yield row.subscription_id


@settings(max_examples=thoroughness.cases(120, thorough=300), deadline=None)
@given(
    st.lists(subscriptions(), max_size=6, unique_by=lambda row: row.subscription_id), histories, st.lists(events, max_size=6)
)
def test_routing_equals_the_naive_join_at_every_revision(rows, history, some_events):
    router = matching.Router(builders.snapshot(builders.endpoint(), *rows))
    current = {row.subscription_id: row for row in rows}
    for revision, changed in enumerate([{}, *history], start=1):
        fitting = {
            key: row
            and builders.subscription(key, event_type=row.event_type, scope=row.scope, filter_pattern=row.filter_pattern)
            for key, row in changed.items()
        }
        router.apply(SnapshotChanges(since=Revision(revision - 1), revision=Revision(revision), subscriptions=fitting))
        current = {key: row for key, row in (current | fitting).items() if row is not None}
        for event in some_events:
            routed = [match.subscription.subscription_id for match in router.matches(event)]
            assert sorted(routed) == sorted(naive_join(event, current.values()))
