"""Say in words what a constraint of the registry refuses: where, and what it may be. Pure.

Runs wherever Postgres is asked. The checks of a document come first: a constraint speaks where two change the same rows
at once, or where a rule is the database's alone.
"""

from __future__ import annotations

import psycopg

_WORDS = {
    "tenants_are_not_the_platform": ("id", "fanout is the platform's own name: take another"),
    "api_keys_operator_is_no_customer": (
        "customer",
        "each key has a customer, but that of scope operator or executor has none",
    ),
    "endpoints_disabled_for_a_reason": ("status", "only a disabled endpoint has a reason for it"),
    "endpoints_no_binary_batches": ("content_mode", "cloudevents_binary is for single events, and mode batch is not"),
    "endpoints_no_ordered_batches": ("order_by", "is for mode direct"),
    "endpoints_headers_have_names": ("headers", "one has no name of a header: letters, digits and `-`"),
    "endpoints_headers_have_plain_values": ("headers", "one has a value that is not printable ASCII"),
    "scopes_everything_takes_exclusions_only": ("tenants", "a subscription to everything takes exclusions only"),
    "secrets_only_signing_expires": ("expires_at", "only a signing secret has an end"),
    "registry_id_check": ("id", "is no id: letters, digits, `_` `.` `:` `-`, at most 128 of them, the first a letter or digit"),
    "event_type_pattern_check": ("event_type", "is no event type: order.created, order.*, or * for all"),
}
_ROWS = {"customer_id": "customer", "endpoint_id": "endpoint", "tenant_id": "tenant", "subscription_id": "subscription"}


def in_words(exc: psycopg.IntegrityError) -> tuple[str, str]:
    """Return the field that a constraint is about, and what is wrong with it. Nothing of the row is quoted."""
    name, table = exc.diag.constraint_name or "", exc.diag.table_name or "registry"
    if name in _WORDS:
        return _WORDS[name]
    column = exc.diag.column_name or _column(name, table)
    if isinstance(exc, psycopg.errors.ForeignKeyViolation):
        row = next((kind for key, kind in _ROWS.items() if column.startswith(key)), "row")
        return row, f"there is no such {row}"
    if isinstance(exc, psycopg.errors.UniqueViolation):
        return "id", f"stands in {table} already"
    if isinstance(exc, psycopg.errors.NotNullViolation):
        return column, "is missing"
    return column, f"is not what {table} take there: docs/registering.md says what may stand there"


def _column(constraint: str, table: str) -> str:
    """Return the column in a name that Postgres has made: table, columns, kind of constraint."""
    return constraint.removeprefix(f"{table}_").rpartition("_")[0] or constraint.removeprefix(f"{table}_")
