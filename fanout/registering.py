"""The commands that register: apply, get, keys rotate.

Runs in the command.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rich.console

from delivery import errors, plan, settings
from subscriptions_db import apply, connect, keyring, manifest, migrate, registry

KINDS = {"tenants": "tenant", "customers": "customer", "endpoints": "endpoint", "subscriptions": "subscription"}


def apply_file(config: settings.Settings, file: Path, *, dry_run: bool, prune: bool) -> apply.Result:
    """Bring the registry to what `file` says."""
    try:
        text = file.read_bytes()
    except OSError as exc:
        raise errors.RegistrationError(str(file), f"cannot be read: {exc.strerror}") from exc
    return apply_manifest(config, manifest.load(text, plan.guard_of(config.delivery)), dry_run=dry_run, prune=prune)


def apply_manifest(
    config: settings.Settings, wanted: manifest.Manifest, *, dry_run: bool = False, prune: bool = False
) -> apply.Result:
    """Bring the registry to the manifest."""
    ring = keyring.KeyRing.from_settings(config.keys)
    with connect.connect(config.database) as connection:
        migrate.require_current(connection)
        return apply.apply(connection, wanted, ring, dry_run=dry_run, prune=prune)


def show(console: rich.console.Console, result: apply.Result, *, dry_run: bool) -> None:
    """Print the differences, and the new secrets once."""
    marks = {"create": "[green]+[/]", "update": "[yellow]~[/]", "delete": "[red]-[/]"}
    for change in result.changes:
        console.print(f"{marks[change.action]} {change.kind} {change.id}")
        if change.action == "update":
            for name, before, after in change.fields:
                console.print(f"    {name}: {_plain(before)} → {_plain(after)}", markup=False)
    done = "would change" if dry_run else "changed"
    console.print(f"{len(result.changes)} rows {done}" if result.changes else "nothing to change")
    if result.new_secrets and not dry_run:
        console.print("Signing secrets made now; they are not shown again:")
        for endpoint_id, text in result.new_secrets.items():
            console.print(f"  {endpoint_id}  {text}")


def as_document(result: apply.Result) -> dict[str, Any]:
    """Return the result for machines."""
    changes = [
        {
            "action": change.action,
            "kind": change.kind,
            "id": change.id,
            "fields": {name: {"before": _plain(before), "after": _plain(after)} for name, before, after in change.fields},
        }
        for change in result.changes
    ]
    return {"changes": changes, "new_secrets": result.new_secrets}


def get(config: settings.Settings, kind: str, row_id: str | None) -> list[dict[str, Any]]:
    """Return the rows of a kind, or the one with this id."""
    if kind not in KINDS:
        raise errors.RegistrationError(kind, f"is none of {', '.join(KINDS)}")
    with connect.connect(config.database) as connection, connect.translating():
        migrate.require_current(connection)
        rows = registry.document(connection)[KINDS[kind]]  # type: ignore[index]  # the values of KINDS are kinds
    if row_id is not None:
        if row_id not in rows:
            raise errors.RegistrationError(row_id, f"there is no such {KINDS[kind]}; `fanout get {kind}` lists them")
        rows = {row_id: rows[row_id]}
    return [{"id": key, **{name: _plain(value) for name, value in row.items()}} for key, row in sorted(rows.items())]


def rotate_keys(config: settings.Settings) -> int:
    """Seal every secret under the active key."""
    with connect.connect(config.database) as connection:
        return keyring.rotate(connection, keyring.KeyRing.from_settings(config.keys))


def _plain(value: Any) -> Any:
    return sorted(map(list, value), key=str) if isinstance(value, frozenset) else value
