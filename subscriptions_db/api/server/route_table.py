"""List the routes of all operations of the API, and search them.

Runs in the API and in `fanout` commands.
"""

from __future__ import annotations

from subscriptions_db.api.contract.deprecation import Deprecation
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
from subscriptions_db.api.publishing import publish_route as publishing
from subscriptions_db.api.registry import (
    audit_log,
    customers,
    endpoint_bulk,
    endpoint_creation,
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
    *endpoint_creation.ROUTES,
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


def deprecations(method: str, path: str) -> set[Deprecation]:
    """Return the deprecation of an operation in a set, which is empty if there is none. `HEAD` stands for `GET`."""
    asked = ("GET" if method == "HEAD" else method, path)
    return {route.deprecation for route in ROUTES if route.deprecation and (route.method, route.path) == asked}


def methods(path: str) -> set[str]:
    """Return the methods of a path that has no parameters, with `HEAD` if it has `GET`; empty if there is no such path."""
    found = {route.method for route in ROUTES if route.path == path}
    return found | {"HEAD"} if "GET" in found else found
