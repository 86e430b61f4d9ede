"""Measure the statistics of a million deliveries: CPU of `fanout archive` and of Postgres for an attempt, rows, and requests.

Run: `python -m tests.benchmarks.statistics [deliveries] [--reading]`. A day of deliveries to 200 endpoints of 20 customers,
two in a hundred of them failed, is archived 1,000 attempts together, ten of an endpoint. Rounds with and without statistics
alternate. With `--reading`, there are no rounds without. Then 31 days of one customer are read over HTTP: the client is a
process of its own, and makes one request after another over one connection.
"""

from __future__ import annotations

import concurrent.futures
import datetime as dt
import http.client
import multiprocessing
import random
import statistics as figures
import sys
import time
import urllib.parse
from collections.abc import Sequence

import psutil

from delivery.config import service_settings, settings
from delivery.webhooks.http import guard
from delivery.webhooks.results import log_entries, log_records
from load_tests.harness.machine_speed import slowdown
from subscriptions_db.api.contract import keys
from subscriptions_db.api.contract.principals import Scope
from subscriptions_db.archive.ingest import archived_rows, hourly_statistics, writer
from subscriptions_db.archive.ingest.archived_rows import ArchivedRecord
from subscriptions_db.archive.search.statistics import Granularity
from subscriptions_db.manifest import manifest
from subscriptions_db.postgres import connect
from subscriptions_db.registration import apply
from subscriptions_db.secrets import keyring
from tests.benchmarks import api, databases
from tests.integration.api import world
from tests.support import records

ENDPOINTS, CUSTOMERS, TOGETHER, OF_AN_ENDPOINT, ROUNDS, REQUESTS = 200, 20, 1000, 10, 10, 300
NOW = dt.datetime(2026, 5, 10, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)
REGISTERED = {
    "customers": [{"id": "c1"}],
    "endpoints": [{"id": "ep1", "customer": "c1", "url": "https://hooks.example.com/ep1"}],
}
"""A manifest with the customer `c1` and its endpoint `ep1`. The API answers 404 for a customer or endpoint that is not
registered. The statistics themselves need no row of the registry."""
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
                statistics=hourly_statistics.of_log(log, moment) if counted else {},
            )
        )
    return made


def cpu_s(backend: psutil.Process) -> tuple[float, float]:
    """Return the CPU seconds of this process and of its session's process of Postgres."""
    return time.process_time(), sum(backend.cpu_times()[:2])


def write(connection: connect.Connection, deliveries: int, kinds: Sequence[bool]) -> None:
    """Archive the deliveries once for each of `kinds`, and print the CPU of both processes for an attempt.

    True: with statistics. False: without.
    """
    rng, backend = random.Random(7), psutil.Process(connection.info.backend_pid)
    took: dict[bool, list[list[float]]] = {counted: [] for counted in kinds}
    transactions, offset = deliveries // TOGETHER, 0
    for number in range(ROUNDS):
        for counted in kinds:
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


def latencies_ms(port: int, key: str, path: str, count: int) -> tuple[list[float], int]:
    """Return the milliseconds of each of `count` requests, from sending to the last byte, and the bytes of the last answer."""
    connection, taken, size = http.client.HTTPConnection("127.0.0.1", port, timeout=60), [], 0
    for _ in range(count):
        began = time.perf_counter()
        connection.request("GET", path, headers={"authorization": f"Bearer {key}"})
        response = connection.getresponse()
        body = response.read()
        taken.append((time.perf_counter() - began) * 1000)
        assert response.status == 200, body
        size = len(body)
    connection.close()
    return taken, size


def path_of(endpoint: str | None, by: Granularity, length: dt.timedelta) -> str:
    """Return the path and query of a request for a time range that ends with the day of the deliveries."""
    asked = {"since": (NOW + DAY - length).isoformat(), "until": (NOW + DAY).isoformat(), "by": by.value}
    return (
        ("/v1/statistics" if endpoint is None else f"/v1/endpoints/{endpoint}/statistics") + "?" + urllib.parse.urlencode(asked)
    )


def read(database: settings.DatabaseSettings, connection: connect.Connection) -> None:
    """Serve the API, and print the times of requests, one range after another: a day, and the longest ranges."""
    ring = {"k1": keyring.generate()}
    own = service_settings.ApiSettings(
        port=0, database_url=world.login_of(database.url.get_secret_value()), max_requests_per_s=1_000_000
    )
    config = settings.Settings(database=database, keys=settings.KeysSettings(ring=ring), api=own)
    connection.execute(world.LOGIN)
    apply.apply(connection, manifest.check(REGISTERED, guard.Guard()), keyring.KeyRing.from_settings(config.keys))
    key = keys.create(connection, customer_id="c1", scope=Scope.READ_ONLY).text.reveal().decode()
    postgres = psutil.Process(connection.info.backend_pid).parent()
    assert postgres
    spawning = multiprocessing.get_context("spawn")
    with world.running(config) as port, concurrent.futures.ProcessPoolExecutor(1, spawning) as client:
        for endpoint in ("ep1", None):
            for by, length in ((Granularity.HOUR, DAY), *((by, by.longest) for by in Granularity)):
                path = path_of(endpoint, by, length)
                client.submit(latencies_ms, port, key, path, 20).result()  # connections, caches
                before, slow = (time.process_time(), api.cpu_s(postgres)), slowdown()
                times, size = client.submit(latencies_ms, port, key, path, REQUESTS).result()
                after = (time.process_time(), api.cpu_s(postgres))
                of_api, of_postgres = ((new - old) / REQUESTS * 1000 for new, old in zip(after, before, strict=True))
                p50, p99 = figures.median(times), figures.quantiles(times, n=100)[98]
                print(
                    f"{path}\n    p50 {p50:.1f} ms, p99 {p99:.1f} ms, {size / 1024:.0f} KiB; CPU {of_api:.1f} ms of the API, "
                    f"{of_postgres:.1f} ms of Postgres; slowdown {slow:.2f}, load {psutil.getloadavg()[0]:.1f}",
                    flush=True,
                )


def main(deliveries: int, kinds: Sequence[bool]) -> None:
    with databases.migrated() as (database, connection):
        write(connection, deliveries, kinds)
        print(connection.execute(SIZE).fetchone())
        connection.execute("vacuum analyze delivery_statistics")
        print(connection.execute(SIZE).fetchone(), "after vacuum", flush=True)
        fill(connection, Granularity.DAY.longest.days)
        connection.execute("vacuum analyze delivery_statistics")
        read(database, connection)


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:] if text.isdecimal()]
    main(numbers[0] if numbers else 1_000_000, (True,) if "--reading" in sys.argv else (False, True))
