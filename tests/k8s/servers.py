"""Kafka and Postgres of the user: processes of this machine, at the address of a node, where pods and tests reach them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg

from fanout.jvm import jars
from fanout.local import kafka_server, postgres_server
from tests.k8s.cluster import layout
from tests.support.relay import Relay


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Addresses of the servers. Postgres listens on a Unix socket only, so that a relay carries the connections of pods."""

    kafka: str
    postgres: postgres_server.EmbeddedPostgres
    postgres_port: int

    def url(self, database: str = postgres_server.DATABASE, *, user: str = "postgres") -> str:
        """Return the URL of a database for pods."""
        return f"postgresql://{user}@{layout.CONTROL_PLANE}:{self.postgres_port}/{database}"


@contextlib.contextmanager
def started(folder: Path) -> Iterator[Servers]:
    """Start both in a folder, and end them."""
    broker = kafka_server.EmbeddedKafka(folder / "kafka", libraries=jars.ensure(), host=layout.CONTROL_PLANE)
    database = postgres_server.EmbeddedPostgres(folder / "postgres")
    with contextlib.ExitStack() as stack:
        stack.callback(broker.stop)
        broker.start()
        stack.callback(database.stop)
        database.start()
        with psycopg.connect(database.url) as connection:
            relay = Relay(f"{connection.info.host}/.s.PGSQL.{connection.info.port}", layout.CONTROL_PLANE)
        stack.callback(relay.close)
        yield Servers(kafka=broker.bootstrap_servers, postgres=database, postgres_port=relay.port)
