"""The HTTP API over a registry of 20,000 subscriptions, for benchmarks of it: Postgres is a process of its own."""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from delivery.config import service_settings, settings
from delivery.webhooks.http import guard
from fanout.local import postgres
from subscriptions_db.manifest import manifest
from subscriptions_db.postgres import connect, migrate
from subscriptions_db.registration import apply
from subscriptions_db.secrets import keyring
from tests.benchmarks import registry
from tests.integration.api.world import LOGIN, login_of

registry.SUBSCRIPTIONS = 20_000


@contextlib.contextmanager
def registered() -> Iterator[tuple[settings.Settings, connect.Connection]]:
    """Yield the settings of a server over it, and a connection of the owner."""
    with tempfile.TemporaryDirectory() as folder:
        server = postgres.EmbeddedPostgres(Path(folder) / "data")
        server.start()
        try:
            config = settings.Settings(
                database=settings.Database(url=server.url),
                keys=settings.Keys(ring={"k1": keyring.generate()}),
                api=service_settings.Api(port=0, database_url=login_of(server.url)),
            )
            with connect.connect(config.database) as connection:
                migrate.migrate(connection)
                connection.execute(LOGIN)
                wanted = manifest.check(registry.document(random.Random(1)), guard.Guard())
                with registry.timed("apply"):
                    apply.apply(connection, wanted, keyring.KeyRing.from_settings(config.keys))
                yield config, connection
        finally:
            server.stop()
