"""Customers read the statistics of their endpoints over HTTP, by hour and by day."""

import pytest

from subscriptions_db.archive.ingest import hourly_counts, writer
from subscriptions_db.archive.ingest.archived_rows import ArchivedRecord
from subscriptions_db.archive.ingest.hourly_counts import HourCounts
from tests.integration.api import world
from tests.support import archive

pytestmark = pytest.mark.integration
HOUR = int(archive.NOW.timestamp()) // 3600
RANGE = "since=2026-05-10T00:00:00Z&until=2026-05-11T00:00:00Z"
OF_AN_ENDPOINT = "/v1/endpoints/acme-orders/statistics"
NOTHING = {
    "delivered": 0, "dead_lettered": 0, "skipped": 0, "attempts": 0, "failed_attempts": 0, "error_classes": {},
    "duration_ms": None, "latency_ms": None,
}  # fmt: skip


def counted(offset, customer, endpoint, hour, **counts):
    found = {(customer, endpoint, hour): HourCounts(**counts)}
    return ArchivedRecord(topic="counted", partition=0, offset=offset, statistics=found)


@pytest.fixture(scope="module")
def served(postgres):
    quick, slow = hourly_counts.bucket(10), hourly_counts.bucket(5000)
    counts = {"delivered": 98, "attempts": 100, "error_classes": {"timeout": 2}, "durations": {quick: 98, slow: 2}}
    with world.served(postgres) as made:
        with made.registry() as opened:
            opened.execute("delete from delivery_statistics")
            records = [
                counted(0, "acme", "acme-orders", HOUR, **counts, latencies={slow: 98}),
                counted(1, "acme", "acme-orders", HOUR - 2, dead_lettered=2, skipped=3),
                counted(2, "acme", "acme-orders", HOUR - 24, skipped=4),
                counted(3, "acme", "deleted", HOUR, skipped=5),
                counted(4, "other", "other-orders", HOUR, skipped=6),
            ]
            writer.write(opened, records, archive.KEPT, now=archive.NOW)
        yield made


def test_an_endpoint_has_counts_and_percentiles_by_hour(acme):
    answer = acme.get(f"{OF_AN_ENDPOINT}?{RANGE}").json
    newest = NOTHING | {
        "delivered": 98, "attempts": 100, "failed_attempts": 2, "error_classes": {"timeout": 2},
        "duration_ms": {"p50": 10.4, "p90": 10.4, "p99": 5311.9}, "latency_ms": {"p50": 5311.9, "p90": 5311.9, "p99": 5311.9},
    }  # fmt: skip
    letters = NOTHING | {"dead_lettered": 2, "skipped": 3}
    assert answer == {
        "since": "2026-05-10T00:00:00Z", "until": "2026-05-11T00:00:00Z", "by": "hour",
        "total": newest | {"dead_lettered": 2, "skipped": 3},
        "items": [letters | {"start": "2026-05-10T10:00:00Z"}, newest | {"start": "2026-05-10T12:00:00Z"}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "skipped"),
    [
        (f"{OF_AN_ENDPOINT}?{RANGE}&by=day", [["2026-05-10T00:00:00Z", 3]]),
        (f"{OF_AN_ENDPOINT}?since=2026-05-09T05:00:00Z&until=2026-05-10T10:00:00Z&by=day",
         [["2026-05-09T00:00:00Z", 4], ["2026-05-10T00:00:00Z", 3]]),
        (f"{OF_AN_ENDPOINT}?until=2026-05-10T12:00:00Z",
         [["2026-05-09T12:00:00Z", 4], ["2026-05-10T10:00:00Z", 3]]),
        (f"/v1/statistics?{RANGE}", [["2026-05-10T10:00:00Z", 3], ["2026-05-10T12:00:00Z", 5]]),
        (f"/v1/statistics?{RANGE}&customer=acme&by=day", [["2026-05-10T00:00:00Z", 8]]),
        (OF_AN_ENDPOINT, []),
    ],
)  # fmt: skip
def test_a_range_has_the_counts_of_its_hours_or_days(acme, path, skipped):
    answer = acme.get(path)
    assert answer.status == 200, answer.text
    assert [[item["start"], item["skipped"]] for item in answer.json["items"]] == skipped
    assert answer.json["total"]["skipped"] == sum(count for _, count in skipped)


def test_the_operator_names_the_customer(operator, other):
    theirs = other.get(f"/v1/statistics?{RANGE}")
    assert theirs.json["total"]["skipped"] == 6
    assert operator.get(f"/v1/statistics?{RANGE}&customer=other").text == theirs.text
    assert operator.get(f"/v1/statistics?{RANGE}").fields == ["customer"]
    assert operator.get(f"{OF_AN_ENDPOINT}?{RANGE}").json["total"]["delivered"] == 98


@pytest.mark.parametrize(
    "asked",
    [
        "since=2026-05-10T00:00:00Z&until=2026-05-10T00:00:00Z",
        "since=2026-01-01T00:00:00Z&until=2026-05-10T00:00:00Z&by=day",
        "since=2026-04-01T00:00:00Z&until=2026-05-10T00:00:00Z",
        "since=0001-01-01T00:00:00%2B14:00",
        "since=9999-12-31T23:59:59-12:00",
        "since=8999-12-31T23:59:59Z",
    ],
)
def test_a_range_that_is_empty_or_too_long_is_refused(acme, asked):
    answer = acme.get(f"/v1/statistics?{asked}")
    assert (answer.status, answer.fields) == (422, ["since"])
