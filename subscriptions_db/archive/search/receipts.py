"""Ack, nack and extend leases of dead letters by their receipt handles. Each receipt handle has its own result.

Runs in the API. Each function is one statement, in the caller's transaction.
"""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Sequence
from typing import Any, NamedTuple

from subscriptions_db.archive.search import consumers
from subscriptions_db.archive.search.archive_positions import ReceiptHandle
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query


class ReceiptRefusal(enum.StrEnum):
    """The reason why a receipt handle is refused."""

    INVALID = "invalid"
    """The text is not a receipt handle."""
    NOT_LEASED = "not_leased"
    """The consumer has no lease of this receipt handle, for example after an ack, a nack, a seek or an unpark."""
    LEASED_AGAIN = "leased_again"
    """The dead letter was leased again since, with another receipt handle."""
    PARKED = "parked"
    """The dead letter is parked, and can still be acked."""
    TOO_LONG = "too_long"
    """The lease has existed for `consumers.MAX_LEASE_S`, so it cannot be extended."""


class ReceiptResult(NamedTuple):
    """The result of a request for one receipt handle."""

    position: int
    refusal: ReceiptRefusal | None
    """None: the dead letter was acked, nacked or extended."""
    until: dt.datetime | None = None
    """The new end of an extended lease. None: the lease was not extended."""


def ack(connection: connect.Connection, customer_id: str, name: str, receipts: Sequence[ReceiptHandle]) -> list[ReceiptResult]:
    """Acknowledge dead letters: the consumer does not get them again, except after a seek.

    Return one result for each receipt handle, in order. An expired lease still counts until the dead letter is leased again. A
    parked dead letter can be acked too.
    """
    return _settle(connection, "ack", customer_id, name, receipts)


def nack(
    connection: connect.Connection,
    customer_id: str,
    name: str,
    receipts: Sequence[ReceiptHandle],
    *,
    now: dt.datetime,
    wait_s: float = 0,
) -> list[ReceiptResult]:
    """End leases. After `wait_s` seconds, at most MAX_LEASE_S, a poll leases the dead letters again, or parks them.

    Return one result for each receipt handle, in order. An expired lease still counts until the dead letter is leased again.
    """
    return _settle(connection, "nack", customer_id, name, receipts, until=consumers.lease_end(now, wait_s))


def extend(
    connection: connect.Connection,
    customer_id: str,
    name: str,
    receipts: Sequence[ReceiptHandle],
    *,
    now: dt.datetime,
    lease_s: float,
) -> list[ReceiptResult]:
    """Let leases end `lease_s` seconds from now, sooner or later than before; return one result for each receipt handle.

    A lease ends `consumers.MAX_LEASE_S` after its poll at the latest; from then on it cannot be extended. Before that time, an
    expired lease can be extended too, until the dead letter is leased again.
    """
    return _settle(connection, "extend", customer_id, name, receipts, until=consumers.lease_end(now, lease_s), now=now)


def _settle(
    connection: connect.Connection,
    statement: str,
    customer_id: str,
    name: str,
    receipts: Sequence[ReceiptHandle],
    *,
    until: dt.datetime | None = None,
    now: dt.datetime | None = None,
) -> list[ReceiptResult]:
    asked = {
        "customer_id": customer_id,
        "name": name,
        "positions": [receipt.position for receipt in receipts],
        "tokens": [receipt.token for receipt in receipts],
        "until": until,
        "now": now,
        "max_lease_s": consumers.MAX_LEASE_S,
    }
    with connect.translated_errors():
        parts = ("with asked as (", query("asked_receipts"), "), settled as (", query(statement), ")", query("receipt_results"))
        rows = connection.execute("".join(parts), asked).fetchall()
    return [
        ReceiptResult(receipt.position, None if row["is_settled"] else _refusal(receipt, row), row["until"])
        for receipt, row in zip(receipts, rows, strict=True)
    ]


def _refusal(receipt: ReceiptHandle, row: dict[str, Any]) -> ReceiptRefusal:
    """Return why the SQL statement refused a receipt handle. `row` has the lease as it was before the statement.

    The first reason that applies:
    1. LEASED_AGAIN: another receipt handle has the dead letter's lease, or had the last lease before the letter was parked.
    2. PARKED: the dead letter is parked, and this receipt handle had the last lease.
    3. TOO_LONG: this receipt handle has the lease, and the lease has reached its maximum length.
    4. NOT_LEASED: there is no lease.
    """
    if row["holder"] is not None and row["holder"] != receipt.token:
        return ReceiptRefusal.LEASED_AGAIN
    if row["holder"] is not None and row["is_parked"]:
        return ReceiptRefusal.PARKED
    if row["holder"] is not None and row["is_too_long"]:
        return ReceiptRefusal.TOO_LONG
    return ReceiptRefusal.NOT_LEASED
