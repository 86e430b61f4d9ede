"""Statistics count each record once, also across crashes and with two processes, and are kept for their retention."""

import dataclasses
import datetime as dt
import uuid

import pytest

from delivery import errors
from delivery.config import settings
from subscriptions_db.archive.ingest import hourly_counts, hourly_statistics, writer
from subscriptions_db.archive.ingest.archived_rows import ArchivedRecord
from subscriptions_db.archive.ingest.hourly_counts import HourCounts
from subscriptions_db.archive.search import statistics as kept_statistics
from subscriptions_db.archive.search.statistics import Granularity
from subscriptions_db.postgres import connect, migrate
from tests.support import archive

pytestmark = pytest.mark.integration
HOUR = int(archive.NOW.timestamp()) // 3600
DAY = dt.timedelta(days=1)


def taken(offset, counts, *, hour=HOUR, endpoint="ep1"):
    """Return a record of the attempts topic that has counts only."""
    return ArchivedRecord(topic="attempts", partition=0, offset=offset, statistics={("c1", endpoint, hour): counts})


def total(connection, endpoint=None, customer="c1"):
    found = kept_statistics.read(
        connection, customer, endpoint, since=archive.NOW - 30 * DAY, until=archive.NOW + DAY, by=Granularity.HOUR
    )
    return found.total


def test_counts_of_an_hour_add_up_for_endpoint_and_customer(connection):
    first = HourCounts(delivered=3, attempts=4, error_classes={"timeout": 1}, durations={2: 4}, latencies={5: 3})
    second = HourCounts(dead_lettered=1, attempts=2, error_classes={"timeout": 1, "dns": 1}, durations={0: 1, 40: 1})
    third = HourCounts(skipped=7)
    for offset, (counts, endpoint) in enumerate([(first, "ep1"), (second, "ep1"), (third, "ep2"), (first, "ep2")]):
        writer.write(connection, [taken(offset, counts, endpoint=endpoint)], archive.KEPT, now=archive.NOW)
    of_one, of_all = HourCounts(), HourCounts()
    for counts in (first, second):
        of_one.add(counts)
    for counts in (first, second, third, first):
        of_all.add(counts)
    assert (total(connection, "ep1"), total(connection)) == (of_one, of_all)
    assert total(connection, "ep1", customer="c2") == total(connection, customer="c2") == HourCounts()
    assert connection.execute("select count(*) as n from delivery_statistics").fetchone()["n"] == 3


def test_a_broken_session_counts_each_record_once(connection, opened):
    """The session breaks before the n-th statement, for every n. The next process begins at the archived offsets."""
    record = archive.taken_attempts(0, archive.outcome())
    for number in range(8):
        records = [dataclasses.replace(record, offset=4 * number + n, statistics={("c1", "ep1", HOUR): HourCounts(attempts=1)})
                   for n in range(4)]  # fmt: skip
        dying = opened()
        has_ended = archive.end_session_after(number, dying, connection)
        try:
            writer.write(dying, records, archive.KEPT, now=archive.NOW)
        except errors.RegistryUnavailable:
            assert has_ended()
        writer.write(connection, records, archive.KEPT, now=archive.NOW)
        assert total(connection).attempts == total(connection, "ep1").attempts == 4 * (number + 1)


def test_hours_out_of_retention_are_left_out_and_deleted(connection):
    kept = archive.KEPT._replace(statistics=3)
    hours = [HOUR + 24 * days for days in (-4, -3, 0, 2, 3)]
    records = [taken(offset, HourCounts(attempts=1), hour=hour) for offset, hour in enumerate([*hours, 10**12])]
    writer.write(connection, records, kept, now=archive.NOW)
    found = (
        "select (extract(epoch from hour) / 3600)::integer as hour from delivery_statistics where endpoint_id = '' order by 1"
    )
    assert [row["hour"] for row in connection.execute(found)] == hours[1:4]
    hourly_statistics.delete_old(connection, archive.NOW.date())
    assert [row["hour"] for row in connection.execute(found)] == hours[2:4]
    writer.write(connection, [taken(9, HourCounts(attempts=1))], kept._replace(statistics=0), now=archive.NOW)
    assert total(connection).attempts == 1


def test_a_customer_sees_its_own_statistics_and_changes_none(connection):
    writer.write(connection, [taken(0, HourCounts(attempts=1))], archive.KEPT, now=archive.NOW)
    seen = {}
    for customer in ("c1", "c2", ""):
        with connection.transaction():
            connection.execute("set local role fanout_api")
            connection.execute("select set_config('fanout.customer_id', %s, true)", [customer])
            seen[customer] = total(connection).attempts
    assert seen == {"c1": 1, "c2": 0, "": 0}


def test_a_record_that_postgres_refuses_counts_nothing(connection):
    records = [taken(0, HourCounts(attempts=1, error_classes={"\0": 1})), taken(1, HourCounts(attempts=1, durations={0: 1}))]
    assert writer.write(connection, records, archive.KEPT, now=archive.NOW).refused == 1
    assert total(connection) == HourCounts(attempts=1, durations={hourly_counts.bucket(0): 1})


def test_roles_that_archive_may_count_after_the_migration(empty_database):
    """A role of the version before has no right on the new table. Without it, archiving would stand still."""
    wanted, role = migrate.migrations(), f"archive_{uuid.uuid4().hex[:8]}"
    [place] = [number for number, migration in enumerate(wanted) if migration.name.endswith("_statistics")]
    with connect.connect(settings.DatabaseSettings(url=empty_database)) as opened:
        migrate.migrate(opened, wanted[:place])
        opened.execute(f"create role {role}")
        opened.execute(f"grant insert on attempts to {role}")
        migrate.migrate(opened, wanted)
        opened.execute(f"set role {role}")
        hourly_statistics.add(
            opened, [{("c1", "ep1", HOUR): HourCounts(attempts=1)}] * 2, today=archive.NOW.date(), retention_days=9
        )
        hourly_statistics.delete_old(opened, archive.NOW.date() + DAY)
