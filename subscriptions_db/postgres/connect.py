"""Connect to Postgres, and translate its errors in one place.

Runs on the driver, in executors that look up the registry, in the API, in `fanout archive` and in `fanout` commands.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import threading
from collections.abc import Iterator
from typing import Any, Self

import psycopg
import psycopg.conninfo
import tenacity
from psycopg.rows import dict_row

from delivery import errors
from delivery.config import settings
from subscriptions_db.postgres import constraints

log = logging.getLogger(__name__)

Connection = psycopg.Connection[dict[str, Any]]
"""A connection whose rows are dictionaries."""

LONGEST_WAIT_S = 5
"""Most seconds between two tries of `retry_until_available`."""
HALF_OPEN_MS = 11_000
"""Milliseconds without a TCP acknowledgement after which a connection is closed. Linux's default would take 15 minutes."""

_MISSING = (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn, psycopg.errors.UndefinedFunction)
"""Errors of a statement that needs a newer migration."""
_PREPARED_STATEMENT_CHECK = "RevalidateCachedQuery"
"""The function of Postgres that refuses a prepared statement whose columns have changed ("cached plan must not change result
type"). The text of the message depends on the server's `lc_messages`."""


class PooledConnection(psycopg.Connection[dict[str, Any]]):
    """A connection of a pool. A pool logs the error of a connection that cannot be opened, so the error has no password."""

    @classmethod
    def connect(cls, conninfo: str = "", **options: Any) -> Self:
        """Open a connection. Raise OperationalError with a text that has only the server and the reason, not the URL."""
        try:
            return super().connect(conninfo, **options)
        except psycopg.OperationalError as exc:
            raise psycopg.OperationalError(_reason(exc)) from None


@contextlib.contextmanager
def connect(
    database: settings.DatabaseSettings, *, application_name: str = "fanout", half_open_ms: int = HALF_OPEN_MS
) -> Iterator[Connection]:
    """Yield an autocommit connection whose rows are dictionaries, and close it after the block.

    `half_open_ms` are the milliseconds without a TCP acknowledgement after which the connection is closed. Raise
    RegistryUnavailable if the connection fails, and SettingsError if the URL is invalid. Errors of statements in the block are
    not translated here.
    """
    url = database.url.get_secret_value()
    with translated_errors(), valid_url_required():
        chosen = options(url, database, application_name=application_name, half_open_ms=half_open_ms)
        connection: Connection = psycopg.connect(url, row_factory=dict_row, **chosen)
    with connection:
        yield connection


def options(
    url: str, database: settings.DatabaseSettings, *, application_name: str, half_open_ms: int = HALF_OPEN_MS
) -> dict[str, Any]:
    """Return the parameters of every connection to `url`, except the URL and `row_factory`, which the caller adds.

    These parameters override parameters of the same name in the URL. The exception is `options`, the settings for the server.
    The settings in the URL are kept, and the platform's settings follow them: Postgres takes the last value of a setting. Raise
    psycopg.ProgrammingError if the URL is invalid, or has two `@`: libpq would take a part of the password for the host, and
    name it in errors.
    """
    if url.partition("://")[2].partition("?")[0].count("@") > 1:
        raise psycopg.ProgrammingError("the URL has two @")
    for_the_server = psycopg.conninfo.conninfo_to_dict(url).get("options")
    # psycopg parses a time with a time zone in the ISO style only. A database or role may have another style.
    ours = f"-c datestyle=ISO -c statement_timeout={int(database.statement_timeout_s * 1000)}"
    return {
        "autocommit": True,
        "connect_timeout": max(2, int(database.connect_timeout_s)),
        "application_name": application_name,
        # Keepalives find a dead server on an idle connection. During a query TCP sends none, so tcp_user_timeout finds it.
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": half_open_ms,
        "options": f"{for_the_server} {ours}" if for_the_server else ours,
    }


@contextlib.contextmanager
def in_transaction(connection: Connection) -> Iterator[None]:
    """Run the block in the caller's transaction, or in a new one if there is none.

    The caller's transaction gets no savepoint, which saves two round trips.
    """
    is_in_one = connection.info.transaction_status is not psycopg.pq.TransactionStatus.IDLE
    with contextlib.nullcontext() if is_in_one else connection.transaction():
        yield


@contextlib.contextmanager
def consistent_read(connection: Connection) -> Iterator[None]:
    """Run the block in a new read-only transaction on one consistent snapshot, and translate errors of Postgres.

    The connection must not be in a transaction of another isolation level: Postgres would refuse the change.
    """
    with translated_errors(), connection.transaction():
        connection.execute("set transaction isolation level repeatable read, read only")
        yield


def retry_until_available(meanwhile: str, stop: threading.Event | None = None) -> tenacity.Retrying:
    """Return a tenacity retryer that repeats a function while it raises RegistryUnavailable or RegistryOutdated.

    Each failure is logged, with `meanwhile`: a sentence that says what the platform does until a call succeeds. The waits
    between the calls grow up to 5 s. Without `stop` the retryer repeats for ever. Once `stop` is set, the retryer raises
    tenacity.RetryError at the next failure, and does not log the failure.
    """
    stop = stop or threading.Event()
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type((errors.RegistryUnavailable, errors.RegistryOutdated)),
        wait=tenacity.wait_exponential(multiplier=0.2, max=LONGEST_WAIT_S),
        sleep=tenacity.sleep_using_event(stop),
        stop=tenacity.stop_when_event_set(stop),
        before_sleep=functools.partial(_log_wait, meanwhile),
    )


def retry_for(seconds: float) -> tenacity.Retrying:
    """Return a tenacity retryer that repeats a function one second after each RegistryUnavailable.

    The retryer raises the first error that comes `seconds` or more after the start. With 0, it raises the first error. It
    raises any other error at once.
    """
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(errors.RegistryUnavailable),
        wait=tenacity.wait_fixed(1),
        stop=tenacity.stop_after_delay(seconds),
        reraise=True,
    )


def _log_wait(meanwhile: str, state: tenacity.RetryCallState) -> None:
    if state.outcome is not None:
        log.warning(
            "the registry could not be read or changed: %s. %s. The next try follows within %d s",
            state.outcome.exception(), meanwhile, LONGEST_WAIT_S,
        )  # fmt: skip


@contextlib.contextmanager
def translated_errors() -> Iterator[None]:
    """Translate psycopg's errors into the platform's (delivery/errors.py).

    A cause whose text could contain the connection URL is dropped.

    1. RegistrationError: a constraint refuses the data, or Postgres refuses a value, such as a text with NUL.
    2. RegistryOutdated: a table, a column or a function does not exist.
    3. RegistryUnavailable: a conflicting transaction, a lock that another transaction holds, a standby server, or a missing
       right.
    4. RegistryUnavailable: a migration changed the columns of a statement that this connection has prepared. A new connection
       can run the statement.
    5. RegistryUnavailable: Postgres cannot be reached, lacks a resource, ends the connection, or cancels the statement.

    psycopg's other errors are faults of this code, and pass unchanged.
    """
    try:
        with _changed_tables_noticed():
            yield
    except psycopg.IntegrityError as exc:
        # Not the text of Postgres, which quotes the whole row.
        raise errors.RegistrationError(*constraints.in_words(exc)) from exc
    except psycopg.errors.UntranslatableCharacter as exc:  # JSON may have the character U+0000, and Postgres may not
        raise errors.RegistrationError(
            "",
            "a text in the document or request contains a character that Postgres cannot store, probably NUL (U+0000). Nothing "
            "of the change was written. Search for \\u0000, in YAML also for \\0, delete each, and send the change again. If "
            "there is none, use a database with the encoding UTF8",
        ) from exc
    except psycopg.DataError as exc:
        raise errors.RegistrationError(
            "",
            f"Postgres refuses a value ({_unquoted(_said(exc.diag.message_primary or str(exc)))}), and nothing was written. "
            "Search the document or request for a value that fits this text, correct it, and send the change again",
        ) from exc
    except _MISSING as exc:
        raise errors.RegistryOutdated(
            f"Postgres lacks a part of the registry ({_said(exc.diag.message_primary)}), and the transaction was rolled back: "
            "run `fanout db migrate`. If the schema is current, send this message to the maintainers of the platform"
        ) from exc
    except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable) as exc:
        raise errors.RegistryUnavailable(
            "another transaction changed or locked the same rows or their table, and this transaction was rolled back "
            f"({_said(exc.diag.message_primary)}): try again. If that fails again, look for a long transaction in "
            "the view pg_stat_activity, and end it"
        ) from exc
    except psycopg.errors.ReadOnlySqlTransaction as exc:
        raise errors.RegistryUnavailable(
            "Postgres is read-only, and nothing was written: let the connection URL (database.url, for the API "
            "api.database_url) name the primary"
        ) from exc
    except psycopg.errors.InsufficientPrivilege as exc:
        said = _said(exc.diag.message_primary)
        raise errors.RegistryUnavailable(
            f"Postgres denies a right ({said}), and the transaction was rolled back. Grant the right to the role of the "
            "connection URL (database.url, for the API api.database_url), by the `grant` statements in docs/operations.md"
        ) from exc
    except psycopg.errors.QueryCanceled as exc:
        raise errors.RegistryUnavailable(
            f"Postgres ended a statement ({_said(exc.diag.message_primary)}), and the transaction was rolled back. Check the "
            "load of Postgres and the setting database.statement_timeout_s"
        ) from exc
    except (psycopg.OperationalError, psycopg.InterfaceError) as exc:
        raise _unavailable(exc) from None


def _unavailable(exc: psycopg.Error) -> errors.RegistryUnavailable:
    """Return the error for a server that failed, cannot be reached, or ended the connection."""
    said = _reason(exc)
    if cure := _CURES.get((exc.sqlstate or "")[:2]):
        return errors.RegistryUnavailable(
            f"the server of Postgres failed ({_said(said)}), and the transaction was rolled back. {cure}"
        )
    local = ". `fanout up` starts a Postgres for development" if _NONE_HERE.match(said) else ""
    return errors.RegistryUnavailable(
        f"Postgres cannot be reached ({said}). A transaction that was not yet committing wrote nothing. Check that Postgres "
        f"runs, and that the connection URL (database.url, for the API api.database_url) leads to it{local}"
    )


def _reason(exc: psycopg.Error) -> str:
    """Return the server's message; without one, the address and why there is no connection; else the error's class."""
    return exc.diag.message_primary or _not_connected(str(exc)) or type(exc).__name__


@contextlib.contextmanager
def _changed_tables_noticed() -> Iterator[None]:
    """Translate Postgres's error about a prepared statement with changed result columns into RegistryUnavailable."""
    try:
        yield
    except psycopg.errors.FeatureNotSupported as exc:
        if exc.diag.source_function != _PREPARED_STATEMENT_CHECK:
            raise
        raise errors.RegistryUnavailable(
            "the tables changed, probably by `fanout db migrate`, after this connection had prepared a statement. The "
            "statement was not run, and the transaction was rolled back: a new connection can run it, so try again"
        ) from exc


def needs_replacement(connection: Connection, exc: errors.RegistryUnavailable) -> bool:
    """Return True if later statements need a new connection after this error.

    The connection is closed, or Postgres refuses its prepared statements, because their tables changed.
    """
    return connection.closed or isinstance(exc.__cause__, psycopg.errors.FeatureNotSupported)


@contextlib.contextmanager
def valid_url_required(setting: str = "database.url") -> Iterator[None]:
    """Raise SettingsError for an invalid connection URL, without quoting the URL. `setting` is the setting that has the URL."""
    try:
        yield
    except psycopg.ProgrammingError:  # libpq quotes the URL, password and all
        raise errors.SettingsError(
            f"setting {setting} is not a libpq connection URL, so Postgres was not asked: write "
            "postgresql://user:password@host:port/database, and an `@`, `/` or `:` of the password as %40, %2F or %3A"
        ) from None


@contextlib.contextmanager
def role_required() -> Iterator[None]:
    """Raise RegistryUnavailable if the API's login may not become an API role, RegistryOutdated if Postgres lacks the role."""
    try:
        yield
    except psycopg.errors.InvalidParameterValue as exc:
        raise errors.RegistryOutdated(
            "Postgres lacks a role of the API, fanout_api or fanout_operator, and requests are answered with 503. Run "
            "`fanout db migrate`. If the registry was restored on this server, that creates no role: create the roles first, "
            "then restore again (docs/disaster-recovery.md)"
        ) from exc
    except psycopg.errors.InsufficientPrivilege as exc:
        raise errors.RegistryUnavailable(
            f"Postgres denies the API's login a role ({_said(exc.diag.message_primary)}), and requests are answered with 503. "
            "Create a login of the API's own, a member of fanout_api and fanout_operator (docs/operations.md), and set "
            "api.database_url. Never grant these roles to the login of database.url: the job would see no customer"
        ) from exc


_CURES = {
    "53": "Give it what the brackets name, such as disk space or memory",
    "58": "Look into its log, and check its disk",
}
"""Advice by the class of SQLSTATE: insufficient resources, and errors of the server's system."""
_NOT_CONNECTED = (
    re.compile(r"connection to server at \"([\w.:%-]+)\"(?: \([^)]*\))?, (port \d+) failed: ([^\n@]*)(?:\n|$)"),
    re.compile(r"connection to server on (socket \"[^\"@]*\") failed: ([^\n@]*)(?:\n|$)"),
    re.compile(r"(failed to resolve host) '([\w.-]+)'"),
    re.compile(r"(invalid \w+ value: \"[\w.-]*\"|invalid port number: \"\d+\"|connection timeout expired)"),
)
"""Messages of libpq and psycopg about a server that cannot be reached. Texts with an `@` do not match: libpq takes a part of
a password that is not percent-encoded for the host."""

_NONE_HERE = re.compile(r"(127\.[\d.]+|::1|localhost) port \d+ Connection refused")
"""Matches the beginning of the result of `_not_connected` if no server listens at a port of this machine."""


def _not_connected(text: str) -> str:
    """Return server and reason from a message about a server that cannot be reached; empty if `text` is another message."""
    for pattern in _NOT_CONNECTED:
        if found := pattern.search(text):
            return _said(" ".join(found.groups()))
    return ""


def _unquoted(said: str) -> str:
    """Return a message of Postgres without the value that it may quote, from the first quotation mark to the last."""
    return re.sub('".*"', '"…"', said)


def _said(text: str | None) -> str:
    """Return a message of Postgres as one line."""
    return " ".join((text or "").split())
