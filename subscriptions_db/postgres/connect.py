"""Connect to Postgres, and translate its errors in one place.

Runs on the driver, in the command, and in executors that look up.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import tenacity
from psycopg.rows import dict_row

from delivery import errors
from delivery.config import settings
from subscriptions_db.postgres import constraints

log = logging.getLogger(__name__)

Connection = psycopg.Connection[dict[str, Any]]

HALF_OPEN_MS = 11_000
"""A connection on which the other side acknowledges nothing for so long is given up, where Linux would try for 15 minutes."""


@contextlib.contextmanager
def connect(database: settings.Database, *, application_name: str = "fanout") -> Iterator[Connection]:
    """Yield an autocommitting connection whose rows are dictionaries; raise RegistryUnavailable when there is none."""
    with translating(), refusing_bad_urls():
        connection: Connection = psycopg.connect(
            database.url.get_secret_value(), row_factory=dict_row, **options(database, application_name=application_name)
        )
    with connection:
        yield connection


def options(database: settings.Database, *, application_name: str) -> dict[str, Any]:
    """Return how every connection is made."""
    return {
        "autocommit": True,
        "connect_timeout": max(2, int(database.connect_timeout_s)),
        "application_name": application_name,
        # Keepalives for who only listens; who has asked something waits for an acknowledgement, and TCP sends no keepalives.
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": HALF_OPEN_MS,
        "options": f"-c statement_timeout={int(database.statement_timeout_s * 1000)}",
    }


@contextlib.contextmanager
def together(connection: Connection) -> Iterator[None]:
    """Do all inside or nothing: in the caller's transaction, if there is one, without the two round trips of a savepoint."""
    is_in_one = connection.info.transaction_status is not psycopg.pq.TransactionStatus.IDLE
    with contextlib.nullcontext() if is_in_one else connection.transaction():
        yield


@contextlib.contextmanager
def one_moment(connection: Connection) -> Iterator[None]:
    """Read inside as of one moment, whatever is committed meanwhile. Nothing can be written."""
    with translating(), connection.transaction():
        connection.execute("set transaction isolation level repeatable read, read only")
        yield


def patiently(stop: threading.Event | None = None) -> tenacity.Retrying:
    """Return what calls a function until Postgres is there and migrated. After `stop` is set it raises tenacity.RetryError."""
    stop = stop or threading.Event()
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type((errors.RegistryUnavailable, errors.RegistryOutdated)),
        wait=tenacity.wait_exponential(multiplier=0.2, max=5),
        sleep=tenacity.sleep_using_event(stop),
        stop=tenacity.stop_when_event_set(stop),
        before_sleep=_log_absence,
    )


def for_at_most(seconds: float) -> tenacity.Retrying:
    """Return what tries until Postgres answers, for so long, and then raises what it met last."""
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(errors.RegistryUnavailable),
        wait=tenacity.wait_fixed(1),
        stop=tenacity.stop_after_delay(seconds),
        reraise=True,
    )


def _log_absence(state: tenacity.RetryCallState) -> None:
    if state.outcome is not None:
        log.warning("registry not read: %s", state.outcome.exception())


@contextlib.contextmanager
def translating() -> Iterator[None]:
    """Turn psycopg's errors into ours. No cause is kept where its text could hold the connection URL.

    1. The data is refused: by a constraint, or because Postgres has no such text (NUL).
    2. The schema is not there.
    3. Somebody else changed the same rows, the server is a standby or we lack a right: whoever retries may succeed later.
    4. Any other failure to answer.
    """
    try:
        yield
    except psycopg.IntegrityError as exc:
        # Not what Postgres says: it names the constraint, and quotes the whole row.
        raise errors.RegistrationError(*constraints.in_words(exc)) from exc
    except psycopg.errors.UntranslatableCharacter as exc:  # JSON may have the character U+0000, and Postgres may not
        raise errors.RegistrationError("", "a text has the character NUL, which Postgres cannot keep: remove it") from exc
    except psycopg.DataError as exc:
        raise errors.RegistrationError("", f"cannot be kept: {_said(exc.diag.message_primary or str(exc))}") from exc
    except psycopg.errors.UndefinedTable as exc:
        raise errors.RegistryOutdated("the registry has no tables yet: run `fanout db migrate`") from exc
    except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected) as exc:
        raise errors.RegistryUnavailable("the same rows were changed by somebody else meanwhile: do it again") from exc
    except psycopg.errors.ReadOnlySqlTransaction as exc:
        raise errors.RegistryUnavailable("Postgres takes no changes: let database.url name the primary") from exc
    except psycopg.errors.InsufficientPrivilege as exc:
        said = _said(exc.diag.message_primary)
        raise errors.RegistryUnavailable(f"Postgres refuses ({said}): grant it to the role of database.url") from exc
    except (psycopg.OperationalError, psycopg.InterfaceError) as exc:
        said = exc.diag.message_primary or _not_connected(str(exc)) or type(exc).__name__
        raise errors.RegistryUnavailable(f"Postgres does not answer ({said}): start it, or set database.url") from None


@contextlib.contextmanager
def refusing_bad_urls() -> Iterator[None]:
    """Raise SettingsError for what is no connection URL, without quoting it."""
    try:
        yield
    except psycopg.ProgrammingError:  # libpq quotes the URL, password and all
        raise errors.SettingsError("setting database.url is not a libpq connection URL: postgresql://…") from None


_NOT_CONNECTED = (
    re.compile(r"connection to server at \"([\w.:%-]+)\"(?: \([^)]*\))?, (port \d+) failed: ([^\n@]*)(?:\n|$)"),
    re.compile(r"connection to server on (socket \"[^\"@]*\") failed: ([^\n@]*)(?:\n|$)"),
    re.compile(r"(failed to resolve host) '([\w.-]+)'"),
)
"""What libpq and psycopg say of a server that they cannot reach. Nothing with an `@` is taken: a URL whose password is not
percent-encoded has a part of the password where the host should be."""


def _not_connected(text: str) -> str:
    """Return host, port and reason of a failed connection, or nothing where the text is of another kind."""
    for pattern in _NOT_CONNECTED:
        if found := pattern.search(text):
            return _said(" ".join(found.groups()))
    return ""


def _said(text: str | None) -> str:
    """Return what Postgres says as one line."""
    return " ".join((text or "").split())
