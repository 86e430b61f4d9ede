"""The HTTP API over a registry of 20,000 subscriptions, for benchmarks of it: Postgres is a process of its own."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

from delivery.config import service_settings, settings
from delivery.webhooks.http import guard
from subscriptions_db.manifest import manifest
from subscriptions_db.postgres import connect
from subscriptions_db.registration import apply
from subscriptions_db.secrets import keyring
from tests.benchmarks import databases, registry
from tests.integration.api.world import LOGIN, login_of

registry.SUBSCRIPTIONS = 20_000


@contextlib.contextmanager
def registered() -> Iterator[tuple[settings.Settings, connect.Connection]]:
    """Yield the settings of a server over it, and a connection of the owner."""
    with databases.migrated() as (database, connection):
        config = settings.Settings(
            database=database,
            keys=settings.KeysSettings(ring={"k1": keyring.generate()}),
            api=service_settings.ApiSettings(port=0, database_url=login_of(database.url.get_secret_value())),
        )
        connection.execute(LOGIN)
        wanted = manifest.check(registry.document(random.Random(1)), guard.Guard())
        with registry.timed("apply"):
            apply.apply(connection, wanted, keyring.KeyRing.from_settings(config.keys))
        yield config, connection
