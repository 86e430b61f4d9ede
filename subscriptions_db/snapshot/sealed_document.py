"""Make a document of the registry with sealed secrets, the answer of `GET /v1/snapshot`, and turn it back into a registry.

`read` makes the document from Postgres, and runs in the API. `whole` and `changes` convert a document. They run in programs
that follow the registry over HTTP and have the key ring. A document contains all rows, or the rows that changed since a
revision and the ids of deleted rows. The driver uses the same statements and builder, so such a program and the driver get the
same registry.
"""

from __future__ import annotations

import base64
from typing import Any

from delivery.registry_model import EndpointId, Revision, SubscriptionId, TenantId
from delivery.webhooks.http import guard
from delivery.webhooks.routing.registry_snapshot import Snapshot, SnapshotChanges
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query
from subscriptions_db.secrets import keyring
from subscriptions_db.snapshot import builder, registry_reader

PARTS = {
    "tenants": ("tenants", "tenant"),
    "endpoints": ("endpoints", "endpoint"),
    "secrets": ("secrets", "endpoint"),
    "subscriptions": ("subscriptions", "subscription"),
    "scopes": ("snapshot_scopes", "subscription"),
}
"""Part of the document → its statement, and the kind of row (entity) by whose ids the statement selects."""
IDS = {"tenant": "tenant_id", "endpoint": "endpoint_id", "subscription": "subscription_id"}
"""Entity → the column of its id."""


def read(connection: connect.Connection, since: Revision | None) -> dict[str, Any]:
    """Return the document of the changes since a revision, or of the whole registry.

    The document has the keys `revision` and `since`, and the keys of PARTS, each with a list of rows. It also has the key
    `gone`: kind of row (entity) → the ids of deleted rows. The caller's transaction must be REPEATABLE READ. In two cases, the
    document has the whole registry, and null as its `since`:

    1. `since` is None.
    2. The log of changes does not have the revision `since`.
    """
    if since is None:
        newest, changed = registry_reader.revisions(connection).newest, None
    else:
        newest, changed = registry_reader.changed_since(connection, since)
    document: dict[str, Any] = {"revision": newest, "since": None if changed is None else since}
    for part, (statement, entity) in PARTS.items():
        ids = None if changed is None else changed.get(entity, [])
        asked = {"ids": ids, "tenant_id": None}
        document[part] = [] if ids == [] else connection.execute(query(statement), asked).fetchall()
    for row in document["secrets"]:
        row["sealed"] = base64.b64encode(row["sealed"]).decode()
    document["gone"] = {
        entity: sorted(set(ids) - {row[IDS[entity]] for row in document[f"{entity}s"]})
        for entity, ids in (changed or {}).items()
        if entity in IDS
    }
    return document


def whole(document: dict[str, Any], ring: keyring.KeyRing, address_guard: guard.Guard) -> Snapshot:
    """Return the registry of a document whose `since` is null. `ring` opens the sealed secrets.

    An endpoint that `address_guard` refuses, or with a secret that `ring` cannot open, is quarantined: no lane sends to it.
    Raise ValueError for a status, delivery mode or payload form that this version does not know.
    """
    return Snapshot(
        revision=Revision(document["revision"]),
        tenants=dict(builder.tenants(document["tenants"])),
        endpoints=dict(builder.endpoints(document["endpoints"], _secrets(document), ring, address_guard)),
        subscriptions=dict(builder.subscriptions(document["subscriptions"], document["scopes"])),
    )


def changes(document: dict[str, Any], ring: keyring.KeyRing, address_guard: guard.Guard) -> SnapshotChanges:
    """Return the changes of a document whose `since` is a revision. Rows are converted as in `whole`."""
    now = whole(document, ring, address_guard)
    gone = document["gone"]
    return SnapshotChanges(
        since=Revision(document["since"]),
        revision=now.revision,
        tenants=registry_reader.with_deleted(map(TenantId, gone.get("tenant", ())), now.tenants.items()),
        endpoints=registry_reader.with_deleted(map(EndpointId, gone.get("endpoint", ())), now.endpoints.items()),
        subscriptions=registry_reader.with_deleted(
            map(SubscriptionId, gone.get("subscription", ())), now.subscriptions.items()
        ),
    )


def _secrets(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [row | {"sealed": base64.b64decode(row["sealed"])} for row in document["secrets"]]
