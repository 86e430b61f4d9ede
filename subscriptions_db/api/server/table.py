"""The table of all routes of the API.

Runs in the API and in the command.
"""

from __future__ import annotations

from subscriptions_db.api.contract.routes import Route
from subscriptions_db.api.deliveries import (
    attempts,
    consumers,
    dead_letter_actions,
    dead_letters,
    deliveries,
    endpoint_recovery,
    leases,
    parked_letters,
    replays,
    statistics,
)
from subscriptions_db.api.publishing import routes as publishing
from subscriptions_db.api.registry import (
    audit_log,
    customers,
    endpoint_bulk,
    endpoints,
    event_types,
    explain,
    permissions,
    snapshot,
    subscriptions,
    tenants,
    test_events,
)

ROUTES: tuple[Route, ...] = (
    *customers.ROUTES,
    *tenants.ROUTES,
    *endpoints.ROUTES,
    *endpoint_bulk.ROUTES,
    *subscriptions.ROUTES,
    *event_types.ROUTES,
    *explain.ROUTES,
    *test_events.ROUTES,
    *permissions.ROUTES,
    *dead_letters.ROUTES,
    *dead_letter_actions.ROUTES,
    *endpoint_recovery.ROUTES,
    *consumers.ROUTES,
    *leases.ROUTES,
    *parked_letters.ROUTES,
    *deliveries.ROUTES,
    *attempts.ROUTES,
    *statistics.ROUTES,
    *replays.ROUTES,
    *audit_log.ROUTES,
    *snapshot.ROUTES,
    *publishing.ROUTES,
)
