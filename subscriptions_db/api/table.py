"""All routes of the API.

Runs in the API and in the command.
"""

from __future__ import annotations

from subscriptions_db.api import audit, customers, endpoints, explain, subscriptions, tenants, trials
from subscriptions_db.api.routes import Route

ROUTES: tuple[Route, ...] = (
    *customers.ROUTES,
    *tenants.ROUTES,
    *endpoints.ROUTES,
    *subscriptions.ROUTES,
    *explain.ROUTES,
    *trials.ROUTES,
    *audit.ROUTES,
)
