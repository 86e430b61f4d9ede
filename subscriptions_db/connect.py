"""Connect to Postgres, and translate its errors in one place.

Runs on the driver and in the command.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg.rows import dict_row

from delivery import errors, settings

Connection = psycopg.Connection[dict[str, Any]]


@contextlib.contextmanager
def connect(database: settings.Database, *, application_name: str = "fanout") -> Iterator[Connection]:
    """Yield an autocommitting connection whose rows are dictionaries; raise RegistryUnavailable when there is none."""
    with translating():
        connection: Connection = psycopg.connect(
            database.url.get_secret_value(),
            autocommit=True,
            connect_timeout=max(2, int(database.connect_timeout_s)),
            application_name=application_name,
            # A half-open socket is noticed within some seconds instead of hours.
            keepalives_idle=5,
            keepalives_interval=2,
            keepalives_count=3,
            options=f"-c statement_timeout={int(database.statement_timeout_s * 1000)}",
            row_factory=dict_row,
        )
    with connection:
        yield connection


@contextlib.contextmanager
def translating() -> Iterator[None]:
    """Turn psycopg's errors into ours. No cause is kept where its text could hold the connection URL."""
    try:
        yield
    except psycopg.errors.IntegrityError as exc:
        detail = exc.diag.message_detail or exc.diag.message_primary
        raise errors.RegistrationError(exc.diag.constraint_name or "registry", str(detail)) from exc
    except psycopg.errors.UndefinedTable as exc:
        raise errors.RegistryOutdated("the registry has no tables yet: run `fanout db migrate`") from exc
    except (psycopg.OperationalError, psycopg.InterfaceError) as exc:
        said = (exc.diag.message_primary or type(exc).__name__) if isinstance(exc, psycopg.Error) else type(exc).__name__
        raise errors.RegistryUnavailable(f"Postgres does not answer ({said}): start it, or set database.url") from None
