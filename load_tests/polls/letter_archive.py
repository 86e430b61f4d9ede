"""Fill the archive with dead letters, and register the customers who poll them."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator, Sequence

import orjson

from load_tests.polls import polling_customers
from subscriptions_db.api.contract import keys
from subscriptions_db.api.contract.principals import Scope
from subscriptions_db.archive.ingest import archived_rows, writer
from subscriptions_db.archive.search import consumers
from subscriptions_db.archive.search.selection import DeadLetterSearch
from subscriptions_db.postgres import connect

KEPT = writer.Retention(letters=30, attempts=7)
"""Days for which the archive keeps dead letters and attempts."""
TOPIC = "letters-of-no-lane"
"""Topic of the dead letters in the archive. The topic does not exist, so `fanout archive` reads none of its records."""
TOGETHER = 1_000
"""Most dead letters that are written to the archive at once."""
PAYLOAD_BYTES, DETAIL_BYTES = 450, 500
"""Bytes of a dead letter's payload, and of the response in its attempt history."""


def customers(count: int) -> list[str]:
    """Return the ids of the customers who poll."""
    return [f"customer-{number}" for number in range(count)]


def write(connection: connect.Connection, customer_ids: Sequence[str], count: int, *, seed: int) -> None:
    """Write `count` dead letters, distributed evenly among the customers, as `fanout archive` does."""
    rng, now = random.Random(seed), dt.datetime.now(dt.UTC)
    made = _letters(customer_ids, count, rng, now)
    while together := [taken for _, taken in zip(range(TOGETHER), made, strict=False)]:
        writer.write(connection, together, KEPT, now=now)


def admit(connection: connect.Connection, customer_ids: Sequence[str]) -> list[str]:
    """Create missing customers, and a dead letter consumer for each customer; return a new polling API key for each."""
    with connection.transaction():
        for customer_id in customer_ids:
            connection.execute("insert into customers (customer_id) values (%s) on conflict do nothing", [customer_id])
            consumers.create(connection, customer_id, polling_customers.CONSUMER, DeadLetterSearch())
        made = [keys.create(connection, customer_id=customer_id, scope=Scope.POLLER) for customer_id in customer_ids]
    return [key.text.reveal().decode() for key in made]


def _letters(
    customer_ids: Sequence[str], count: int, rng: random.Random, now: dt.datetime
) -> Iterator[archived_rows.ArchivedRecord]:
    for number in range(count):
        endpoint_id = f"endpoint-{number % len(customer_ids)}"
        attempt = {"attempt": 1, "status": 500, "response": "x" * DETAIL_BYTES}
        letter = {"event_id": f"event-{number}", "endpoint_id": endpoint_id, "attempts": [attempt]}
        row = archived_rows.DeadLetterRow(
            customer_id=customer_ids[number % len(customer_ids)],
            endpoint_id=endpoint_id,
            tenant_id="t0",
            event_type="load.0",
            reason="server_error",
            webhook_id=f"msg_{number:032x}",
            dead_lettered_at=now,
            payload=rng.randbytes(PAYLOAD_BYTES),
            letter=orjson.dumps(letter),
        )
        yield archived_rows.ArchivedRecord(topic=TOPIC, partition=0, offset=number, letter=row)
