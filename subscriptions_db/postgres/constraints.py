"""Translate violations of the tables' constraints into a field and a message. Pure.

Runs wherever Postgres is used. The checks of a document find most violations earlier. Constraints find the violations
that concurrent changes cause, and violations of rules that only the database checks.
"""

from __future__ import annotations

import psycopg

_WORDS = {
    "tenants_are_not_the_platform": ("id", "fanout is reserved for the platform: choose another id"),
    "api_keys_operator_is_no_customer": (
        "customer",
        "every key needs a customer, except keys of scope operator, executor or publisher, which have none",
    ),
    "api_keys_only_customers_name_endpoints": (
        "endpoints",
        "only a customer's key may be limited to endpoints: leave them out",
    ),
    "endpoints_disabled_for_a_reason": ("status", "only a disabled endpoint can have a disabled_reason: remove one of the two"),
    "endpoints_no_binary_batches": (
        "content_mode",
        "cloudevents_binary is allowed with mode direct only: use standard or cloudevents_structured",
    ),
    "endpoints_url_check": ("url", "must begin with https:// in lower case, and must not contain blanks"),
    "endpoints_no_ordered_batches": ("order_by", "is allowed with mode direct only: remove it"),
    "endpoints_headers_have_names": ("headers", "a header name must be letters, digits or `-`"),
    "endpoints_headers_have_plain_values": ("headers", "a header value must be printable ASCII"),
    "endpoints_metadata_has_names": ("metadata", "a name must be 1 to 64 letters, digits, `_` `.` `/` or `-`"),
    "endpoints_metadata_has_texts": ("metadata", "a value must be a text"),
    "subscriptions_metadata_has_names": ("metadata", "a name must be 1 to 64 letters, digits, `_` `.` `/` or `-`"),
    "subscriptions_metadata_has_texts": ("metadata", "a value must be a text"),
    "scopes_everything_takes_exclusions_only": (
        "tenants",
        "a subscription to everything may list exclusions only: remove the other tenants",
    ),
    "secrets_only_signing_expires": ("expires_at", "only a signing secret can expire"),
    "secrets_sealed_check": ("secret", "has more bytes than the registry can store: use at most 8,163"),
    "registry_id_check": (
        "id",
        "is not a valid id: use 1 to 128 letters, digits, `_` `.` `:` or `-`, and begin with a letter or digit",
    ),
    "event_type_pattern_check": (
        "event_type",
        "is not a valid event type: write one type (order.created), a prefix (order.*), or * for all",
    ),
}
_ROWS = {"customer_id": "customer", "endpoint_id": "endpoint", "tenant_id": "tenant", "subscription_id": "subscription"}


def in_words(exc: psycopg.IntegrityError) -> tuple[str, str]:
    """Return the field of a violated constraint and the problem. Quotes nothing of the row."""
    name, table = exc.diag.constraint_name or "", exc.diag.table_name or "registry"
    if name in _WORDS:
        return _WORDS[name]
    column = exc.diag.column_name or _column(name, table)
    if isinstance(exc, psycopg.errors.ForeignKeyViolation):
        row = next((kind for key, kind in _ROWS.items() if column.startswith(key)), "row")
        return row, f"there is no such {row}: correct the id, or create the {row} first"
    if isinstance(exc, psycopg.errors.UniqueViolation):
        return "id", f"is already used in {table}: choose another id"
    if isinstance(exc, psycopg.errors.NotNullViolation):
        return column, "is missing: add it"
    return column, f"is not allowed in {table}: docs/registering.md lists the allowed values"


def _column(constraint: str, table: str) -> str:
    """Return the column of a constraint, from its generated name: table, column and kind of constraint, joined by `_`."""
    return constraint.removeprefix(f"{table}_").rpartition("_")[0] or constraint.removeprefix(f"{table}_")
