"""Read the registry for the job: all of it, what changed since a revision, or what an event can be due to. Never a half.

Runs on the driver, and in executors that look up. Each read is one transaction at one snapshot of Postgres (REPEATABLE READ,
read only). A row that cannot be used is quarantined: it is returned with its fault, and everybody else is served.
"""

from __future__ import annotations

import collections
import functools
import json
import logging
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from delivery import errors
from delivery.model import (
    Auth,
    AuthKind,
    CustomerId,
    DeliveryMode,
    Endpoint,
    EndpointId,
    EndpointStatus,
    Revision,
    Scope,
    Subscription,
    SubscriptionId,
    SubscriptionStatus,
    SubTenantId,
    TenantId,
    TenantStatus,
)
from delivery.webhooks import filters, guard, target
from delivery.webhooks.snapshot import Snapshot, SnapshotChanges
from subscriptions_db import connect, keyring
from subscriptions_db.sql import query

log = logging.getLogger(__name__)

_NONE: frozenset[Any] = frozenset()
"""Most subscriptions exclude nobody. Each empty set of its own would take 216 bytes, as Python has not only one."""
Id = TypeVar("Id", bound=str)
Row = TypeVar("Row")


def read_full(connection: connect.Connection, ring: keyring.KeyRing, address_guard: guard.Guard) -> Snapshot:
    """Return the whole registry; raise RegistryUnavailable."""
    with connect.one_moment(connection):
        return Snapshot(
            revision=_revisions(connection)[1],
            tenants=dict(_tenants(connection, None)),
            endpoints=dict(_endpoints(connection, None, ring, address_guard)),
            subscriptions=dict(_subscriptions(connection, None)),
        )


def read_changes(
    connection: connect.Connection, ring: keyring.KeyRing, address_guard: guard.Guard, *, since: Revision
) -> SnapshotChanges | None:
    """Return what changed after `since`, or None when the log does not reach back and all must be read."""
    with connect.one_moment(connection):
        oldest, newest = _revisions(connection)
        if newest < since or oldest > since + 1:
            return None
        changed: collections.defaultdict[str, list[str]] = collections.defaultdict(list)
        if newest > since:
            for row in connection.execute(query("changes_since"), {"since": since}):
                changed[row["entity"]].append(row["entity_id"])
        tenants, endpoints, subscriptions = changed["tenant"], changed["endpoint"], changed["subscription"]
        return SnapshotChanges(
            since=since,
            revision=newest,
            tenants=_with_deleted(map(TenantId, tenants), _tenants(connection, tenants)),
            endpoints=_with_deleted(map(EndpointId, endpoints), _endpoints(connection, endpoints, ring, address_guard)),
            subscriptions=_with_deleted(map(SubscriptionId, subscriptions), _subscriptions(connection, subscriptions)),
        )


def read_candidates(
    connection: connect.Connection,
    ring: keyring.KeyRing,
    address_guard: guard.Guard,
    *,
    event_type: str,
    tenant_id: TenantId | None,
) -> Snapshot:
    """Return the tenant and the subscriptions that name it; without a tenant, those about everything.

    Of those, what can match the event type, with their endpoints. Of each scope, the tenant's part. For most pairs of tenant
    and type there is nobody, which is known after one statement; the others' rows are as of one moment, of that revision or
    a later one.
    """
    asked = {"patterns": _patterns(event_type), "tenant_id": tenant_id}
    statement = query("about_everything" if tenant_id is None else "naming_the_tenant")
    with connect.translating():
        [found] = connection.execute(statement, asked).fetchall()
    status = found["tenant_status"]
    known = Snapshot(
        revision=Revision(found["revision"]),
        tenants={} if tenant_id is None or status is None else {tenant_id: TenantStatus(status)},
    )
    if not found["subscription_ids"]:
        return known
    with connection.pipeline(), connect.one_moment(connection):
        subscriptions = dict(_subscriptions(connection, found["subscription_ids"], tenant_id))
        used: list[str] = sorted({row.endpoint_id for row in subscriptions.values()})
        return replace(known, subscriptions=subscriptions, endpoints=dict(_endpoints(connection, used, ring, address_guard)))


def _patterns(event_type: str) -> list[str]:
    """Return every event type pattern that matches: the type itself, and the wildcards, which end at a dot."""
    prefixes = [event_type[: place + 1] for place, letter in enumerate(event_type) if letter == "."]
    return [event_type, "*", *(f"{prefix}*" for prefix in prefixes)]


def _revisions(connection: connect.Connection) -> tuple[Revision, Revision]:
    row = connection.execute(query("current_revision")).fetchone() or {"oldest": 0, "newest": 0}
    return Revision(row["oldest"]), Revision(row["newest"])


def _tenants(connection: connect.Connection, ids: list[str] | None) -> Iterator[tuple[TenantId, TenantStatus]]:
    if ids == []:
        return
    for row in connection.execute(query("tenants"), {"ids": ids}):
        yield TenantId(row["tenant_id"]), TenantStatus(row["status"])


def _endpoints(
    connection: connect.Connection, ids: list[str] | None, ring: keyring.KeyRing, address_guard: guard.Guard
) -> Iterator[tuple[EndpointId, Endpoint]]:
    if ids == []:
        return
    secrets: collections.defaultdict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for row in connection.execute(query("secrets"), {"ids": ids}):
        secrets[row["endpoint_id"]].append(row)
    for row in connection.execute(query("endpoints"), {"ids": ids}):
        endpoint = _endpoint(row)
        try:
            endpoint = _with_secrets(endpoint, secrets[endpoint.endpoint_id], ring)
            target.prepare(endpoint, address_guard)
        except (errors.SealError, errors.TargetRefused) as exc:
            endpoint = replace(endpoint, fault=str(exc))
        except Exception:
            # A surprise in one row must not keep the registry from everybody: the job would hold, or never start.
            log.exception("endpoint %s cannot be used in an unforeseen way", endpoint.endpoint_id)
            endpoint = replace(endpoint, fault="cannot be used; the log says why")
        yield endpoint.endpoint_id, endpoint


def _endpoint(row: dict[str, Any]) -> Endpoint:
    return Endpoint(
        endpoint_id=EndpointId(row["endpoint_id"]),
        customer_id=CustomerId(row["customer_id"]),
        url=row["url"],
        status=EndpointStatus(row["status"]),
        mode=DeliveryMode(row["mode"]),
        auth=Auth(kind=AuthKind(row["auth_kind"]), username=row["auth_username"], header=row["auth_header"]),
    )


def _with_secrets(endpoint: Endpoint, rows: list[dict[str, Any]], ring: keyring.KeyRing) -> Endpoint:
    opened = [(row["purpose"], ring.open(row["key_id"], row["sealed"], keyring.place_of(row))) for row in rows]
    signing_keys = tuple(secret for purpose, secret in opened if purpose == "signing")
    if not signing_keys:
        raise errors.SealError("has no signing secret")
    secret = next((secret for purpose, secret in opened if purpose == "auth"), None)
    return replace(endpoint, signing_keys=signing_keys, auth=replace(endpoint.auth, secret=secret))


def _subscriptions(
    connection: connect.Connection, ids: list[str] | None, tenant_id: TenantId | None = None
) -> Iterator[tuple[SubscriptionId, Subscription]]:
    if ids == []:
        return
    scopes: collections.defaultdict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for row in connection.execute(query("snapshot_scopes"), {"ids": ids, "tenant_id": tenant_id}):
        scopes[row["subscription_id"]].append(row)
    # Thousands of subscriptions share few scopes, filters and event types; shared objects are pickled and kept once.
    shared: dict[Scope, Scope] = {}
    read_pattern = functools.cache(_pattern)
    for row in connection.execute(query("subscriptions"), {"ids": ids}):
        scope = _scope(row["scope"], scopes.pop(row["subscription_id"], []))
        pattern, fault = read_pattern(row["pattern"])
        subscription = Subscription(
            subscription_id=SubscriptionId(row["subscription_id"]),
            endpoint_id=EndpointId(sys.intern(row["endpoint_id"])),
            event_type=sys.intern(row["event_type"]),
            scope=shared.setdefault(scope, scope),
            filter_pattern=pattern,
            status=SubscriptionStatus(row["status"]),
            fault=fault,
        )
        yield subscription.subscription_id, subscription


def _scope(kind: str, rows: list[dict[str, Any]]) -> Scope:
    tenants: dict[str, Iterable[TenantId]] = {}
    sub_tenants: dict[str, Iterable[tuple[TenantId, SubTenantId]]] = {}
    for row in rows:
        tenants[row["effect"]] = map(TenantId, map(sys.intern, row["tenants"] or ()))
        sub_tenants[row["effect"]] = (
            (TenantId(sys.intern(tenant_id)), SubTenantId(sys.intern(sub_tenant_id)))
            for tenant_id, sub_tenant_id in row["sub_tenants"] or ()
        )
    return Scope(
        everything=kind == "everything",
        tenants=tuple(sorted(tenants.get("include", ()))),
        sub_tenants=tuple(sorted(sub_tenants.get("include", ()))),
        without_tenants=frozenset(tenants.get("exclude", ())) or _NONE,
        without_sub_tenants=frozenset(sub_tenants.get("exclude", ())) or _NONE,
    )


def _pattern(text: str | None) -> tuple[dict[str, Any] | None, str | None]:
    """Return the filter and what is wrong with it. A wrong one is left out: nested deeply, it would not even pickle."""
    if text is None:
        return None, None
    try:
        pattern: dict[str, Any] = json.loads(text)
        filters.compile_pattern(pattern)
    except (ValueError, RecursionError):  # a number of thousands of digits; lists in lists in lists
        return None, "filter: cannot be read as JSON"
    except errors.FilterError as exc:
        return None, f"filter: {exc}"
    return pattern, None


def _with_deleted(ids: Iterable[Id], rows: Iterable[tuple[Id, Row]]) -> dict[Id, Row | None]:
    """Return each changed id with its row, or None where it is gone."""
    return dict.fromkeys(ids) | dict(rows)
