"""Measure the archive at full size: how fast it is written, how fast customers poll and search it.

Run: `python -m tests.benchmarks.dead_letters`. A million dead letters of 1,000 customers over 30 days, one of whom has a tenth
of all, in a real Postgres of its own; 20,000 are written as `fanout archive` does, and the others are copies of them. Polls are
made as the API makes them: in a transaction, as the role that sees one customer.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from delivery.config import settings
from subscriptions_db.archive.ingest import partitions, writer
from subscriptions_db.archive.ingest.archived_rows import ArchivedRecord, DeadLetterRow
from subscriptions_db.archive.search import archive_positions, archived_dead_letters, attempts, consumers, deliveries, receipts
from subscriptions_db.archive.search.selection import DeadLetterSearch
from subscriptions_db.postgres import connect
from tests.benchmarks import databases
from tests.support import archive, builders

LETTERS = 1_000_000
CUSTOMERS, DAYS, TOGETHER, ATTEMPTS, POLLS = 1_000, 30, 1_000, 100_000, 1_000
WRITTEN = 20_000
BIG = "customer-0"
COPY = """
insert into dead_letters
select first_position_of(%(day)s) + nextval('dead_letter_positions'), archived_at, customer_id, endpoint_id, tenant_id,
       event_type, reason, 'msg_' || md5((letter_offset + %(moved)s)::text), dead_lettered_at, payload, letter,
       letter_topic, letter_partition, letter_offset + %(moved)s
from (select * from written order by random()) as shuffled
"""
NOW = dt.datetime.now(dt.UTC)
KEPT = writer.Retention(letters=30, attempts=7)


def taken(rng: random.Random, template: DeadLetterRow, count: int) -> Iterator[ArchivedRecord]:
    for offset in range(count):
        number = 0 if offset % 10 == 0 else rng.randrange(CUSTOMERS)
        row = dataclasses.replace(
            template,
            customer_id=f"customer-{number}",
            endpoint_id=f"endpoint-{number}-{rng.randrange(5)}",
            event_type="rare.type" if offset % 10_000 == 9_990 else f"type.{rng.randrange(50)}",
            reason=rng.choice(("timeout", "server_error", "gone")),
            webhook_id=f"msg_{offset:032x}",
        )
        yield ArchivedRecord(topic="dead-letters", partition=0, offset=offset, letter=row)


def day_of(number: int, count: int) -> dt.date:
    return NOW.date() - dt.timedelta(days=DAYS - 1 - number * DAYS // count)


def fill(connection: connect.Connection, rng: random.Random, count: int) -> None:
    template = archive.letter_row(archive.letter(data=b'{"note": "%s"}' % (b"x" * 440)))
    started, cpu = time.perf_counter(), time.process_time()
    batch: list[ArchivedRecord] = []
    for letter in taken(rng, template, WRITTEN):
        batch.append(letter)
        if len(batch) == TOGETHER:
            writer.write(connection, batch, KEPT, now=NOW - dt.timedelta(days=DAYS - 1))
            batch = []
    took = time.perf_counter() - started
    print(
        f"{WRITTEN} letters written, {TOGETHER} together: {WRITTEN / took:.0f} a second, "
        f"{time.process_time() - cpu:.1f} s CPU here"
    )
    with connection.transaction():
        connection.execute("create temp table written on commit drop as select * from dead_letters")
        for number in range(1, count // WRITTEN):
            day = day_of(number * WRITTEN, count)
            partitions.create(connection, "dead_letters", day)
            connection.execute(COPY, {"day": day, "moved": number * WRITTEN})
    connection.execute("update dead_letter_day set day = %s", [NOW.date()])
    connection.execute("set statement_timeout = 0")
    connection.execute("vacuum analyze dead_letters")  # as it does by itself, after a minute or so


def fill_attempts(connection: connect.Connection) -> None:
    template = archive.taken_attempts(0, archive.outcome(at=NOW)).attempts[0]
    started = time.perf_counter()
    for first in range(0, ATTEMPTS, TOGETHER):
        attempts = [
            template._replace(
                customer_id=f"customer-{n % CUSTOMERS if n % 5 else 0}", endpoint_id=f"endpoint-{n % 7919}",
                webhook_id=f"msg_{n * 0x9E3779B97F4A7C15 % 2**128:032x}", started_at=NOW - dt.timedelta(seconds=n),
            )
            for n in range(first, first + TOGETHER)
        ]  # fmt: skip
        writer.write(
            connection, [ArchivedRecord(topic="attempts", partition=0, offset=first, attempts=attempts)], KEPT, now=NOW
        )
    print(f"{ATTEMPTS} attempts written: {ATTEMPTS / (time.perf_counter() - started):.0f} a second")


def measure(what: str, connection: connect.Connection, customers: list[str], ask: Callable[[str], Any]) -> None:
    times: list[float] = []
    cpu = time.process_time()
    for customer_id in customers:
        started = time.perf_counter()
        with connection.transaction():
            connection.execute(
                "select set_config('role', 'fanout_api', true), set_config('fanout.customer_id', %s, true)", [customer_id]
            )
            ask(customer_id)
        times.append((time.perf_counter() - started) * 1000)
    cuts = statistics.quantiles(times, n=100)
    print(
        f"{what:86} p50 {cuts[49]:6.1f} ms   p99 {cuts[98]:6.1f} ms   max {max(times):6.1f} ms   "
        f"CPU here {(time.process_time() - cpu) * 1000 / len(times):4.1f} ms"
    )


def measure_all(
    connection: connect.Connection, rng: random.Random, count: int, suffix: str = "", *, polls: int = POLLS
) -> None:
    anybody = [f"customer-{rng.randrange(CUSTOMERS)}" for _ in range(polls)]

    def browse(selection: DeadLetterSearch, after: int = 0) -> Callable[[str], Any]:
        return lambda customer_id: archived_dead_letters.browse(connection, customer_id, selection, after=after, limit=100)

    def lease(customer_id: str) -> Any:
        return consumers.lease(connection, customer_id, "bench", limit=100, lease_s=60, now=dt.datetime.now(dt.UTC))

    def remember(customer_id: str) -> None:
        given.setdefault(customer_id, []).extend(letter.receipt for letter in lease(customer_id).leased)

    def acknowledge(customer_id: str) -> Any:
        return receipts.ack(connection, customer_id, "bench", given.pop(customer_id))

    [middle] = [row["at"] for row in connection.execute("select first_position_of(%s) as at", [day_of(count // 2, count)])]
    measure(f"a page of 100 from the beginning{suffix}", connection, anybody, browse(DeadLetterSearch()))
    measure(f"a page of 100 from the middle{suffix}", connection, anybody, browse(DeadLetterSearch(), middle))
    measure(
        f"a page at the end, where nothing is{suffix}",
        connection,
        anybody,
        browse(DeadLetterSearch(), archive_positions.MAX_POSITION),
    )
    rare = browse(DeadLetterSearch(event_type="rare.type"))
    measure(f"by a rare type, of the one with a tenth of all{suffix}", connection, [BIG] * (polls // 4), rare)
    given: dict[str, list[archive_positions.ReceiptHandle]] = {}
    measure(f"lease of 100 by a consumer{suffix}", connection, anybody, remember)
    measure(f"acknowledgement of these{suffix}", connection, list(given), acknowledge)
    measure(f"lease of 100 by one with a tenth of all, unacknowledged{suffix}", connection, [BIG] * 90, lease)


def main(count: int) -> None:
    """Print one line for each measurement, of so many letters."""
    rng = random.Random(1)
    with databases.migrated() as (database, connection):
        fill(connection, rng, count)
        fill_attempts(connection)
        for number in range(CUSTOMERS):
            connection.execute("insert into customers values (%s)", [f"customer-{number}"])
            consumers.create(connection, f"customer-{number}", "bench", DeadLetterSearch())
        measure_all(connection, rng, count)
        anybody = [f"customer-{rng.randrange(CUSTOMERS)}" for _ in range(POLLS)]
        measure(
            "attempts: the newest 100", connection, anybody,
            lambda customer_id: attempts.search(connection, customer_id, attempts.AttemptSearch(), limit=100),
        )  # fmt: skip
        asked = attempts.AttemptSearch(endpoint_id="endpoint-5", error_class="none-such")
        measure(
            "attempts: of an endpoint, where none is, of the one with a fifth of all", connection, [BIG] * POLLS,
            lambda customer_id: attempts.search(connection, customer_id, asked, limit=100),
        )  # fmt: skip
        measure(
            "deliveries: the newest 50", connection, anybody,
            lambda customer_id: deliveries.search(connection, customer_id, deliveries.DeliverySearch(), limit=50),
        )  # fmt: skip
        wanted = deliveries.DeliverySearch(reason="none-such")
        measure(
            "deliveries: where none is, of the one with a fifth of all", connection, [BIG] * POLLS,
            lambda customer_id: deliveries.search(connection, customer_id, wanted, limit=50),
        )  # fmt: skip
        stop = threading.Event()
        thread = threading.Thread(target=write_on, args=(database, count, stop))
        thread.start()
        measure_all(connection, rng, count, ", while it is written", polls=POLLS // 4)
        stop.set()
        thread.join()


def write_on(database: settings.DatabaseSettings, offset: int, stop: threading.Event) -> None:
    """Archive 100 letters each 0.1 s: a thousand a second."""
    template = archive.letter_row(archive.letter(record=builders.record()))
    with connect.connect(database) as connection:
        while not stop.wait(0.1):
            batch = [
                dataclasses.replace(letter, offset=offset + n)
                for n, letter in enumerate(taken(random.Random(offset), template, 100))
            ]
            writer.write(connection, batch, KEPT, now=NOW)
            offset += 100


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else LETTERS)
