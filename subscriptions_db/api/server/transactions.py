"""Keep the API's connections to Postgres, and open transactions with the rights of a request's principal.

Runs in the API, on its worker threads, because a wait for Postgres would block the event loop.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import select
from collections.abc import Iterator, Sequence
from typing import Any, Self

import psycopg
import psycopg_pool
from psycopg.rows import dict_row

from delivery import errors
from delivery.config import settings
from delivery.observability import metrics
from subscriptions_db import server_bounds
from subscriptions_db.api.contract import keys
from subscriptions_db.api.contract.principals import Principal
from subscriptions_db.api.publishing import published_counts
from subscriptions_db.postgres import connect, migrate
from subscriptions_db.postgres.sql import query
from subscriptions_db.registration import receiver_permission
from subscriptions_db.secrets import keyring

CUSTOMER_ROLE, OPERATOR_ROLE = "fanout_api", "fanout_operator"
"""The roles in Postgres to which transactions switch. Row-level security limits CUSTOMER_ROLE to one customer's rows."""


class Store:
    """A pool of connections to Postgres that opens transactions for principals. Thread-safe."""

    def __init__(self, config: settings.Settings, *, wait_s: float = server_bounds.DEFAULT.connection_wait_s) -> None:
        """A request waits at most `wait_s` seconds for a connection.

        Raise SettingsError for an invalid key ring or connection URL.
        """
        self.ring = keyring.KeyRing.from_settings(config.keys)
        self._ring_fits = False
        database = config.database
        own_url = config.api.database_url.get_secret_value()
        url = own_url or database.url.get_secret_value()
        with connect.valid_url_required("api.database_url" if own_url else "database.url"):
            options = connect.options(url, database, application_name="fanout api")
        self._pool: psycopg_pool.ConnectionPool[connect.Connection] = psycopg_pool.ConnectionPool(
            url,
            connection_class=connect.PooledConnection,
            min_size=0,
            max_size=config.api.max_connections,
            timeout=wait_s,
            # The pool tries after 1, 2, 4 … s until this time is over. The next request then begins with a try at once. With
            # psycopg's 5 min the pauses grew during an outage, and requests failed long after Postgres was back.
            reconnect_timeout=wait_s / 2,
            open=False,
            check=_check,
            kwargs=options | {"row_factory": dict_row},
        )

    def __enter__(self) -> Self:
        self._pool.open()
        metrics.API_CONNECTIONS.set_function(self._in_use)
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    @contextlib.contextmanager
    def transaction(self, principal: Principal, *, is_change: bool = True) -> Iterator[connect.Connection]:
        """Yield a connection in a transaction with the rights of the principal; commit at the end, or roll back on an error.

        1. `is_change` False: all statements see one consistent snapshot. For reads. Also for the audit entry of a test
           event, because writing this entry locks no row.
        2. `is_change` True: each statement sees the newest committed rows. So after a wait for a lock, it sees the row as the
           other transaction has committed it. A wait for a lock ends after a second with RegistryUnavailable. Changes of
           the registry commit one after another, so the commit may wait for others, at most until the statement timeout.

        Raise SettingsError if the key ring does not fit the registry. Errors of Postgres become RegistryUnavailable,
        RegistryOutdated or RegistrationError.
        """
        self._require_ring()
        customer_id = principal.customer_id
        role = OPERATOR_ROLE if customer_id is None else CUSTOMER_ROLE
        begin = "begin_change" if is_change else "begin_read"
        with self._transaction(role, customer_id or "", principal.endpoint_ids, begin=begin) as connection:
            yield connection

    def key_row(self, key_id: str) -> dict[str, Any] | None:
        """Return the stored row of an API key; None if there is no such key.

        Raise RegistryUnavailable if Postgres is unavailable, and RegistryOutdated if it lacks the table.
        """
        with self._transaction(OPERATOR_ROLE) as connection:
            return connection.execute(query("api_key"), {"key_id": key_id}).fetchone()

    def note_use(self, key_ids: Sequence[str]) -> None:
        """Write the present time as the last use of these API keys, except where a recent use is written already."""
        with self._transaction(OPERATOR_ROLE, begin="begin_change") as connection:
            keys.note_use(connection, key_ids, dt.datetime.now(dt.UTC))

    def add_published(self, counts: published_counts.Counts, today: dt.date) -> published_counts.Sums:
        """Add `counts` to the counts of all processes, and return the new sum of each day and tenant in `counts`.

        Tenants that are not registered are left out. Counts of days before yesterday are deleted; `today` is the present day.
        """
        with self._transaction(OPERATOR_ROLE, begin="begin_change") as connection:
            return published_counts.add(connection, counts, today)

    def owner_of_question(self, endpoint_id: str, token_digest: bytes) -> str | None:
        """Return the customer of an endpoint whose receiver was asked for permission to deliver.

        None: the receiver's answer would give no permission (receiver_permission.open_question). `token_digest` is the digest
        of the token in the callback URL at which the receiver answers.
        """
        with self._transaction(OPERATOR_ROLE) as connection:
            asked = receiver_permission.open_question(connection, endpoint_id, token_digest)
            return None if asked is None else str(asked["customer_id"])

    def require_ready(self) -> None:
        """Raise RegistryUnavailable or RegistryOutdated if Postgres is not ready, SettingsError for a wrong key ring."""
        self._require_ring()
        with self._transaction(OPERATOR_ROLE) as connection:
            migrate.require_current(connection)

    def _require_ring(self) -> None:
        """Raise SettingsError if the key ring does not fit the registry. Checks until the key ring has fitted once.

        A check at the start alone is not enough: Postgres may be away at the start.
        """
        if not self._ring_fits:
            with self._transaction(OPERATOR_ROLE) as connection:
                keyring.require_fits(connection, self.ring)
            self._ring_fits = True

    def passes_by_policies(self) -> bool:
        """Return True if the login bypasses row-level security.

        This is no error, because each transaction switches to a role to which row-level security applies.
        """
        with self._connection() as connection:
            row = connection.execute(query("login_rights")).fetchone()
            return bool(row and row["passes_by"])

    def _in_use(self) -> int:
        stats = self._pool.get_stats()
        return stats["pool_size"] - stats["pool_available"]

    @contextlib.contextmanager
    def _connection(self) -> Iterator[connect.Connection]:
        """Yield a connection, which the pool commits, or rolls back after an error. Errors of Postgres are translated.

        Raise RegistryUnavailable if the pool has no connection for `wait_s` seconds.
        """
        with connect.translated_errors(), contextlib.ExitStack() as stack:
            try:
                connection = stack.enter_context(self._pool.connection())
            except psycopg_pool.PoolTimeout:
                # `api.max_connections` bounds the requests too, so the pool has enough connections, and Postgres is the cause.
                raise errors.RegistryUnavailable(
                    f"Postgres cannot be reached: no connection opened within {self._pool.timeout:g} s, and nothing was asked. "
                    "The newest warning of psycopg.pool in this log says why; the first may come up to "
                    "`database.connect_timeout_s` after this line. Check that Postgres runs, and that the connection URL "
                    "(api.database_url, or else database.url) leads to it"
                ) from None
            yield connection

    @contextlib.contextmanager
    def _transaction(
        self, role: str, customer_id: str = "", endpoint_ids: str = "", *, begin: str = "begin_read"
    ) -> Iterator[connect.Connection]:
        """Yield a connection in a transaction, which the pool commits, or rolls back after an error.

        `begin` names the statement that begins the transaction: `begin_read` or `begin_change`. With CUSTOMER_ROLE, the
        transaction sees the rows of `customer_id`, and only rows of the endpoints `endpoint_ids` (comma-separated; empty: of
        all its endpoints).
        """
        with self._connection() as connection:
            # One round trip for both statements needs a cursor that binds parameters on the client.
            rights = {"role": role, "customer_id": customer_id, "endpoint_ids": endpoint_ids}
            with connect.role_required():
                psycopg.ClientCursor(connection).execute(query(begin), rights)
            try:
                with connect.translated_errors():
                    yield connection
                    if begin == "begin_change":
                        psycopg.ClientCursor(connection).execute(query("end_change"))  # one round trip, as above
            except errors.RegistryUnavailable as exc:
                if connect.needs_replacement(connection, exc):
                    connection.close()  # the pool opens another
                raise


def _check(connection: connect.Connection) -> None:
    """Raise psycopg's OperationalError for a connection that broke while idle, so that the pool replaces the connection.

    A healthy idle connection receives no data. Only a connection that has received data, or that the server has closed, is
    checked by a query.
    """
    idle = select.poll()
    idle.register(connection.fileno(), select.POLLIN)
    if idle.poll(0):
        psycopg_pool.ConnectionPool.check_connection(connection)
