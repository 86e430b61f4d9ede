"""Measure the statistics of a million deliveries: CPU of `fanout archive` and of Postgres for an attempt, rows, and requests.

Run: `python -m tests.benchmarks.statistics [deliveries]`. A day of deliveries to 200 endpoints of 20 customers, two in a
hundred of them failed, is archived 1,000 attempts together, ten of an endpoint. Rounds with and without statistics alternate.
Then 92 days of one customer are read, as the API reads them.
"""

from __future__ import annotations

import datetime as dt
import random
import statistics as figures
import sys
import time

import psutil

from delivery.webhooks.results import log_entries, log_records
from subscriptions_db.api.deliveries import statistics as answers
from subscriptions_db.archive.ingest import archived_rows, statistics, writer
from subscriptions_db.archive.ingest.archived_rows import ArchivedRecord
from subscriptions_db.archive.search import statistics as kept_statistics
from subscriptions_db.archive.search.statistics import Granularity
from subscriptions_db.postgres import connect
from tests.benchmarks import databases
from tests.support import records

ENDPOINTS, CUSTOMERS, TOGETHER, OF_AN_ENDPOINT, ROUNDS, REQUESTS = 200, 20, 1000, 10, 10, 300
NOW = dt.datetime(2026, 5, 10, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)
SIZE = "select count(*) as rows, pg_total_relation_size('delivery_statistics') as bytes from delivery_statistics"


def entry(rng: random.Random, moment: dt.datetime) -> log_entries.AttemptEntry:
    """Return an attempt that took some 30 ms, some 100 ms after its event."""
    at_ms, failed = round(moment.timestamp() * 1000), rng.random() < 0.02
    return records.entry(
        log_entries.AttemptEntry,
        started_at_ms=at_ms,
        appended_at_ms=at_ms - round(rng.lognormvariate(4.6, 0.7)),
        duration_ms=round(rng.lognormvariate(3.4, 0.6), 1),
        status=500 if failed else 200,
        error_class="server_error" if failed else None,
    )


def written(rng: random.Random, offset: int, moment: dt.datetime, *, counted: bool) -> list[ArchivedRecord]:
    """Return the records of one transaction."""
    made = []
    for number in range(TOGETHER // OF_AN_ENDPOINT):
        endpoint = rng.randrange(ENDPOINTS)
        log = records.log(
            *(entry(rng, moment) for _ in range(OF_AN_ENDPOINT)),
            endpoint_id=f"ep{endpoint}",
            customer_id=f"c{endpoint % CUSTOMERS}",
        )
        assert isinstance(log, log_records.LogRecord)
        made.append(
            ArchivedRecord(
                topic="attempts",
                partition=0,
                offset=offset + number,
                attempts=archived_rows.attempt_rows(log, moment),
                statistics=statistics.of_log(log, moment) if counted else {},
            )
        )
    return made


def cpu_s(backend: psutil.Process) -> tuple[float, float]:
    """Return the CPU seconds of this process and of its session's process of Postgres."""
    return time.process_time(), sum(backend.cpu_times()[:2])


def write(connection: connect.Connection, deliveries: int) -> None:
    """Archive the deliveries, and print the CPU of both processes for an attempt."""
    rng, backend = random.Random(7), psutil.Process(connection.info.backend_pid)
    took: dict[bool, list[list[float]]] = {False: [], True: []}
    transactions, offset = deliveries // TOGETHER, 0
    for number in range(ROUNDS):
        for counted in (False, True):
            parts = []
            for step in range(transactions // ROUNDS):
                moment = NOW + DAY * (number * (transactions // ROUNDS) + step) / transactions
                parts.append(written(rng, offset, moment, counted=counted))
                offset += TOGETHER // OF_AN_ENDPOINT
            kept = writer.Retention(30, 7, 90 if counted else 0)
            before = cpu_s(backend)
            for part in parts:
                writer.write(connection, part, kept, now=NOW)
            spent = [after - old for after, old in zip(cpu_s(backend), before, strict=True)]
            took[counted].append([seconds / (len(parts) * TOGETHER) * 1e6 for seconds in spent])
    for counted, rounds in took.items():
        of_process, of_backend = zip(*rounds, strict=True)
        print(
            f"statistics {counted}: writing an attempt takes {figures.median(of_process):.1f} µs CPU of the process "
            f"({min(of_process):.1f} to {max(of_process):.1f}), {figures.median(of_backend):.1f} of Postgres "
            f"({min(of_backend):.1f} to {max(of_backend):.1f})"
        )


def fill(connection: connect.Connection, days: int) -> None:
    """Add the same hours of one customer's endpoints again for each of the days before."""
    for back in range(1, days):
        connection.execute(
            "insert into delivery_statistics select customer_id, endpoint_id, hour - make_interval(days => %s), delivered,"
            " dead_lettered, skipped, attempts, error_classes, durations, latencies from delivery_statistics"
            " where hour >= %s and customer_id = 'c1'",
            [back, NOW],
        )


def ask(connection: connect.Connection, endpoint: str | None, by: Granularity, length: dt.timedelta) -> None:
    """Print the times of requests for a time range."""
    times: list[float] = []
    backend = psutil.Process(connection.info.backend_pid)
    before = cpu_s(backend)
    for _ in range(REQUESTS):
        began = time.perf_counter()
        found = kept_statistics.read(connection, "c1", endpoint, since=NOW + DAY - length, until=NOW + DAY, by=by)
        size = len(answers.shown(found, by).model_dump_json())
        times.append((time.perf_counter() - began) * 1000)
    of_process, of_backend = ((after - old) / REQUESTS * 1000 for after, old in zip(cpu_s(backend), before, strict=True))
    p50, p99 = figures.median(times), figures.quantiles(times, n=100)[98]
    print(
        f"{endpoint or 'customer'}, {length.days} days by {by}: p50 {p50:.1f} ms, p99 {p99:.1f} ms, {size / 1024:.0f} KiB; "
        f"CPU {of_process:.1f} ms, and {of_backend:.1f} ms of Postgres"
    )


def main(deliveries: int) -> None:
    with databases.migrated() as (_, connection):
        write(connection, deliveries)
        print(connection.execute(SIZE).fetchone())
        connection.execute("vacuum analyze delivery_statistics")
        print(connection.execute(SIZE).fetchone(), "after vacuum")
        fill(connection, 92)
        connection.execute("vacuum analyze delivery_statistics")
        for endpoint in ("ep1", None):
            for by, days in ((Granularity.HOUR, 1), (Granularity.HOUR, 31), (Granularity.DAY, 92)):
                ask(connection, endpoint, by, dt.timedelta(days=days))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
