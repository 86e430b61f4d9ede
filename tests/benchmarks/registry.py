"""Measure the registry at full size: the first apply, the full read, the read of a change, what is broadcast.

Run: `python -m tests.benchmarks.registry`. 30,000 tenants, 10,000 endpoints, 100,000 subscriptions with 460,000 scope rows, in
a real Postgres of its own.
"""

from __future__ import annotations

import gc
import pickle
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from delivery.config import settings
from delivery.webhooks.http import guard
from subscriptions_db.manifest import manifest
from subscriptions_db.postgres import connect
from subscriptions_db.registration import apply
from subscriptions_db.secrets import keyring
from subscriptions_db.snapshot import registry_reader
from tests.benchmarks import databases

TENANTS, CUSTOMERS, ENDPOINTS, SUBSCRIPTIONS, EVENT_TYPES = 30_000, 1_000, 10_000, 100_000, 500
ROUNDS = 5


def document(rng: random.Random) -> dict[str, Any]:
    """Return a manifest of full size."""
    return {
        "tenants": [{"id": f"tenant-{n}"} for n in range(TENANTS)],
        "customers": [{"id": f"customer-{n}"} for n in range(CUSTOMERS)],
        "endpoints": [
            {"id": f"endpoint-{n}", "customer": f"customer-{n % CUSTOMERS}", "url": f"https://hooks{n}.example.com/in"}
            for n in range(ENDPOINTS)
        ],
        "subscriptions": [
            {"id": f"sub-{n}", "endpoint": f"endpoint-{n % ENDPOINTS}", "event_type": f"type.{rng.randrange(EVENT_TYPES)}"}
            | _scope(n, rng)
            for n in range(SUBSCRIPTIONS)
        ],
    }


def _scope(number: int, rng: random.Random) -> dict[str, Any]:
    if number % 200 == 199:
        return {"tenants": [f"tenant-{n}" for n in rng.sample(range(TENANTS), 100)]}
    if number % 10 == 0:
        return {"everything": True}
    if number % 10 < 8:
        return {"tenants": [f"tenant-{n}" for n in rng.sample(range(TENANTS), 5)]}
    return {"sub_tenants": {f"tenant-{rng.randrange(TENANTS)}": ["100", "200", "300"]}}


@contextmanager
def timed(what: str) -> Iterator[None]:
    started, started_cpu = time.perf_counter(), time.process_time()
    yield
    print(f"{what:40} {time.perf_counter() - started:8.3f} s   {time.process_time() - started_cpu:8.3f} s CPU here")


def main() -> None:
    """Print one line for each measurement."""
    address_guard = guard.Guard()
    ring = keyring.KeyRing.from_settings(settings.KeysSettings(ring={"k1": keyring.generate()}))
    with timed("check the manifest"):
        wanted = manifest.check(document(random.Random(1)), address_guard)
    with databases.migrated() as (_, connection):
        with timed("first apply"):
            apply.apply(connection, wanted, ring)
        with timed("second apply, nothing differs"):
            apply.apply(connection, wanted, ring)
        rows = connection.execute("select count(*) as rows, pg_total_relation_size('revisions') as bytes from revisions")
        print("log:", rows.fetchone())
        connection.execute("analyze")
        _measure_reads(connection, ring, address_guard)


def _measure_reads(connection: connect.Connection, ring: keyring.KeyRing, address_guard: guard.Guard) -> None:
    for _ in range(ROUNDS):
        gc.collect()
        with timed("full read"):
            base = registry_reader.read_full(connection, ring, address_guard)
    with timed("pickle"):
        pickled = pickle.dumps(base, protocol=pickle.HIGHEST_PROTOCOL)
    print(f"{'snapshot pickled':40} {len(pickled) / 1e6:8.1f} MB; {len(base.subscriptions)} subscriptions")
    times = []
    for number in range(50):
        connection.execute("update subscriptions set status = 'paused' where subscription_id = %s", [f"sub-{number}"])
        started = time.perf_counter()
        changes = registry_reader.read_changes(connection, ring, address_guard, since=base.revision)
        times.append(time.perf_counter() - started)
        if changes is None or len(changes) != number + 1:
            raise AssertionError("a change was missed")
    print(f"{'changes, 1 to 50 rows: median, worst':40} {statistics.median(times) * 1e3:8.1f} ms {max(times) * 1e3:8.1f} ms")


if __name__ == "__main__":
    main()
