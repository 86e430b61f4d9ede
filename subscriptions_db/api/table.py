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
    endpoints,
    explain,
    marking,
    polling,
    recovering,
    replays,
    subscriptions,
    tenants,
    trials,
)
from subscriptions_db.api.routes import Route

ROUTES: tuple[Route, ...] = (
    *customers.ROUTES,
    *tenants.ROUTES,
    *endpoints.ROUTES,
    *subscriptions.ROUTES,
    *explain.ROUTES,
    *trials.ROUTES,
    *dead_letters.ROUTES,
    *marking.ROUTES,
    *recovering.ROUTES,
    *consumers.ROUTES,
    *polling.ROUTES,
    *attempts.ROUTES,
    *replays.ROUTES,
    *audit.ROUTES,
)
