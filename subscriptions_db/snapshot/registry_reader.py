"""Read the registry for the job: all of it, what changed since a revision, or what an event can be due to. Never a half.

Runs on the driver, and in executors that look up. Each read is one transaction at one snapshot of Postgres (REPEATABLE READ,
read only). A row that cannot be used is quarantined: it is returned with its fault, and everybody else is served.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

from delivery.model import Endpoint, EndpointId, Revision, Subscription, SubscriptionId, TenantId, TenantStatus
from delivery.webhooks.http import guard
from delivery.webhooks.routing.registry_snapshot import Snapshot, SnapshotChanges
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query
from subscriptions_db.secrets import keyring
from subscriptions_db.snapshot import builder

Id = TypeVar("Id", bound=str)
Row = TypeVar("Row")


def read_full(connection: connect.Connection, ring: keyring.KeyRing, address_guard: guard.Guard) -> Snapshot:
    """Return the whole registry; raise RegistryUnavailable."""
    with connect.one_moment(connection):
        return Snapshot(
            revision=revisions(connection).newest,
            tenants=dict(_tenants(connection, None)),
            endpoints=dict(_endpoints(connection, None, ring, address_guard)),
            subscriptions=dict(_subscriptions(connection, None)),
        )


def read_changes(
    connection: connect.Connection, ring: keyring.KeyRing, address_guard: guard.Guard, *, since: Revision
) -> SnapshotChanges | None:
    """Return what changed after `since`, or None when the log does not reach back and all must be read."""
    with connect.one_moment(connection):
        newest, changed = changed_since(connection, since)
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
    """How far the log of changes reaches."""

    oldest: Revision
    newest: Revision

    def reach_back_to(self, since: int) -> bool:
        """Tell whether all changes since then are in it. Those since a time that is to come are not."""
        return self.oldest <= since + 1 <= self.newest + 1


def revisions(connection: connect.Connection) -> Revisions:
    """Return the first and the last number of the log."""
    row = connection.execute(query("current_revision")).fetchone() or {"oldest": 0, "newest": 0}
    return Revisions(Revision(row["oldest"]), Revision(row["newest"]))


def changed_since(connection: connect.Connection, since: Revision) -> tuple[Revision, Mapping[str, list[str]] | None]:
    """Return the newest revision, and the ids of what changed by entity; None when the log does not reach back.

    The caller's transaction must see one moment only.
    """
    known = revisions(connection)
    if not known.reach_back_to(since):
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


def read_endpoint(
    connection: connect.Connection, ring: keyring.KeyRing, address_guard: guard.Guard, endpoint_id: EndpointId
) -> Snapshot:
    """Return an endpoint, if it is registered, and the subscriptions that lead to it, as of one moment."""
    with connect.one_moment(connection):
        [found] = connection.execute(query("leading_to_the_endpoint"), {"endpoint_id": endpoint_id}).fetchall()
        return Snapshot(
            revision=Revision(found["revision"]),
            endpoints=dict(_endpoints(connection, [endpoint_id], ring, address_guard)),
            subscriptions=dict(_subscriptions(connection, found["subscription_ids"])),
        )


def read_tenants(connection: connect.Connection, tenant_ids: Collection[TenantId]) -> Snapshot:
    """Return those of the tenants that are registered, as of one moment."""
    with connect.one_moment(connection):
        return Snapshot(revision=revisions(connection).newest, tenants=dict(_tenants(connection, list(tenant_ids))))


def read_routes(connection: connect.Connection, endpoint_id: EndpointId) -> Snapshot:
    """Return all that leads events to an endpoint, as of one moment: to route by, not to send by. No secret is read."""
    with connect.one_moment(connection):
        [found] = connection.execute(query("leading_to_the_endpoint"), {"endpoint_id": endpoint_id}).fetchall()
        return Snapshot(
            revision=Revision(found["revision"]),
            tenants=dict(_tenants(connection, None)),
            endpoints={
                EndpointId(row["endpoint_id"]): builder.unsendable(row)
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
) -> Snapshot:
    """Return these rows, as the job has them, in the caller's transaction and without a revision."""
    return Snapshot(
        revision=Revision(0),
        endpoints=dict(_endpoints(connection, endpoint_ids, ring, address_guard)),
        subscriptions=dict(_subscriptions(connection, subscription_ids)),
    )


def _patterns(event_type: str) -> list[str]:
    """Return every event type pattern that matches: the type itself, and the wildcards, which end at a dot."""
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


def with_deleted(ids: Iterable[Id], rows: Iterable[tuple[Id, Row]]) -> dict[Id, Row | None]:
    """Return each changed id with its row, or None where it is gone."""
    return dict.fromkeys(ids) | dict(rows)
