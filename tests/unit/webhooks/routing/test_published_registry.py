"""The changes of a published registry add up, and a revision without changes is only confirmed."""

from delivery.registry_model import Revision
from delivery.webhooks.routing import published_registry
from delivery.webhooks.routing.registry_snapshot import SnapshotChanges
from tests.support import builders

BASE = published_registry.Published(base_id="b", base=builders.snapshot(revision=5), changes=None, confirmed_at=1.0)


def changes(since, revision, **rows):
    return SnapshotChanges(since=Revision(since), revision=Revision(revision), **rows)


def test_nothing_new_is_a_confirmation():
    confirmed = published_registry.advanced(BASE, changes(5, 5), now=9.0)
    assert (confirmed.revision, confirmed.changes, confirmed.confirmed_at) == (5, None, 9.0)


def test_changes_add_up_and_the_later_row_wins():
    first = published_registry.advanced(
        BASE, changes(5, 6, subscriptions={"a": builders.subscription("a"), "b": None}), now=2.0
    )
    second = published_registry.advanced(
        first, changes(6, 7, subscriptions={"a": None, "c": builders.subscription("c")}), now=3.0
    )
    assert (second.revision, second.changes.since) == (7, 5)
    assert second.changes.subscriptions == {"a": None, "b": None, "c": builders.subscription("c")}
    assert second.base is BASE.base


def test_sizes_are_those_of_the_registry_with_its_changes():
    base = builders.snapshot(builders.endpoint(), builders.subscription("a"), builders.subscription("b"))  # and 2 tenants
    changed = changes(
        1, 2, subscriptions={"a": None, "b": builders.subscription("b"), "c": builders.subscription("c"), "d": None}
    )
    of_base = published_registry.Published(base_id="b", base=base, changes=None, confirmed_at=0.0)
    assert of_base.sizes() == {"tenants": 2, "endpoints": 1, "subscriptions": 2}
    assert published_registry.advanced(of_base, changed, now=1.0).sizes() == {
        "tenants": 2,
        "endpoints": 1,
        "subscriptions": 2 - 1 + 1,
    }


def test_changes_say_which_rows_are_quarantined_by_them_and_which_no_longer_are():
    changed = changes(1, 2, endpoints={"ep1": builders.endpoint(fault="a refused URL")}, subscriptions={"a": None})
    assert changed.faults() == {"endpoint ep1": "a refused URL", "subscription a": None}
