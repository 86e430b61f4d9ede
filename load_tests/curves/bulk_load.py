"""Register tenants and subscriptions by COPY, because a manifest of a million subscriptions takes too long.

A manifest would write the same rows. The triggers, which log each changed row for a running job, are off. The job needs no such
log, because it starts later and reads all rows.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import LiteralString

from load_tests.curves.axes import CurveShape
from load_tests.curves.shape_registry import CUSTOMER, endpoint_id, tenant_id
from subscriptions_db.postgres import connect

SEED = 1
"""Seed of the ids of subscriptions."""


def load(connection: connect.Connection, shape: CurveShape, event_types: Sequence[str]) -> None:
    """Add the tenants of a shape, and for each tenant a subscription to each of the `event_types`.

    `shape.subscriptions` must not be None, and the endpoints must be registered already. The login must be a superuser, as it
    is on the load test's own Postgres. Triggers and the statement timeout stay off in the session of `connection`.
    """
    # Random, as the API makes them: numbered ids would compress to nothing in the registry's broadcast.
    rng = random.Random(SEED)
    rows = [
        (
            f"sub_{rng.getrandbits(96):024x}",
            endpoint_id(tenant % shape.endpoints),
            CUSTOMER,
            event_type,
            "selected",
            tenant_id(tenant),
        )
        for event_type in event_types
        for tenant in range(shape.tenants)
    ]
    connection.execute("set session_replication_role = replica")
    connection.execute("set statement_timeout = 0")
    _copy(connection, "copy tenants (tenant_id) from stdin", ((tenant_id(number),) for number in range(shape.tenants)))
    _copy(
        connection,
        "copy subscriptions (subscription_id, endpoint_id, customer_id, event_type, scope) from stdin",
        (row[:5] for row in rows),
    )
    _copy(
        connection,
        "copy scopes (subscription_id, scope, effect, tenant_id) from stdin",
        ((row[0], row[4], "include", row[5]) for row in rows),
    )
    connection.execute("vacuum (analyze)")


def _copy(connection: connect.Connection, statement: LiteralString, rows: Iterable[tuple[str, ...]]) -> None:
    with connection.cursor().copy(statement) as copy:
        for row in rows:
            copy.write_row(row)
