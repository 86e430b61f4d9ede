"""Refuse a login from which row-level security hides the rows of customers.

Runs on the driver, in executors that look up the registry, in `fanout archive`, in `fanout` commands, and in the API, whose
role for operators sees all rows. The policies are in docs/adr/0016-roles-and-row-level-security.md.
"""

from __future__ import annotations

from delivery import errors
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query


def require_all_customers(connection: connect.Connection) -> None:
    """Raise RegistryUnavailable if the login, or the role that it has become, inherits from `fanout_api`.

    Such a login reads a registry without customers, and gets no error: all events would match nothing. Superusers and roles
    with BYPASSRLS pass.
    """
    with connect.translated_errors():
        row = connection.execute(query("hidden_customers")).fetchone()
    if row is not None and row["are_hidden"]:
        raise errors.RegistryUnavailable(
            f"Postgres hides all customers from the login {row['login']}, because the login inherits from the role fanout_api. "
            "No answer of Postgres to this login is used, and nothing was changed. Revoke fanout_api from the login, and give "
            "`fanout serve` a login of its own in api.database_url (docs/operations.md)"
        )
