"""A pause of delivery for want of a current registry is logged, and not too often."""

import math
import threading

import pytest

from delivery.config import settings
from delivery.webhooks.routing import published_registry
from subscriptions_db.following import registry_follower
from tests.support import builders, fakes

BASE = published_registry.Published(base_id="b", base=builders.snapshot(revision=5), changes=None, confirmed_at=1.0)


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


@pytest.mark.parametrize(
    ("excess", "age_s", "is_needed"),
    [(0.9, math.inf, False), (1.1, math.inf, True), (1.1, 59.0, False), (1.1, 60.0, True), (10.1, 0.0, True)],
)
def test_a_delta_that_is_a_little_too_large_makes_at_most_a_snapshot_a_minute(excess, age_s, is_needed):
    """Regression: one customer's five large rows, changed again and again, kept the batch lane from committing."""
    assert registry_follower._needs_snapshot(excess, age_s) is is_needed
