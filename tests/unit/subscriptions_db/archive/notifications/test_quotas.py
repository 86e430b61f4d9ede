"""A reached quota is reported once while it stays reached, and at most once an hour."""

import datetime as dt

import pytest

from subscriptions_db.archive.notifications import quotas
from subscriptions_db.archive.notifications.endpoint_health import EventKind, Policy
from subscriptions_db.archive.notifications.quotas import Quota, ReachedQuota

NOON = dt.datetime(2026, 5, 10, 12, 0, tzinfo=dt.UTC)
POLICY = Policy(failing_after_s=300, backlog_events=3, quiet_s=3600)
ENDPOINTS = ReachedQuota(Quota.ENDPOINTS, "c1", "c1", 50)
EVENTS = ReachedQuota(Quota.EVENTS_PER_DAY, "t1", None, 1000)


def reported(first, *looks, policy=POLICY):
    """Return the minutes after noon of the events that follow looks at a quota, and of their `since`.

    A look has its minute, and is True if the quota is reached then.
    """
    known, found = None, []
    for minute, is_reached in looks:
        now = NOON + dt.timedelta(minutes=minute)
        if known is None and not is_reached:
            continue
        known, event = quotas.after(known or first, most=first.most if is_reached else None, policy=policy, now=now)
        if event is not None:
            assert (event.kind, event.at) == (EventKind.QUOTA_REACHED, now)
            since = (dt.datetime.fromisoformat(event.data["since"]) - NOON).total_seconds() / 60
            found.append((minute, since))
    return found


@pytest.mark.parametrize(
    ("looks", "events"),
    [
        ([(0, True), (1, True), (600, True)], [(0, 0)]),
        ([(0, True), (100, False), (101, True)], [(0, 0), (101, 101)]),
        ([(0, True), (1, False), (2, True), (59, True)], [(0, 0)]),  # within an hour of the last event
        ([(0, True), (1, False), (2, True), (60, True), (61, True)], [(0, 0), (60, 2)]),
        ([(0, True), (1, False), (2, True), (3, False), (60, False), (61, True)], [(0, 0), (61, 61)]),
        ([(0, False), (1, False)], []),
    ],
)
def test_a_quota_is_reported_once_until_it_falls_below(looks, events):
    assert reported(ENDPOINTS, *looks) == events


def test_a_tenants_events_are_reported_again_on_another_day():
    looks = [(minute, True) for minute in (0, 60, 719, 720, 721)]  # the day ends after 720 minutes
    assert reported(EVENTS, *looks) == [(0, 0), (720, 720)]


def test_without_operational_events_a_quota_is_reached_all_the_same():
    row, event = quotas.after(ENDPOINTS, most=50, policy=None, now=NOON)
    assert (row.reached_at, row.reported_at, event) == (NOON, None, None)
    later = NOON + dt.timedelta(hours=3)
    row, event = quotas.after(row, most=60, policy=POLICY, now=later)  # they are on now, and the quota is larger
    assert (row.most, row.reached_at, row.reported_at, event.data["limit"]) == (60, NOON, later, 60)


def test_a_row_is_deleted_when_it_delays_no_further_event():
    row, _ = quotas.after(ENDPOINTS, most=50, policy=POLICY, now=NOON)
    below, _ = quotas.after(row, most=None, policy=POLICY, now=NOON + dt.timedelta(minutes=59))
    assert below == row._replace(reached_at=None)
    assert quotas.after(below, most=None, policy=POLICY, now=NOON + dt.timedelta(minutes=60)) == (None, None)


def test_events_about_two_quotas_of_one_subject_have_two_ids():
    both = [ENDPOINTS, ENDPOINTS._replace(quota=Quota.SUBSCRIPTIONS)]
    events = [quotas.after(row, most=50, policy=POLICY, now=NOON)[1] for row in both]
    assert len({event.event_id for event in events}) == 2


def test_an_event_about_a_tenant_has_no_customer():
    _, event = quotas.after(EVENTS, most=1000, policy=POLICY, now=NOON)
    assert event.customer_id is None
    assert event.data == {
        "quota": "events_per_day", "tenant_id": "t1", "limit": 1000, "since": "2026-05-10T12:00:00.000Z",
    }  # fmt: skip
