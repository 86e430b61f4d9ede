"""Show operators the statistics of an endpoint.

Runs in `fanout` commands.
"""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

from delivery import errors
from delivery.config import settings
from fanout.terminal import times
from subscriptions_db.archive.search import statistics
from subscriptions_db.archive.search.statistics import FoundStatistics, Granularity
from subscriptions_db.postgres import connect, migrate
from subscriptions_db.registration import registered_rows

TIMES = ("duration_ms", "latency_ms")
"""Fields with percentiles, in milliseconds: the duration of attempts, and the latency of deliveries."""


def of_endpoint(config: settings.Settings, endpoint_id: str, *, since: str, by: Granularity) -> FoundStatistics:
    """Return the statistics of an endpoint by hour or by day, from the hour or day of `since` to the present one.

    `since` is a duration before now, such as `24h`, or a moment, such as `2026-05-01T10:00Z`. Raise SettingsError if `since` is
    neither, is not in the past, or is further back than `by` permits. Raise RegistrationError if there is no such endpoint.
    """
    now_ms = round(time.time() * 1000)
    first = dt.datetime.fromtimestamp(times.moment_ms("--since", since, now_ms=now_ms) / 1000, dt.UTC)
    until = dt.datetime.fromtimestamp(now_ms / 1000, dt.UTC)
    if not dt.timedelta() < until - first <= by.longest:
        raise errors.SettingsError(
            f"--since must be in the last {by.longest.days} days with --by {by}; {since!r} is not, so nothing is shown"
        )
    with connect.connect(config.database) as connection, connect.translated_errors():
        migrate.require_current(connection)
        row = registered_rows.rows_of(connection, {"endpoint": [endpoint_id]})["endpoint"].get(endpoint_id)
        if row is None:
            raise errors.RegistrationError(
                endpoint_id, "there is no such endpoint, so nothing is shown; `fanout get endpoints` lists them"
            )
        return statistics.read(connection, row["customer"], endpoint_id, since=first, until=until, by=by)


def table(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a table: one for each of `items`, then the total. `document` has the statistics as in the API."""
    rows = [*document["items"], document["total"] | {"start": "total"}]
    return [
        {
            "start": row["start"],
            **{name: row[name] for name in ("delivered", "dead_lettered", "skipped", "attempts", "failed_attempts")},
            **{f"{name} {share}": (row[name] or {}).get(share) for name in TIMES for share in ("p50", "p99")},
        }
        for row in rows
    ]
