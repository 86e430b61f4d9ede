"""The follower publishes changes that add up, and only confirms a revision without changes."""

import threading

from delivery.config import settings
from delivery.registry_model import Revision
from delivery.stages.registry import registry_follower
from delivery.webhooks.routing.registry_snapshot import SnapshotChanges
from tests.support import builders, fakes

BASE = registry_follower.Published(base_id="b", base=builders.snapshot(revision=5), changes=None, confirmed_at=1.0)


def changes(since, revision, **rows):
    return SnapshotChanges(since=Revision(since), revision=Revision(revision), **rows)


def test_nothing_new_is_a_confirmation():
    confirmed = registry_follower.advanced(BASE, changes(5, 5), now=9.0)
    assert (confirmed.revision, confirmed.changes, confirmed.confirmed_at) == (5, None, 9.0)


def test_changes_add_up_and_the_later_row_wins():
    first = registry_follower.advanced(BASE, changes(5, 6, subscriptions={"a": builders.subscription("a"), "b": None}), now=2.0)
    second = registry_follower.advanced(
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
    of_base = registry_follower.Published(base_id="b", base=base, changes=None, confirmed_at=0.0)
    assert of_base.sizes() == {"tenants": 2, "endpoints": 1, "subscriptions": 2}
    assert registry_follower.advanced(of_base, changed, now=1.0).sizes() == {
        "tenants": 2,
        "endpoints": 1,
        "subscriptions": 2 - 1 + 1,
    }


def test_changes_say_which_rows_are_quarantined_by_them_and_which_no_longer_are():
    changed = changes(1, 2, endpoints={"ep1": builders.endpoint(fault="a refused URL")}, subscriptions={"a": None})
    assert changed.faults() == {"endpoint ep1": "a refused URL", "subscription a": None}


class Checks(threading.Event):
    """A job that is asked to stop after `most` checks. Each check calls `then`, which gets the number of the check from 1."""

    def __init__(self, most, then):
        super().__init__()
        self.most, self.then, self.number = most, then, 0

    def is_set(self):
        self.number += 1
        self.then(self.number)
        return self.number > self.most


def test_a_pause_is_logged_once_a_minute_and_when_its_cause_changes(caplog):
    """Regression: each waiting lane logged it each second, and an outage of Postgres filled the log."""
    clock = fakes.Clock(5000.0)  # long after BASE was confirmed

    def one_second_later(check):
        clock.now += 1
        follower._failure = "Postgres refuses the password" if 10 < check <= 80 else None

    stop = Checks(90, one_second_later)
    keys = {"ring": {"k1": "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="}, "active": "k1"}
    config = settings.Settings.model_validate({"snapshot": {"poll_interval_s": 1e-6}, "keys": keys})
    follower = registry_follower.Follower(config, stop=stop, clock=clock)
    follower._publish(BASE)
    assert follower.current() is None
    logged = [record.message for record in caplog.records if "delivery is paused" in record.message]
    ages_and_causes = [
        text.split(".")[0].removeprefix("delivery is paused: the registry was last confirmed ") for text in logged
    ]
    assert ages_and_causes == [
        "5000 s ago: check Postgres",
        "5010 s ago: Postgres refuses the password",
        "5070 s ago: Postgres refuses the password",  # a minute later
        "5080 s ago: check Postgres",
    ]
    stop.number = 89
    follower._publish(BASE)  # confirmed in between: the next pause is a new one
    assert follower.current() is None
    assert len([record for record in caplog.records if "delivery is paused" in record.message]) == 5
