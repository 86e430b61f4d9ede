"""Dead letters in the archive, and customers who may poll them: what a flood of polls finds."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator, Sequence

import orjson

from load_tests.harness import polling
from subscriptions_db.api.contract import keys
from subscriptions_db.api.contract.principals import Scope
from subscriptions_db.archive.ingest import archived_rows, writer
from subscriptions_db.archive.search import consumers
from subscriptions_db.archive.search.selection import DeadLetterSearch
from subscriptions_db.postgres import connect

KEPT = writer.Retention(letters=30, attempts=7)
TOPIC = "letters-of-no-lane"
"""Where they are said to come from: `fanout archive` is not to take them for a part of a topic that it follows."""
TOGETHER = 1_000
PAYLOAD_BYTES, DETAIL_BYTES = 450, 500


def customers(count: int) -> list[str]:
    """Return who polls."""
    return [f"customer-{number}" for number in range(count)]


def write(connection: connect.Connection, of: Sequence[str], count: int, *, seed: int) -> None:
    """Write letters of these customers, evenly, as `fanout archive` does."""
    rng, now = random.Random(seed), dt.datetime.now(dt.UTC)
    made = _letters(of, count, rng, now)
    while together := [taken for _, taken in zip(range(TOGETHER), made, strict=False)]:
        writer.write(connection, together, KEPT, now=now)


def admit(connection: connect.Connection, of: Sequence[str]) -> list[str]:
    """Return a poller's key for each customer, who has a consumer. They are made where they are missing."""
    with connection.transaction():
        for customer_id in of:
            connection.execute("insert into customers (customer_id) values (%s) on conflict do nothing", [customer_id])
            consumers.create(connection, customer_id, polling.CONSUMER, DeadLetterSearch())
        made = [keys.create(connection, customer_id=customer_id, scope=Scope.POLLER) for customer_id in of]
    return [key.text.reveal().decode() for key in made]


def _letters(of: Sequence[str], count: int, rng: random.Random, now: dt.datetime) -> Iterator[archived_rows.ArchivedRecord]:
    for number in range(count):
        told = {"event_id": f"event-{number}", "attempts": [{"attempt": 1, "status": 500, "response": "x" * DETAIL_BYTES}]}
        row = archived_rows.DeadLetterRow(
            customer_id=of[number % len(of)],
            endpoint_id=f"endpoint-{number % len(of)}",
            tenant_id="t0",
            event_type="load.0",
            reason="server_error",
            webhook_id=f"msg_{number:032x}",
            dead_lettered_at=now,
            payload=rng.randbytes(PAYLOAD_BYTES),
            letter=orjson.dumps(told),
        )
        yield archived_rows.ArchivedRecord(topic=TOPIC, partition=0, offset=number, letter=row)
