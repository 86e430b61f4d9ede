"""Compare the two ways in which workers get the registry: the whole of it broadcast, or looked up in Postgres and kept a while.

Run: `python -m tests.benchmarks.snapshot_sources [--sizes 1000,…] [--json FILE] [--plot FILE.svg]`. A real Postgres, a real
follower, each worker's figures from a process of its own; no Kafka and no Spark session. A million subscriptions take half an
hour. What it found is in docs/adr/0007-broadcast-or-look-up.md.
"""

from __future__ import annotations

import argparse
import pickle
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cachetools
import orjson

from delivery.config import plan_builder, settings
from delivery.registry_model import Revision
from fanout.local import postgres_server, stack
from subscriptions_db.following import lookup_source as stage
from subscriptions_db.following import registry_follower as following
from subscriptions_db.postgres import connect, migrate
from subscriptions_db.registration import registered_rows
from subscriptions_db.secrets import keyring
from subscriptions_db.snapshot import registry_reader
from tests.benchmarks import population, snapshot_sources_plot
from tests.benchmarks import snapshot_sources_worker as worker

SIZES = (1_000, 10_000, 100_000, 1_000_000)
CHURNS = (0, 10, 1_000)
"""Changed subscriptions a second."""
EVENTS_PER_S = 2_500
"""In one worker: the mission's average of 5,000 on two of them, and its peak of 50,000 on twenty."""
TTL_S = 30.0
TTLS_S = (5.0, 30.0, 300.0)
MAX_ANSWERS = settings.SnapshotSettings().lookup_max_answers
PROBES = 15
PROBING_S = 60.0
COMMITS_PER_S = 50


def main() -> None:
    """Measure each size and print it; write the figures and the plot where asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=lambda text: tuple(map(int, text.split(","))), default=SIZES)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    figures: dict[str, Any] = {"queries_per_s": [misses(rate, ttl) for rate in (250, EVENTS_PER_S) for ttl in TTLS_S]}
    print(figures)
    figures["sizes"] = []
    with tempfile.TemporaryDirectory() as folder:
        server = postgres_server.EmbeddedPostgres(Path(folder) / "postgres")
        server.start()
        try:
            for size in arguments.sizes:
                figures["sizes"].append(measured(server, size, Path(folder)))
                print(
                    orjson.dumps(figures["sizes"][-1], option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode(),
                    flush=True,
                )
                if arguments.json:  # after each, because the last takes long
                    arguments.json.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))
        finally:
            server.stop()
    if arguments.plot:
        snapshot_sources_plot.draw(orjson.loads(orjson.dumps(figures, option=orjson.OPT_NON_STR_KEYS)), arguments.plot)


def measured(server: postgres_server.EmbeddedPostgres, size: int, folder: Path) -> dict[str, Any]:
    """Return the figures of one size."""
    server.create_database(f"of_{size}")
    config = settings.Settings.model_validate(
        {
            "database": {"url": server.url_of(f"of_{size}"), "statement_timeout_s": 3600},
            "keys": {"ring": {"benchmark": stack.new_key()}},
            "snapshot": {"lookup_ttl_s": 86_400},  # the window is what a TTL's events are; the time they take here is not
        }
    )
    ring, guard = keyring.KeyRing.from_settings(config.keys), plan_builder.guard_of(config.delivery)
    with connect.connect(config.database) as connection:
        migrate.migrate(connection)
        population.load(connection, ring, size, random.Random(size))
        began = time.perf_counter()
        base = registry_reader.read_full(connection, ring, guard)
        read_s = time.perf_counter() - began
        revision = Revision(registered_rows.revision(connection))
    file = folder / f"{size}.pickle"
    with file.open("wb") as pickled:
        pickle.dump(base, pickled, pickle.HIGHEST_PROTOCOL)
    del base
    events = population.events(int(EVENTS_PER_S * TTL_S), random.Random(1))
    churns = tuple(churn for churn in CHURNS if churn)
    broadcast = in_a_worker(
        worker.Broadcast(file=file, events=events, types=population.TYPES, churns=churns, rebase_rows=following.REBASE_ROWS)
    )
    broadcast |= {"read_s": read_s, "pickle_mb": file.stat().st_size / 1e6}
    source = stage.LookupSource(
        database=config.database,
        keys=config.keys,
        guard=guard,
        ttl_s=config.snapshot.lookup_ttl_s,
        max_answers=MAX_ANSWERS,
        revision=revision,
    )
    looked_up = in_a_worker(worker.LookUp(source=source, events=events))
    with changing(config, size, max(CHURNS)):
        few = in_a_worker(worker.LookUp(source=source, events=events[: len(events) // 20]))
    return {
        "subscriptions": size,
        "broadcast": broadcast | {"churn_us": {churn: over_a_cycle(size, broadcast, churn) for churn in CHURNS}},
        "broadcast_effect_s": {churn: effect_s(config, size, churn) for churn in CHURNS},
        "look_up": looked_up,
        "look_up_ms_churned": few["look_up_ms"],
    }


def over_a_cycle(size: int, broadcast: dict[str, Any], churn: int) -> float:
    """Return CPU µs per event of a worker from one broadcast to the next.

    Deltas come until they are worth a rebase. Then nothing comes while the driver reads, then the new broadcast.
    """
    warm_us = broadcast["warm_us"]
    if not churn:
        return warm_us
    delta_us = broadcast["delta_us"][str(churn)]
    if size < following.REBASE_ROWS:
        return delta_us  # there are never enough changed rows
    deltas_s = following.REBASE_ROWS / churn
    events = (deltas_s + broadcast["read_s"]) * EVENTS_PER_S
    deltas_cost_us = (delta_us - warm_us) * deltas_s * EVENTS_PER_S
    rebase_cost_us = broadcast["first_event_cpu_s"] * 1e6 + (broadcast["cold_us"] - warm_us) * min(worker.WARM_EVENTS, events)
    return warm_us + (deltas_cost_us + rebase_cost_us) / events


def in_a_worker(task: worker.Broadcast | worker.LookUp) -> dict[str, Any]:
    """Return what a fresh process makes of the task."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.snapshot_sources_worker"],
        input=pickle.dumps(task),
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, Any] = orjson.loads(done.stdout)
    return found


def effect_s(config: settings.Settings, size: int, churn: int) -> dict[str, float]:
    """Return how long after its commit a change is known to the driver, while `churn` others a second are made."""
    stop = threading.Event()
    follower = following.Follower(config, stop=stop)
    follower.start()
    follower.current()
    taken: list[float] = []
    probing_until = time.monotonic() + PROBING_S
    with changing(config, size, churn), connect.connect(config.database) as connection:
        time.sleep(2 if churn else 0)  # the churn is under way
        while len(taken) < PROBES and time.monotonic() < probing_until:
            connection.execute("update subscriptions set status = 'paused' where subscription_id = 'sub-0000000'")
            committed, revision = time.perf_counter(), registered_rows.revision(connection)
            while (known := follower.current()) is not None and known.revision < revision:
                time.sleep(0.001)
            taken.append(time.perf_counter() - committed)
            time.sleep(random.random() * 0.2)
    stop.set()
    follower._thread.join()
    return {"median": statistics.median(taken), "worst": max(taken)}


@contextmanager
def changing(config: settings.Settings, size: int, churn: int) -> Iterator[None]:
    """Change so many subscriptions a second, meanwhile."""
    stop = threading.Event()

    def change() -> None:
        rng = random.Random(churn)
        due = time.monotonic()
        commits_per_s = min(churn, COMMITS_PER_S)
        with connect.connect(config.database) as connection:
            while not stop.is_set():
                ids = [f"sub-{number:07}" for number in rng.sample(range(1, size), min(size - 1, churn // commits_per_s))]
                connection.execute(
                    "update subscriptions set status = case status when 'active' then 'paused' else 'active' end"
                    " where subscription_id = any (%s)",
                    [ids],
                )
                due += 1 / commits_per_s
                stop.wait(max(0.0, due - time.monotonic()))

    thread = threading.Thread(target=change)
    if churn:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        if churn:
            thread.join()


def misses(events_per_s: int, ttl_s: float) -> dict[str, float]:
    """Return the queries a second of one worker, in the second TTL after its start, by a clock that goes with the events."""
    now = 0.0
    answers: cachetools.TTLCache[tuple[str, str | None], bool] = cachetools.TTLCache(MAX_ANSWERS, ttl_s, timer=lambda: now)
    count = int(events_per_s * ttl_s)
    asked = 0
    for number, (event_type, tenant_id, *_) in enumerate(population.events(2 * count, random.Random(2))):
        now = number / events_per_s
        for key in ((event_type, None), (event_type, tenant_id)):
            if answers.get(key) is None:
                answers[key] = True
                asked += number >= count
    return {"events_per_s": events_per_s, "ttl_s": ttl_s, "queries_per_s": asked / ttl_s, "answers": len(answers)}


if __name__ == "__main__":
    main()
