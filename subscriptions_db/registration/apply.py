"""Register a manifest: compute the differences to the registry, then write them in one transaction.

Runs in `fanout` commands and in the API. The second application of a manifest changes nothing. Rows that the manifest does not
name stay unchanged, with two exceptions:

1. A tenant in the manifest has `sub_tenants`: its other sub-tenants are deleted.
2. `prune` deletes other endpoints and subscriptions of the manifest's customers, and of the owners of the manifest's endpoints.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
from psycopg.types.json import Json, Jsonb

from delivery import errors
from delivery.webhooks.sending import signing
from subscriptions_db.manifest import lint, manifest
from subscriptions_db.postgres import audit_entries, connect
from subscriptions_db.postgres.sql import query
from subscriptions_db.registration import columns, diff, registered_rows
from subscriptions_db.secrets import endpoint_secrets, keyring
from subscriptions_db.secrets.endpoint_secrets import EndpointSecret

SCOPES_AT_ONCE = 50_000
"""Maximum scope rows in one statement. 100,000 subscriptions may have a million scope rows, which one statement would hold
twice in memory."""
ROWS_AT_ONCE = 1_000
"""Maximum rows in one statement. An endpoint with its certificates has up to 150 kB, and Postgres accepts 255 MB of JSON."""
AUDIT_ENTRIES_AT_ONCE = 1_000
"""Maximum audit entries in one statement."""
SCOPE_COLUMNS = ("subscription_ids", "kinds", "effects", "tenant_ids", "sub_tenant_ids")
"""The parameters of the statement `put_scopes`: one list for each column of a scope row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The changes that `apply` or `apply_rows` has written. With `dry_run`: the changes that `apply` would write."""

    changes: tuple[diff.Change, ...]
    new_secrets: dict[str, str] = field(default_factory=dict)
    """Endpoint id → the signing secret `whsec_…` that the platform created for it. Shown once, stored only sealed. Empty with
    `dry_run`."""
    still_disabled: dict[str, str] = field(default_factory=dict)
    """Endpoint id → disabled reason, for endpoints that stay disabled, because the manifest gives them no status."""
    awaiting_permission: tuple[str, ...] = ()
    """The ids of the manifest's endpoints that need their receivers' permission for deliveries, and do not have it."""
    warnings: tuple[errors.RegistrationError, ...] = ()
    """The lint's warnings about the manifest's subscriptions (subscriptions_db/manifest/lint.py)."""

    def __repr__(self) -> str:
        return f"Result({len(self.changes)} changes)"


def apply(
    connection: connect.Connection,
    wanted: manifest.Manifest,
    ring: keyring.KeyRing,
    *,
    dry_run: bool = False,
    prune: bool = False,
    known_types: Collection[str] = (),
    strict: bool = False,
) -> Result:
    """Register the manifest in one transaction, with audit entries.

    `dry_run` writes nothing, and returns the changes without new secrets. `prune` also deletes the other endpoints and
    subscriptions of the manifest's customers and of its endpoints' owners. `known_types` are the event types with a topic; the
    lint knows them besides those of the catalogue. `strict` refuses manifests with lint warnings.

    Raise RegistrationError if a check or a constraint refuses the manifest. Raise RegistryUnavailable if Postgres does not
    answer or another transaction changes the same rows. The session has no statement timeout afterwards.
    """
    with connect.translated_errors(), exclusive(connection), connection.transaction(force_rollback=dry_run):
        connection.execute("set transaction isolation level repeatable read")
        current = registered_rows.rows_of(connection)
        result = _register(connection, wanted, ring, current, locks=True, prune=prune, known_types=known_types, strict=strict)
        _write_audit_entries(connection, result.changes, wanted, current)
    return replace(result, new_secrets={}) if dry_run else result


def apply_rows(
    connection: connect.Connection, wanted: manifest.Manifest, ring: keyring.KeyRing, *, strict: bool = False
) -> Result:
    """Register a manifest in the caller's transaction, which has locked the rows that the manifest names.

    The manifest is compared only with these rows, their customers and their endpoints. Writes no audit entries.
    Raise RegistrationError if a check or a constraint refuses the manifest, and RegistryUnavailable if Postgres is unavailable.
    `strict` refuses manifests with lint warnings.
    """
    with connect.translated_errors():
        return _register(connection, wanted, ring, registered_rows.rows_of(connection, _named(wanted)), strict=strict)


def _register(
    connection: connect.Connection,
    wanted: manifest.Manifest,
    ring: keyring.KeyRing,
    current: registered_rows.RegisteredRows,
    *,
    locks: bool = False,
    prune: bool = False,
    known_types: Collection[str] = (),
    strict: bool = False,
) -> Result:
    secrets = _Secrets(connection, ring, [row.id for row in wanted.endpoints])
    still_disabled = _still_disabled(wanted, current)
    wanted = _with_statuses(wanted, still_disabled)
    changes = tuple(diff.changes(current, _wanted_rows(wanted, secrets), prune_customers=_owners(wanted) if prune else set()))
    diff.require_possible(changes, wanted, current)
    if locks:  # a row that was deleted since the snapshot would be inserted again, without its parts
        for kind in registered_rows.KINDS:
            registered_rows.lock(connection, kind, diff.ids(changes, kind, "update"))
    _require_new(connection, wanted, current)
    _write(connection, changes, wanted, secrets)
    paths = {row.id: f"subscriptions[{number}]" for number, row in enumerate(wanted.subscriptions)}
    warnings = lint.subscriptions(connection, paths, known_types)
    if strict and warnings:
        raise errors.ManifestRefused(warnings)
    return Result(
        changes=changes,
        new_secrets=secrets.made,
        still_disabled=still_disabled,
        awaiting_permission=_awaiting_permission(connection, wanted),
        warnings=tuple(warnings),
    )


def _named(wanted: manifest.Manifest) -> dict[registered_rows.RowKind, list[str]]:
    """Return the ids of the manifest's rows and of their customers and endpoints."""
    return {
        "tenant": [row.id for row in wanted.tenants],
        "customer": [*(row.id for row in wanted.customers), *(row.customer for row in wanted.endpoints)],
        "endpoint": [*(row.id for row in wanted.endpoints), *(row.endpoint for row in wanted.subscriptions)],
        "subscription": [row.id for row in wanted.subscriptions],
        "event_type": [row.id for row in wanted.event_types],
    }


@contextlib.contextmanager
def exclusive(connection: connect.Connection) -> Iterator[None]:
    """Run the block while no other session runs such a block: wait for a lock, and hold it.

    `apply`, `rotation.rotate` and commands that delete endpoints hold this lock. Otherwise another `apply` could change rows
    from which differences are computed. The API's changes take no such lock. The session has no statement timeout afterwards.
    """
    connection.execute(query("disable_statement_timeout"))
    connection.execute(query("apply_lock"))
    try:
        yield
    finally:
        if not connection.broken:  # the lock ends with the session
            connection.execute(query("apply_unlock"))


class _Secrets:
    """Compare the manifest's secrets with the stored secrets, and replace those that differ.

    An authentication secret or TLS key that the manifest omits is deleted. Omitted signing secrets stay, or one is created.
    """

    def __init__(self, connection: connect.Connection, ring: keyring.KeyRing, endpoint_ids: list[str]) -> None:
        self._connection = connection
        self._ring = ring
        self.made: dict[str, str] = {}
        """Endpoint id → the signing secret `whsec_…` that `write` created for it."""
        self._rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for row in connection.execute(query("secrets"), {"ids": endpoint_ids}):
            self._rows.setdefault((row["endpoint_id"], endpoint_secrets.FIELD_OF[row["purpose"]]), []).append(row)

    def fields(self, endpoint: manifest.ManifestEndpoint) -> dict[str, Any]:
        """Return secret field → SECRET_KEPT for a stored secret that stays, `*** (new)` for a new one, None for no secret."""
        return {name: self._mark(endpoint.id, name, wanted) for name, wanted in _secrets_of(endpoint).items()}

    def _mark(self, endpoint_id: str, name: str, wanted: list[EndpointSecret] | None) -> str | None:
        if wanted == []:
            return None
        is_kept = (endpoint_id, name) in self._rows if wanted is None else wanted == self._opened(endpoint_id, name)
        return registered_rows.SECRET_KEPT if is_kept else "*** (new)"

    def _opened(self, endpoint_id: str, name: str) -> list[EndpointSecret] | None:
        try:
            return [EndpointSecret.from_row(row, self._ring) for row in self._rows.get((endpoint_id, name), [])]
        except errors.SealError:
            return None  # cannot be compared, so the manifest's secret replaces it

    def write(self, endpoints: Iterable[manifest.ManifestEndpoint]) -> None:
        """Replace the stored secrets that differ from the manifest's; delete an authentication secret or TLS key that it omits.

        Without `signing_secrets` in the manifest, the stored ones stay. If none is stored, the endpoint gets a new one.
        """
        replaced, rows = [], []
        for endpoint in endpoints:
            for name, wanted in _secrets_of(endpoint).items():
                secrets = self._created_unless_stored(endpoint.id) if wanted is None else wanted
                if secrets is not None and secrets != self._opened(endpoint.id, name):
                    purposes = [purpose for purpose, field in endpoint_secrets.FIELD_OF.items() if field == name]
                    replaced.append({"endpoint_id": endpoint.id, "purposes": purposes})
                    # The newest is written last, so it is read first.
                    rows += [
                        _as_json(secret.to_row(self._ring, customer_id=endpoint.customer, endpoint_id=endpoint.id))
                        for secret in reversed(secrets)
                    ]
        with self._connection.cursor() as cursor:
            _execute_all(cursor, "delete_secrets", replaced)
            _execute_all(cursor, "put_secrets", rows)

    def _created_unless_stored(self, endpoint_id: str) -> list[EndpointSecret] | None:
        if (endpoint_id, "signing_secrets") in self._rows:
            return None
        key = signing.generate()
        self.made[endpoint_id] = signing.to_text(key)
        return [EndpointSecret.of_key(key)]


def _secrets_of(endpoint: manifest.ManifestEndpoint) -> dict[str, list[EndpointSecret] | None]:
    """Return, for each secret field of an endpoint, the secrets that the manifest gives it, the newest first.

    An empty list: the endpoint shall have no secret. None, for signing secrets only: stored ones stay, or one is created.
    """
    auth, tls_key = manifest.secret(endpoint.auth.secret), manifest.secret(endpoint.tls.key)
    keys = manifest.signing_keys(endpoint)
    return {
        "auth_secret": [] if auth is None else [EndpointSecret(purpose=endpoint_secrets.AUTH, secret=auth)],
        "tls_key": [] if tls_key is None else [EndpointSecret(purpose=endpoint_secrets.TLS_KEY, secret=tls_key)],
        "signing_secrets": None if keys is None else [EndpointSecret.of_key(key) for key in keys],
    }


def _still_disabled(wanted: manifest.Manifest, current: registered_rows.RegisteredRows) -> dict[str, str]:
    """Return the endpoints that stay disabled, with the reasons.

    Machines apply the same document again and again. A document without a status must not enable an endpoint that was disabled
    with a reason, such as failures. With `status: active`, the document enables it. An endpoint that was disabled without a
    reason becomes active in both cases.
    """
    reasons = {row.id: current["endpoint"].get(row.id, {}).get("disabled_reason") for row in wanted.endpoints if not row.status}
    return {row_id: reason for row_id, reason in reasons.items() if reason is not None}


def _awaiting_permission(connection: connect.Connection, wanted: manifest.Manifest) -> tuple[str, ...]:
    ids = [row.id for row in wanted.endpoints if row.validation != "none"]
    return tuple(row["endpoint_id"] for row in connection.execute(query("awaiting_permission"), {"ids": ids})) if ids else ()


def _with_statuses(wanted: manifest.Manifest, still_disabled: Collection[str]) -> manifest.Manifest:
    endpoints = [
        row if row.status else row.model_copy(update={"status": "disabled" if row.id in still_disabled else "active"})
        for row in wanted.endpoints
    ]
    return wanted.model_copy(update={"endpoints": endpoints})


def _wanted_rows(wanted: manifest.Manifest, secrets: _Secrets) -> registered_rows.RegisteredRows:
    return {
        "tenant": {row.id: columns.tenant(row) for row in wanted.tenants},
        "customer": {row.id: {"name": row.name} for row in wanted.customers},
        "endpoint": {row.id: columns.endpoint(row) | secrets.fields(row) for row in wanted.endpoints},
        "subscription": {row.id: columns.subscription(row) for row in wanted.subscriptions},
        "event_type": {row.id: row.model_dump(exclude={"id"}) for row in wanted.event_types},
    }


def _owners(wanted: manifest.Manifest) -> set[str]:
    return {row.id for row in wanted.customers} | {row.customer for row in wanted.endpoints}


def _require_new(connection: connect.Connection, wanted: manifest.Manifest, current: registered_rows.RegisteredRows) -> None:
    """Raise RegistrationError if a new customer has the id of a deleted one.

    The archive and the audit log may still hold the deleted customer's data, and the new customer could read it.
    """
    numbers = {row.id: number for number, row in enumerate(wanted.customers) if row.id not in current["customer"]}
    if not numbers:
        return
    for row in connection.execute(query("deleted_customers"), {"ids": list(numbers)}):
        problem = f"{row['id']} is the id of a deleted customer, whose data may be in archive and audit log: choose another id"
        raise errors.RegistrationError(f"customers[{numbers[row['id']]}].id", problem)


def _write(
    connection: connect.Connection, changes: tuple[diff.Change, ...], wanted: manifest.Manifest, secrets: _Secrets
) -> None:
    ids = {kind: set(diff.ids(changes, kind, "create", "update")) for kind in registered_rows.KINDS}
    with connection.cursor() as cursor:
        tenants = [row for row in wanted.tenants if row.id in ids["tenant"]]
        _execute_all(cursor, "put_tenants", [{"id": row.id, "name": row.name, "status": row.status} for row in tenants])
        with_sub_tenants = [row for row in tenants if row.sub_tenants is not None]
        keep = [
            {"tenant_id": row.id, "keep": [department.id for department in row.sub_tenants or ()]} for row in with_sub_tenants
        ]
        _execute_all(cursor, "delete_sub_tenants", keep)
        # `columns` keeps only the last of several sub-tenants with one id: one statement cannot write a row twice.
        sub_tenants = [
            {"tenant_id": row.id, "id": sub_tenant, "name": name}
            for row in with_sub_tenants
            for sub_tenant, name in columns.tenant(row)["sub_tenants"].items()
        ]
        _execute_all(cursor, "put_sub_tenants", sub_tenants)
        customers = [{"id": row.id, "name": row.name} for row in wanted.customers if row.id in ids["customer"]]
        _execute_all(cursor, "put_customers", customers)
        endpoints = [row for row in wanted.endpoints if row.id in ids["endpoint"]]
        _execute_all(cursor, "put_endpoints", [{"id": row.id} | columns.endpoint(row) for row in endpoints])
        secrets.write(endpoints)
        subscriptions = [row for row in wanted.subscriptions if row.id in ids["subscription"]]
        # Equal scopes and filters stay: each written part is a revision, for which every executor reads the subscription again.
        scoped_anew, filtered_anew = _changed(changes, "scope", "scopes"), _changed(changes, "filter")
        rescoped = [row for row in subscriptions if row.id in scoped_anew]
        if rescoped:
            cursor.execute(query("delete_scopes"), {"ids": [row.id for row in rescoped]})
        _execute_all(cursor, "put_subscriptions", [_subscription(row) for row in subscriptions])
        scopes = ((row.id, columns.scope_kind(row), *scope) for row in rescoped for scope in sorted(row.scopes(), key=str))
        while chunk := list(itertools.islice(scopes, SCOPES_AT_ONCE)):
            cursor.execute(query("put_scopes"), dict(zip(SCOPE_COLUMNS, map(list, zip(*chunk, strict=True)), strict=True)))
        refiltered = [row for row in subscriptions if row.id in filtered_anew]
        filtered = [{"id": row.id, "pattern": row.filter} for row in refiltered if row.filter is not None]
        _execute_all(cursor, "put_filters", filtered)
        unfiltered = [row.id for row in refiltered if row.filter is None]
        if unfiltered:
            cursor.execute(query("delete_filters"), {"ids": unfiltered})
        event_types = [row for row in wanted.event_types if row.id in ids["event_type"]]
        _each(cursor, "put_event_type", [_event_type(row) for row in event_types])
        for kind in ("subscription", "endpoint"):
            if gone := diff.ids(changes, kind, "delete"):
                cursor.execute(query(f"delete_{kind}s"), {"ids": gone})


def _changed(changes: Iterable[diff.Change], *names: str) -> set[str]:
    """Return the ids of the subscriptions that are new, or for which one of these fields changes."""
    return {
        change.id
        for change in changes
        if change.kind == "subscription" and (change.action == "create" or any(name in names for name, *_ in change.fields))
    }


def _write_audit_entries(
    connection: connect.Connection,
    changes: Iterable[diff.Change],
    wanted: manifest.Manifest,
    current: registered_rows.RegisteredRows,
) -> None:
    """Write an audit entry for each change, a thousand at a time: a large registration has a hundred thousand changes."""
    owners = {key: row["customer"] for key, row in current["endpoint"].items()} | {
        row.id: row.customer for row in wanted.endpoints
    }
    endpoints = {key: row["endpoint"] for key, row in current["subscription"].items()}
    endpoints |= {row.id: row.endpoint for row in wanted.subscriptions}

    def audit_entry(change: diff.Change) -> dict[str, Any]:
        customer_ids: dict[str, str | None] = {
            "customer": change.id,
            "endpoint": owners.get(change.id),
            "subscription": owners.get(endpoints.get(change.id, "")),
        }
        change_fields = {"before": current[change.kind][change.id]} if change.action == "delete" else change.audit_fields()
        customer_id = customer_ids.get(change.kind)
        author = audit_entries.COMMAND
        return audit_entries.entry(author, change.action, change.kind, change.id, customer_id=customer_id, **change_fields)

    entries = map(audit_entry, changes)
    while chunk := list(itertools.islice(entries, AUDIT_ENTRIES_AT_ONCE)):
        audit_entries.note_many(connection, chunk)


def _subscription(row: manifest.ManifestSubscription) -> dict[str, Any]:
    """Return the columns of a subscription's own row, without its scopes and its filter."""
    fields = columns.subscription(row)
    own = ("endpoint", "event_type", "scope", "status", "description", "metadata")
    return {"id": row.id} | {name: fields[name] for name in own}


def _as_json(secret: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a secret with its sealed bytes as base64, for JSON."""
    return secret | {"sealed": base64.b64encode(secret["sealed"]).decode()}


def _execute_all(cursor: psycopg.Cursor[dict[str, Any]], name: str, rows: list[dict[str, Any]]) -> None:
    """Execute a statement for all rows, repeatedly if necessary: one execution writes at most ROWS_AT_ONCE rows."""
    for first in range(0, len(rows), ROWS_AT_ONCE):
        cursor.execute(query(name), {"rows": Jsonb(rows[first : first + ROWS_AT_ONCE])})


def _event_type(row: manifest.ManifestEventType) -> dict[str, Any]:
    schema = None if row.json_schema is None else Json(row.json_schema)
    return row.model_dump() | {"json_schema": schema, "examples": Json(row.examples)}


def _each(cursor: psycopg.Cursor[dict[str, Any]], name: str, rows: list[dict[str, Any]]) -> None:
    """Execute a statement for each row. `executemany` takes three round trips, so a single row is executed without it."""
    if len(rows) == 1:
        cursor.execute(query(name), rows[0])
    elif rows:
        cursor.executemany(query(name), rows)
