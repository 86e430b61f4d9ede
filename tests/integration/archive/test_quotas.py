"""`fanout archive` finds the quotas that customers and tenants have reached, and reports each once."""

import datetime as dt
import logging

import pytest

from fanout.archiver import quota_step
from subscriptions_db.archive.notifications import outbox, quotas
from subscriptions_db.archive.notifications.endpoint_health import Policy
from subscriptions_db.archive.notifications.quotas import DefaultQuotas, Quota
from subscriptions_db.archive.search import archived_dead_letters
from tests.support import archive

pytestmark = pytest.mark.integration

POLICY = Policy(failing_after_s=300, backlog_events=3, quiet_s=3600)
NONE = DefaultQuotas(endpoints=10, subscriptions=10, consumers=10, dead_letters=0, events_per_day=0)
ENDPOINTS = """
insert into endpoints (endpoint_id, customer_id, url)
select customer || n, customer, 'https://example.com/' from unnest(array['c1', 'c2']) as customer, generate_series(1, 3) as n
"""


def reported(connection):
    """Return the customer, the quota, the subject and the limit of each new event."""
    with outbox.claim_page(connection) as waiting:
        return [
            (
                event.customer_id,
                event.data["quota"],
                event.data.get("customer_id") or event.data["tenant_id"],
                event.data["limit"],
            )
            for event in waiting
        ]


def look(connection, at_s=0, **wanted):
    return quotas.record(connection, NONE._replace(**wanted), POLICY, now=archive.NOW + dt.timedelta(seconds=at_s))


def test_each_reached_quota_is_reported_once(connection, write):
    connection.execute(ENDPOINTS)
    connection.execute("insert into subscriptions values ('s1', 'c11', 'c1', '*', 'everything')")
    connection.execute("insert into dead_letter_consumers (customer_id, name) values ('c2', 'billing')")
    connection.execute("insert into tenants (tenant_id) values ('t1'), ('t2')")
    connection.execute(
        "insert into published_events values (%(today)s, 't1', 7), (%(today)s, 't2', 6), (%(today)s, 'invented', 99),"
        " (%(today)s - 1, 't2', 99)", {"today": archive.NOW.date()},
    )  # fmt: skip
    write(3, customer="c1")
    write(2, customer="c2")
    wanted = {"endpoints": 3, "subscriptions": 1, "consumers": 1, "dead_letters": 3, "events_per_day": 7}
    for _ in range(2):
        assert look(connection, **wanted) == {
            Quota.ENDPOINTS: 2, Quota.SUBSCRIPTIONS: 1, Quota.CONSUMERS: 1, Quota.DEAD_LETTERS: 1, Quota.EVENTS_PER_DAY: 1,
        }  # fmt: skip
    assert sorted(reported(connection), key=str) == [
        ("c1", "dead_letters", "c1", 3), ("c1", "endpoints", "c1", 3), ("c1", "subscriptions", "c1", 1),
        ("c2", "consumers", "c2", 1), ("c2", "endpoints", "c2", 3), (None, "events_per_day", "t1", 7),
    ]  # fmt: skip


def test_a_customers_own_quota_is_the_one_that_counts(connection, write):
    connection.execute(ENDPOINTS)
    connection.execute(
        "insert into customer_quotas (customer_id, max_endpoints, max_dead_letters) values ('c1', 4, 2), ('c2', 2, null)"
    )
    write(2, customer="c1")
    write(2, customer="c2")
    assert look(connection, endpoints=3, dead_letters=3) == {Quota.ENDPOINTS: 1, Quota.DEAD_LETTERS: 1}
    assert sorted(reported(connection)) == [("c1", "dead_letters", "c1", 2), ("c2", "endpoints", "c2", 2)]


def test_a_tenants_own_quota_is_the_one_that_counts(connection):
    connection.execute("insert into tenants (tenant_id) values ('t1'), ('t2'), ('t3')")
    connection.execute("insert into tenant_quotas values ('t1', 5), ('t2', 7)")
    connection.execute("insert into published_events select %s, 't' || n, 6 from generate_series(1, 3) n", [archive.NOW.date()])
    assert look(connection, events_per_day=6) == {Quota.EVENTS_PER_DAY: 2}
    assert sorted(reported(connection)) == [(None, "events_per_day", "t1", 5), (None, "events_per_day", "t3", 6)]
    assert look(connection, 60) == {}  # the setting is 0, so no tenant has a quota


def test_a_quota_of_zero_is_reached_by_nobody(connection, write):
    connection.execute("insert into customer_quotas (customer_id, max_endpoints, max_subscriptions) values ('c1', 0, 0)")
    connection.execute("insert into published_events values (%s, 't1', 7)", [archive.NOW.date()])
    connection.execute("insert into tenants (tenant_id) values ('t1')")
    write(5, customer="c1")
    assert look(connection) == {}


def test_dead_letters_that_are_redriven_or_discarded_count_no_more(connection, write):
    write(3, customer="c1")
    assert look(connection, dead_letters=3) == {Quota.DEAD_LETTERS: 1}
    [first, *_] = connection.execute("select position from dead_letters order by position").fetchall()
    assert archived_dead_letters.redrive(connection, "c1", [first["position"]], now=archive.NOW)
    assert look(connection, 60, dead_letters=3) == {}
    assert connection.execute("select reached_at from reached_quotas").fetchall() == [{"reached_at": None}]
    assert look(connection, 3600, dead_letters=3) == {}
    assert connection.execute("select from reached_quotas").fetchall() == []
    assert len(reported(connection)) == 1


def test_two_archives_report_a_quota_once(connection, opened, in_background):
    connection.execute(ENDPOINTS)
    with connection.transaction():
        look(connection, endpoints=3)
        second = in_background(look, opened(), endpoints=3)
        assert not second.done()
    second.result(60)
    assert len(reported(connection)) == 2


def test_a_look_that_must_wait_too_long_is_left_out(connection, opened, caplog):
    """The archive paused for a failed look, and began with the same look again. So it archived nothing any more."""
    connection.execute(ENDPOINTS)
    looks = quota_step.QuotaLooks(NONE._replace(endpoints=3), POLICY, look_timeout_s=0.1)
    ours, other = opened(), opened()
    with caplog.at_level(logging.WARNING), other.transaction():
        look_of_another = quotas.record(other, NONE, POLICY, now=archive.NOW)
        looks.run(ours)
    assert look_of_another == {}
    assert "canceling statement due to statement timeout" in caplog.text
    assert "Archiving continues" in caplog.text
    assert ours.execute("show statement_timeout").fetchone() == {"statement_timeout": "30s"}
    quota_step.QuotaLooks(NONE._replace(endpoints=3), POLICY).run(ours)
    assert len(reported(connection)) == 2
