"""Represent the registry at one revision, and changes of the registry, as values. Executors route by these values.

Runs on the driver and in the executors, in the API, the archive and the commands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from delivery.registry_model import Endpoint, EndpointId, Revision, Scope, Subscription, SubscriptionId, TenantId, TenantStatus

Id = TypeVar("Id")
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Rows of the registry, consistent at `revision`: all rows that routing and delivery need, or the rows of one look-up.

    The dictionaries must not be changed.
    """

    revision: Revision
    tenants: dict[TenantId, TenantStatus] = field(default_factory=dict)
    endpoints: dict[EndpointId, Endpoint] = field(default_factory=dict)
    subscriptions: dict[SubscriptionId, Subscription] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the subscriptions as columns instead of rows.

        The state of each pickled row would be a list, and the unpickler keeps all lists until it ends. With 100,000
        subscriptions the lists are 35 MB. The lists lie between the rows, so a worker cannot return this memory to the system.
        """
        rows = list(self.subscriptions.values())
        scopes = {scope: place for place, scope in enumerate(dict.fromkeys(row.scope for row in rows))}
        columns = _columns(Subscription, rows)
        columns["scope"] = [scopes[row.scope] for row in rows]
        return _from_columns, (self.revision, self.tenants, self.endpoints, _columns(Scope, scopes), columns)

    def quarantined(self) -> dict[str, str]:
        """Return the quarantined rows: a key such as `endpoint ep1`, and the reason for which the row is unusable."""
        rows: dict[str, str] = {f"endpoint {row.endpoint_id}": row.fault for row in self.endpoints.values() if row.fault}
        rows |= {f"subscription {row.subscription_id}": row.fault for row in self.subscriptions.values() if row.fault}
        return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotChanges:
    """The changes of the registry after `since`, up to `revision`: each changed row's new state, None for a deleted row.

    Apply the changes to a registry whose revision is from `since` to `revision`. The registry may already have some of the
    changes, because each row has its whole new state.
    """

    since: Revision
    revision: Revision
    tenants: dict[TenantId, TenantStatus | None] = field(default_factory=dict)
    endpoints: dict[EndpointId, Endpoint | None] = field(default_factory=dict)
    subscriptions: dict[SubscriptionId, Subscription | None] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of changed rows."""
        return len(self.tenants) + len(self.endpoints) + len(self.subscriptions)

    def faults(self) -> dict[str, str | None]:
        """Return why each changed endpoint and subscription is quarantined, by keys such as `endpoint ep1`.

        None: the row is usable, or was deleted. Tenants are left out, because they are never quarantined.
        """
        faults = {f"endpoint {row_id}": row.fault if row else None for row_id, row in self.endpoints.items()}
        faults |= {f"subscription {row_id}": row.fault if row else None for row_id, row in self.subscriptions.items()}
        return faults

    def followed_by(self, later: SnapshotChanges) -> SnapshotChanges:
        """Return these changes and the `later` changes as one value. `later.since` must not be after `revision`."""
        return SnapshotChanges(
            since=self.since,
            revision=later.revision,
            tenants=self.tenants | later.tenants,
            endpoints=self.endpoints | later.endpoints,
            subscriptions=self.subscriptions | later.subscriptions,
        )


def _columns(kind: type, rows: Iterable[Any]) -> dict[str, list[Any]]:
    rows = list(rows)
    return {column.name: [getattr(row, column.name) for row in rows] for column in fields(kind)}


def _from_columns(
    revision: Revision,
    tenants: dict[TenantId, TenantStatus],
    endpoints: dict[EndpointId, Endpoint],
    scope_columns: dict[str, list[Any]],
    columns: dict[str, list[Any]],
) -> Snapshot:
    scopes = [Scope(**dict(zip(scope_columns, row, strict=True))) for row in zip(*scope_columns.values(), strict=True)]
    columns["scope"] = [scopes[place] for place in columns["scope"]]
    rows = [Subscription(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]
    by_id = {row.subscription_id: row for row in rows}
    return Snapshot(revision=revision, tenants=tenants, endpoints=endpoints, subscriptions=by_id)


def updated(snapshot: Snapshot, changes: SnapshotChanges) -> Snapshot:
    """Return a new snapshot: `snapshot` with `changes` applied."""
    return Snapshot(
        revision=changes.revision,
        tenants=_overlaid(snapshot.tenants, changes.tenants),
        endpoints=_overlaid(snapshot.endpoints, changes.endpoints),
        subscriptions=_overlaid(snapshot.subscriptions, changes.subscriptions),
    )


def _overlaid(rows: Mapping[Id, Row], changed: Mapping[Id, Row | None]) -> dict[Id, Row]:
    return {key: row for key, row in {**rows, **changed}.items() if row is not None}
