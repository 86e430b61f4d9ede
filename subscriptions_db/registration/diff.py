"""Compute the changes by which the registry gets the rows of a manifest. Pure.

Runs in `fanout` commands and in the API.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from delivery import errors
from delivery.webhooks.filters import operators
from subscriptions_db.manifest import manifest
from subscriptions_db.registration import registered_rows

MOST_COMPARED = 10_000
"""Maximum ids that are compared with an unknown id, to suggest the id that was meant. A comparison takes 10 µs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference between the registry and the manifest. A secret appears as `***`, a new one as `*** (new)`."""

    action: Literal["create", "update", "delete"]
    kind: registered_rows.RowKind
    id: str
    fields: tuple[tuple[str, Any, Any], ...] = ()
    """(name, before, after) of each field that differs. With `create`, before is None, and empty, false or zero fields are
    left out. With `delete`, there are no fields."""

    def audit_fields(self) -> dict[str, dict[str, Any] | None]:
        """Return the changed fields as `before` and `after`, for the audit log. `before` is None for a creation.

        Must not be called for `delete`.
        """
        before, after = ({name: values[place] for name, *values in self.fields} for place in (0, 1))
        return {"before": None if self.action == "create" else before, "after": after}


def changes(
    current: registered_rows.RegisteredRows, wanted: registered_rows.RegisteredRows, *, prune_customers: set[str]
) -> Iterator[Change]:
    """Yield the changes from the current rows to the wanted rows, in an order in which Postgres accepts them.

    Endpoints and subscriptions of `prune_customers` that are not wanted are deleted.
    """
    for kind in registered_rows.KINDS:
        for row_id, row in wanted[kind].items():
            before = current[kind].get(row_id)
            if before is None:
                yield Change(action="create", kind=kind, id=row_id, fields=tuple((k, None, v) for k, v in row.items() if v))
            elif changed := tuple((k, before.get(k), v) for k, v in row.items() if not _is_same(before.get(k), v)):
                yield Change(action="update", kind=kind, id=row_id, fields=changed)
    if not prune_customers:
        return
    for row_id, row in current["subscription"].items():
        owner = current["endpoint"][row["endpoint"]]["customer"]
        if owner in prune_customers and row_id not in wanted["subscription"]:
            yield Change(action="delete", kind="subscription", id=row_id)
    for row_id, row in current["endpoint"].items():
        if row["customer"] in prune_customers and row_id not in wanted["endpoint"]:
            yield Change(action="delete", kind="endpoint", id=row_id)


def _is_same(before: Any, after: Any) -> bool:
    """Return True if two values of a column are the same.

    `==` would take `true` in a filter or a JSON Schema for 1. For 1e300, Postgres returns an integer of 301 digits, which `==`
    would take for another number.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        return before.keys() == after.keys() and all(_is_same(value, after[name]) for name, value in before.items())
    if isinstance(before, list) and isinstance(after, list):
        return len(before) == len(after) and all(map(_is_same, before, after))
    if isinstance(before, bool) or isinstance(after, bool):
        return before is after
    if isinstance(before, int | float) and isinstance(after, int | float):
        return operators.as_in_events(before) == operators.as_in_events(after)
    return bool(before == after)


def ids(changes: Iterable[Change], kind: registered_rows.RowKind, *actions: str) -> list[str]:
    """Return the ids of the rows of a kind for which `changes` has one of these actions."""
    return [change.id for change in changes if change.kind == kind and change.action in actions]


def require_possible(changes: Iterable[Change], wanted: manifest.Manifest, current: registered_rows.RegisteredRows) -> None:
    """Raise ManifestRefused, with paths, for changes that the database would refuse without naming the field.

    Also raise it if an endpoint would be deleted to which a subscription in the manifest belongs: the database would delete the
    subscription too.
    """
    changes = tuple(changes)
    changed, pruned = {(change.kind, change.id) for change in changes}, set(ids(changes, "endpoint", "delete"))
    if found := [*_impossible(changed, wanted, current), *_deleted_with_endpoint(pruned, wanted)]:
        raise errors.ManifestRefused(found)


def _impossible(
    changed: set[tuple[registered_rows.RowKind, str]], wanted: manifest.Manifest, current: registered_rows.RegisteredRows
) -> Iterator[errors.RegistrationError]:
    customers = current["customer"].keys() | {row.id for row in wanted.customers}
    endpoints = current["endpoint"].keys() | {row.id for row in wanted.endpoints}
    modes = {row.id: row.mode for row in wanted.endpoints} | {key: row["mode"] for key, row in current["endpoint"].items()}
    for number, endpoint in enumerate(wanted.endpoints):
        if ("endpoint", endpoint.id) in changed and endpoint.customer not in customers:
            yield errors.RegistrationError(f"endpoints[{number}].customer", _no_such("customer", endpoint.customer, customers))
        owner = current["endpoint"].get(endpoint.id, {}).get("customer", endpoint.customer)
        if owner != endpoint.customer:
            problem = f"{endpoint.id} belongs to customer {owner}, which cannot change: register another endpoint"
            yield errors.RegistrationError(f"endpoints[{number}].customer", problem)
        if (before := modes.get(endpoint.id, endpoint.mode)) != endpoint.mode:
            problem = (
                f"{endpoint.id} has mode {before}, which cannot change: "
                "register another endpoint, subscribe it, then delete this one"
            )
            yield errors.RegistrationError(f"endpoints[{number}].mode", problem)
    for number, subscription in enumerate(wanted.subscriptions):
        if ("subscription", subscription.id) in changed and subscription.endpoint not in endpoints:
            problem = _no_such("endpoint", subscription.endpoint, endpoints)
            yield errors.RegistrationError(f"subscriptions[{number}].endpoint", problem)
            continue
        before = current["subscription"].get(subscription.id, {}).get("endpoint", subscription.endpoint)
        if before in modes and modes[before] != modes[subscription.endpoint]:
            problem = (
                f"{subscription.id} cannot move to an endpoint of another mode: "
                "register another subscription, then delete this one"
            )
            yield errors.RegistrationError(f"subscriptions[{number}].endpoint", problem)


def _deleted_with_endpoint(pruned: set[str], wanted: manifest.Manifest) -> Iterator[errors.RegistrationError]:
    """Yield a refusal for each subscription in the document that Postgres would delete with its endpoint, one of `pruned`."""
    for number, subscription in enumerate(wanted.subscriptions):
        if subscription.endpoint in pruned:
            problem = (
                f"prune would delete {subscription.endpoint}, which the document does not name, and {subscription.id} with it: "
                "add the endpoint to the document, leave the subscription out, or do not prune"
            )
            yield errors.RegistrationError(f"subscriptions[{number}].endpoint", problem)


def _no_such(kind: str, row_id: str, known: Iterable[str]) -> str:
    """Return the message that a row is neither in the document nor in the registry, with a suggestion."""
    close = difflib.get_close_matches(row_id, sorted(known)[:MOST_COMPARED], n=1)
    remedy = f"; did you mean {close[0]}?" if close else ": register it first, or correct the id"
    return f"there is no {kind} {row_id}{remedy}"
