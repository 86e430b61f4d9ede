"""All routes of the API.

Runs in the API and in the command.
"""

from __future__ import annotations

from subscriptions_db.api import (
    attempts,
    audit,
    consumers,
    customers,
    dead_letters,
    deliveries,
    endpoints,
    event_types,
    explain,
    marking,
    polling,
    recovering,
    replays,
    snapshots,
    subscriptions,
    tenants,
    trials,
    validations,
)
from subscriptions_db.api.routes import Route

ROUTES: tuple[Route, ...] = (
    *customers.ROUTES,
    *tenants.ROUTES,
    *endpoints.ROUTES,
    *subscriptions.ROUTES,
    *event_types.ROUTES,
    *explain.ROUTES,
    *trials.ROUTES,
    *validations.ROUTES,
    *dead_letters.ROUTES,
    *marking.ROUTES,
    *recovering.ROUTES,
    *consumers.ROUTES,
    *polling.ROUTES,
    *deliveries.ROUTES,
    *attempts.ROUTES,
    *replays.ROUTES,
    *audit.ROUTES,
    *snapshots.ROUTES,
)
