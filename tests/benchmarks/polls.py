"""Measure polls over HTTP: a million dead letters of 1,000 customers, and a poller of each of them.

Run: `python -m tests.benchmarks.polls [--json FILE] [--polls-per-s 100] [--seconds 30] …`. `fanout serve`, Postgres and the
pollers are processes of their own and share the machine. Half of the polls are pages, read on by their cursors, and half are
leases by a consumer, whose letters are acknowledged. A poll begins when it is due; its latency counts from then on, and that of
an acknowledgement from when its lease was answered.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import orjson

from delivery.config import settings
from fanout.local import kafka_server, postgres_server, process, stack
from load_tests.harness import platform, usage
from load_tests.polls import letter_archive, polling_customers
from subscriptions_db.postgres import connect, migrate
from tests.benchmarks import dead_letters
from tests.integration.api.world import LOGIN, login_of

CUSTOMERS = letter_archive.customers(dead_letters.CUSTOMERS)


@contextlib.contextmanager
def served(folder: Path, url: str, port: int) -> Iterator[platform.Command]:
    """Run `fanout serve` with the login that it has in production."""
    (folder / "local.toml").touch()
    probes = kafka_server.free_port()
    overrides = {
        "database.url": url,
        "keys.ring": f"k1={stack.new_key()}",
        "api.database_url": login_of(url),
        "api.port": str(port),
        "metrics.port": str(probes),
    }
    with process.running(folder, "serve", log="serve.log", overrides=overrides) as started:
        serve = platform.Command(started, probes, folder / "serve.log")
        serve.wait_until_ready()
        yield serve


def main() -> None:
    """Measure and print; also as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--letters", type=int, default=dead_letters.LETTERS)
    parser.add_argument("--polls-per-s", type=float, default=100)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--limit", type=int, default=20, help="letters of a poll; the API's default")
    parser.add_argument("--leases", type=float, default=0.5, help="share of the polls")
    parser.add_argument("--warm-up", type=float, default=10, help="seconds before those that are measured")
    parser.add_argument("--seconds", type=float, default=30)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), kafka_server.free_port()
        server = postgres_server.EmbeddedPostgres(folder / "data")
        server.start()
        try:
            with connect.connect(settings.DatabaseSettings(url=server.url)) as connection:
                migrate.migrate(connection)
                connection.execute(LOGIN)
                dead_letters.fill(connection, random.Random(1), asked.letters)
                keys = letter_archive.admit(connection, CUSTOMERS)
            polls = polling_customers.Polls(
                port=port,
                keys=keys,
                per_s=asked.polls_per_s,
                connections=asked.connections,
                limit=asked.limit,
                leases=asked.leases,
            )
            with served(folder, server.url, port) as serve, polling_customers.Pollers(polls) as pollers:
                time.sleep(asked.warm_up)
                meters = {"serve": serve.meter, "postgres": usage.Meter(server.pid)}
                before = {of: meter.read() for of, meter in meters.items()}
                pollers.reset()
                time.sleep(asked.seconds)
                spent = {of: meter.read().since(before[of]) for of, meter in meters.items()}
                report = pollers.report()
        finally:
            server.stop()
    cpu_s = {of: used.python_s for of, used in spent.items()} | {"pollers": report.cpu_s}
    options = {name: value for name, value in vars(asked).items() if name != "json"}
    found = {**options, **report.document(), "cpu_s": {of: round(seconds, 1) for of, seconds in cpu_s.items()}}
    document = orjson.dumps(found, option=orjson.OPT_INDENT_2)
    print(document.decode())
    if asked.json:
        asked.json.write_bytes(document)


if __name__ == "__main__":
    main()
