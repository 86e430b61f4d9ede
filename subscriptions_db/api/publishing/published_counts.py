"""Add the events that one process of the API has published to the counts of all processes.

Runs in the API, on its worker threads.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import NamedTuple

from delivery.registry_model import TenantId
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query

Counts = Mapping[tuple[dt.date, TenantId], int]
"""Day and tenant → events."""


class TenantSum(NamedTuple):
    """The events of a tenant in a day, by all processes, and the tenant's own quota."""

    events: int
    quota: int | None
    """Events a day. None: the quota is `api.max_tenant_events_per_day`."""


Sums = Mapping[tuple[dt.date, TenantId], TenantSum]
"""Day and tenant → sum."""


def add(connection: connect.Connection, counts: Counts, today: dt.date) -> Sums:
    """Add the counts of registered tenants. Return the sum of each day and tenant in `counts`, without unregistered tenants.

    Delete the counts of days before yesterday.

    Call in a transaction. The rows are locked in one order, so concurrent calls wait for each other and do not deadlock.
    """
    connection.execute(query("delete_old_published_events"), {"before": today - dt.timedelta(days=1)})
    ordered = sorted(counts.items())
    columns = {
        "days": [day for (day, _), _ in ordered],
        "tenants": [tenant for (_, tenant), _ in ordered],
        "events": [events for _, events in ordered],
    }
    rows = connection.execute(query("add_published_events"), columns)
    return {(row["day"], TenantId(row["tenant_id"])): TenantSum(row["events"], row["quota"]) for row in rows}
