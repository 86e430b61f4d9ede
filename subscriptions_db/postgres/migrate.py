"""Migrate the schema to this version: numbered files, forward only, each in its own transaction.

`migrate` runs in `fanout` commands. `require_current` also runs on the driver, in the API and in `fanout archive`. After a
migration the previous version of fanout must still work.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import psycopg
import tenacity

from delivery import errors
from subscriptions_db.postgres import connect, row_security
from subscriptions_db.postgres.sql import query

ATTEMPTS = 60
"""Maximum attempts at one migration while a long transaction locks a table that the migration changes. An attempt waits for a
lock for at most two seconds."""
WAIT = tenacity.wait_random(0.5, 1.5)
"""Random seconds between two attempts at one migration."""
FOLDER = Path(__file__).parent / "migrations"


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One numbered migration file."""

    name: str
    statements: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.statements.encode()).hexdigest()


def migrations(folder: Path = FOLDER) -> list[Migration]:
    """Return the migrations of a folder, sorted by number."""
    return [Migration(name=path.stem, statements=path.read_text()) for path in sorted(folder.glob("[0-9]*.sql"))]


def migrate(
    connection: connect.Connection, wanted: list[Migration] | None = None, *, wait: tenacity.wait.WaitBaseT = WAIT
) -> list[str]:
    """Apply the missing migrations of `wanted`, and return their names. Default of `wanted`: the migrations of this version.

    If two calls run at once, the second waits for the first, and then applies only the migrations that are still missing.

    Raise RegistryOutdated, before the first migration, if an applied file was changed. Raise RegistryUnavailable if
    Postgres does not answer or a table stays locked: earlier migrations stay applied. The session has no statement timeout
    afterwards.
    """
    wanted = migrations() if wanted is None else wanted
    with connect.translated_errors():
        connection.execute(query("disable_statement_timeout"))
        connection.execute(query("migration_lock"))
        try:
            missing = _apply_missing(connection, wanted, wait)
        finally:
            if not connection.broken:  # the lock ends with the session
                connection.execute(query("migration_unlock"))
    return [migration.name for migration in missing]


def _apply_missing(connection: connect.Connection, wanted: list[Migration], wait: tenacity.wait.WaitBaseT) -> list[Migration]:
    connection.execute(query("create_migrations"))
    missing = _missing(connection, wanted)
    for migration in missing:
        for attempt in tenacity.Retrying(
            retry=tenacity.retry_if_exception_type((psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)),
            wait=wait,
            stop=tenacity.stop_after_attempt(ATTEMPTS),
            reraise=True,
        ):
            with attempt:
                _apply_one(connection, migration)
    return missing


def _apply_one(connection: connect.Connection, migration: Migration) -> None:
    """Apply a migration; raise LockNotAvailable if a lock takes longer than two seconds.

    Every later statement on a table queues behind a waiting lock request, so the request must not wait for long.
    """
    with connection.transaction():
        connection.execute(query("set_migration_lock_timeout"))
        connection.execute(migration.statements)
        connection.execute(query("record_migration"), {"name": migration.name, "sha256": migration.sha256})


def require_current(connection: connect.Connection) -> None:
    """Raise RegistryOutdated unless every migration of this version is applied unchanged. Newer migrations are allowed.

    Raise RegistryUnavailable if Postgres does not answer, or if row-level security hides customers from the login.
    """
    row_security.require_all_customers(connection)
    with connect.translated_errors():
        row = connection.execute(query("has_migrations")).fetchone()
        if row is None or not next(iter(row.values())):
            raise errors.RegistryOutdated("the registry has no tables yet, and nothing was changed: run `fanout db migrate`")
        if missing := _missing(connection, migrations()):
            names = ", ".join(migration.name for migration in missing)
            raise errors.RegistryOutdated(
                f"the registry lacks the migrations {names}, and nothing was changed: run `fanout db migrate`"
            )


def _missing(connection: connect.Connection, wanted: list[Migration]) -> list[Migration]:
    applied = {row["name"]: row["sha256"] for row in connection.execute(query("applied_migrations"))}
    for migration in wanted:
        if applied.get(migration.name, migration.sha256) != migration.sha256:
            raise errors.RegistryOutdated(
                f"migration {migration.name} was changed after it was applied, and nothing was migrated: restore the file "
                f"{FOLDER / migration.name}.sql, or install this version of fanout again"
            )
    return [migration for migration in wanted if migration.name not in applied]
