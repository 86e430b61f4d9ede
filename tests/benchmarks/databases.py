"""An empty registry in a Postgres of its own, for one benchmark."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from delivery.config import settings
from fanout.local import postgres_server
from subscriptions_db.postgres import connect, migrate


@contextlib.contextmanager
def migrated() -> Iterator[tuple[settings.DatabaseSettings, connect.Connection]]:
    """Yield the settings of a migrated database, and a connection of its owner. Postgres ends with the context."""
    with tempfile.TemporaryDirectory() as folder:
        server = postgres_server.EmbeddedPostgres(Path(folder) / "data")
        server.start()
        try:
            database = settings.DatabaseSettings(url=server.url)
            with connect.connect(database) as connection:
                migrate.migrate(connection)
                yield database, connection
        finally:
            server.stop()
