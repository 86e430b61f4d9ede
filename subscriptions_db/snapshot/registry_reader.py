"""Read the registry: all of it, the changes since a revision, the candidates for one event, single endpoints, or tenants.

Runs on the driver, in executors that look up the registry, in the API, in `fanout archive` and in `fanout` commands. A read
that opens a transaction sees one snapshot of Postgres (REPEATABLE READ, read only). The read raises RegistryUnavailable or
RegistryOutdated if Postgres does not give the rows. `revisions`, `changed_since` and `read_rows` run in the caller's
transaction, and do not translate psycopg's errors. A row that cannot be used is returned with its fault, and affects no other
row. But an unknown status, delivery mode or payload form raises ValueError.
"""

from __future__ import annotations

import collections
import datetime as dt
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

from delivery.registry_model import Endpoint, EndpointId, Revision, Subscription, SubscriptionId, TenantId, TenantStatus
from delivery.webhooks.http import guard
from delivery.webhooks.routing.registry_snapshot import Snapshot, SnapshotChanges
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query
from subscriptions_db.secrets import keyring
from subscriptions_db.snapshot import builder

RowId = TypeVar("RowId", bound=str)
SnapshotRow = TypeVar("SnapshotRow")


def read_full(connection: connect.Connection, ring: keyring.KeyRing, address_guard: guard.Guard) -> Snapshot:
    """Return the whole registry, from one consistent read."""
    with connect.consistent_read(connection):
        return Snapshot(
            revision=revisions(connection).newest,
            tenants=dict(_tenants(connection, None)),
            endpoints=dict(_endpoints(connection, None, ring, address_guard)),
            subscriptions=dict(_subscriptions(connection, None)),
        )


def read_changes(
    connection: connect.Connection,
    ring: keyring.KeyRing,
    address_guard: guard.Guard,
    *,
    since: Revision,
    since_at: dt.datetime | None = None,
) -> SnapshotChanges | None:
    """Return the changes after the revision `since`, with None for each deleted row, from one consistent read.

    Return None if the log of changes does not have `since`: the row of `since` was deleted with the oldest rows, or Postgres
    lost it. `since_at` is the time of the change `since` as the caller knows it. If the log has another time for `since`, also
    return None: Postgres lost that change, and a later change got its number.
    """
    with connect.consistent_read(connection):
        newest, changed = changed_since(connection, since, since_at)
        if changed is None:
            return None
        tenants, endpoints, subscriptions = changed["tenant"], changed["endpoint"], changed["subscription"]
        return SnapshotChanges(
            since=since,
            revision=newest,
            tenants=with_deleted(map(TenantId, tenants), _tenants(connection, tenants)),
            endpoints=with_deleted(map(EndpointId, endpoints), _endpoints(connection, endpoints, ring, address_guard)),
            subscriptions=with_deleted(map(SubscriptionId, subscriptions), _subscriptions(connection, subscriptions)),
        )


class Revisions(NamedTuple):
    """The newest revision in the log of changes, and whether the log has all changes after a reader's revision."""

    newest: Revision
    """0 while the log is empty."""
    reach_back: bool
    """True: the log has the reader's revision, and so all changes after it."""


def revisions(connection: connect.Connection, since: int = 0, since_at: dt.datetime | None = None) -> Revisions:
    """Return the newest revision in the log of changes, and whether the log has the revision `since`.

    With `since_at`, the log must have this time for the revision `since`. 0 is the revision of a registry without any change.
    For 0, `since_at` is ignored, and the log must have all changes from the first.
    """
    asked = {"since": since, "since_at": since_at}
    [row] = connection.execute(query("current_revision"), asked).fetchall()
    return Revisions(Revision(row["newest"]), row["reach_back"])


def changed_at(connection: connect.Connection, revision: Revision) -> dt.datetime | None:
    """Return when the change with this revision was made; None if the log of changes does not have it."""
    with connect.translated_errors():
        row = connection.execute(query("revision_changed_at"), {"revision": revision}).fetchone()
    return None if row is None else row["changed_at"]


def changed_since(
    connection: connect.Connection, since: Revision, since_at: dt.datetime | None = None
) -> tuple[Revision, Mapping[str, list[str]] | None]:
    """Return the newest revision, and kind of row (entity) → the ids of rows that changed or were deleted after `since`.

    None in place of the mapping: the log of changes does not have `since`, or not with the time `since_at`. The caller's
    transaction must be REPEATABLE READ.
    """
    known = revisions(connection, since, since_at)
    if not known.reach_back:
        return known.newest, None
    changed: collections.defaultdict[str, list[str]] = collections.defaultdict(list)
    if known.newest > since:
        for row in connection.execute(query("changes_since"), {"since": since}):
            changed[row["entity"]].append(row["entity_id"])
    return known.newest, changed


def read_candidates(
    connection: connect.Connection,
    ring: keyring.KeyRing,
    address_guard: guard.Guard,
    *,
    event_type: str,
    tenant_id: TenantId | None,
    since: Revision | None = None,
) -> Snapshot:
    """Return the subscriptions that match an event type, with their endpoints: those about a tenant, or about all tenants.

    1. `tenant_id` given: return the subscriptions whose scope includes, by id, the tenant or a sub-tenant of it. With `since`,
       also return the subscriptions to all tenants (`Scope.everything`) that changed after this revision. The snapshot also has
       the tenant if it is registered. Each scope contains only the part about this tenant.
    2. `tenant_id` None: return all subscriptions to all tenants. `since` is ignored.

    One statement finds the ids of the subscriptions. For most pairs of tenant and event type, there are none. Otherwise a
    second read, at the returned revision or a later one, reads the subscriptions and endpoints.
    """
    asked = {"patterns": _patterns(event_type), "tenant_id": tenant_id, "since": since}
    statement = query("candidates_for_everything" if tenant_id is None else "candidates_for_tenant")
    with connect.translated_errors():
        [found] = connection.execute(statement, asked).fetchall()
    status = found["tenant_status"]
    known = Snapshot(
        revision=Revision(found["revision"]),
        tenants={} if tenant_id is None or status is None else {tenant_id: TenantStatus(status)},
    )
    if not found["subscription_ids"]:
        return known
    with connection.pipeline(), connect.consistent_read(connection):
        subscriptions = dict(_subscriptions(connection, found["subscription_ids"], tenant_id))
        used: list[str] = sorted({row.endpoint_id for row in subscriptions.values()})
        return replace(known, subscriptions=subscriptions, endpoints=dict(_endpoints(connection, used, ring, address_guard)))


def read_endpoint(
    connection: connect.Connection, ring: keyring.KeyRing, address_guard: guard.Guard, endpoint_id: EndpointId
) -> Snapshot:
    """Return an endpoint, if it is registered, and its subscriptions, without tenants, from one consistent read."""
    with connect.consistent_read(connection):
        [found] = connection.execute(query("routes_to_endpoint"), {"endpoint_id": endpoint_id}).fetchall()
        return Snapshot(
            revision=Revision(found["revision"]),
            endpoints=dict(_endpoints(connection, [endpoint_id], ring, address_guard)),
            subscriptions=dict(_subscriptions(connection, found["subscription_ids"])),
        )


def read_tenants(connection: connect.Connection, tenant_ids: Collection[TenantId]) -> Snapshot:
    """Return the tenants in `tenant_ids` that are registered, with the newest revision, from one consistent read."""
    with connect.consistent_read(connection):
        return Snapshot(revision=revisions(connection).newest, tenants=dict(_tenants(connection, list(tenant_ids))))


def read_routes(connection: connect.Connection, endpoint_id: EndpointId) -> Snapshot:
    """Return all tenants, one endpoint and its subscriptions, from one consistent read.

    An endpoint that is not registered is left out. The endpoint has the fields for routing only, without secrets.
    """
    with connect.consistent_read(connection):
        [found] = connection.execute(query("routes_to_endpoint"), {"endpoint_id": endpoint_id}).fetchall()
        return Snapshot(
            revision=Revision(found["revision"]),
            tenants=dict(_tenants(connection, None)),
            endpoints={
                EndpointId(row["endpoint_id"]): builder.routing_endpoint(row)
                for row in connection.execute(query("endpoints"), {"ids": [endpoint_id]})
            },
            subscriptions=dict(_subscriptions(connection, found["subscription_ids"])),
        )


def read_rows(
    connection: connect.Connection,
    ring: keyring.KeyRing,
    address_guard: guard.Guard,
    *,
    endpoint_ids: list[str],
    subscription_ids: list[str],
    tenant_id: TenantId | None = None,
) -> Snapshot:
    """Return these endpoints and subscriptions in the form that the job uses, read in the caller's transaction.

    Ids that are not registered are left out. The snapshot has revision 0 and no tenants. With `tenant_id`, the scopes contain
    only the part about this tenant: a subscription may name tens of thousands of others.
    """
    return Snapshot(
        revision=Revision(0),
        endpoints=dict(_endpoints(connection, endpoint_ids, ring, address_guard)),
        subscriptions=dict(_subscriptions(connection, subscription_ids, tenant_id)),
    )


def _patterns(event_type: str) -> list[str]:
    """Return every subscription pattern that matches an event type: the type itself, `*`, and a wildcard for each dot."""
    prefixes = [event_type[: place + 1] for place, letter in enumerate(event_type) if letter == "."]
    return [event_type, "*", *(f"{prefix}*" for prefix in prefixes)]


def _tenants(connection: connect.Connection, ids: list[str] | None) -> Iterator[tuple[TenantId, TenantStatus]]:
    if ids != []:
        yield from builder.tenants(connection.execute(query("tenants"), {"ids": ids}))


def _endpoints(
    connection: connect.Connection, ids: list[str] | None, ring: keyring.KeyRing, address_guard: guard.Guard
) -> Iterator[tuple[EndpointId, Endpoint]]:
    if ids != []:
        secrets = connection.execute(query("secrets"), {"ids": ids})
        yield from builder.endpoints(connection.execute(query("endpoints"), {"ids": ids}), secrets, ring, address_guard)


def _subscriptions(
    connection: connect.Connection, ids: list[str] | None, tenant_id: TenantId | None = None
) -> Iterator[tuple[SubscriptionId, Subscription]]:
    if ids != []:
        scopes = connection.execute(query("snapshot_scopes"), {"ids": ids, "tenant_id": tenant_id})
        yield from builder.subscriptions(connection.execute(query("subscriptions"), {"ids": ids}), scopes)


def with_deleted(ids: Iterable[RowId], rows: Iterable[tuple[RowId, SnapshotRow]]) -> dict[RowId, SnapshotRow | None]:
    """Return each changed id with its row, or with None if the row was deleted."""
    return dict.fromkeys(ids) | dict(rows)
