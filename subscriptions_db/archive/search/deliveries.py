"""Search and count recent deliveries of a customer: each delivery once, with its present status.

Runs in the API. The archive has no table of deliveries: a query derives each delivery from its records and its dead letters.
So writing the archive costs nothing more, and the status is as new as the archive. A record is a row of the table of attempts:
an attempt, or an outcome without an attempt. A delivery is sorted by its first record.
"""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from subscriptions_db.archive.search import records, selection
from subscriptions_db.archive.search.archive_positions import PageStart, RecordPosition
from subscriptions_db.archive.search.archived_dead_letters import LetterState
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query

MAX_LOOKED_AT = 1000
"""Maximum records that one call examines. Fewer than for attempts, because each record costs a query of its delivery."""
MAX_EXAMINED = 2000
"""Maximum records that a count examines. 5,000 took 100 ms with 100,000 records of one customer."""
MAX_OF_ONE = 200
"""Maximum records of one delivery, newest first, that are read to decide its status."""
MAX_LETTERS = 10_000
"""Maximum dead letters of one delivery that are counted: as many as a batch may have events."""


class DeliveryStatus(enum.StrEnum):
    """The status of a delivery, by its newest record and its dead letters. A postponement counts only without other records."""

    DELIVERED = "delivered"
    WAITING = "waiting"
    """The delivery failed or was not attempted yet, and waits in the retry lane."""
    DEAD_LETTERED = "dead_lettered"
    """Given up. The state of the dead letter says whether it was redriven since."""
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverySearch(selection.SearchFilter):
    """Search criteria for deliveries. `since` and `until` refer to the first record of a delivery.

    `text` is searched in the event type and the id of the subscription too, besides the fields that SearchFilter names.
    """

    status: DeliveryStatus | None = None
    reason: str | None = None
    webhook_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverySummary:
    """The delivery of one event for one subscription, or of a batch, with its present status."""

    webhook_id: str
    endpoint_id: str
    event_id: str | None
    event_type: str | None
    tenant_id: str | None
    subscription_id: str | None
    events: int
    """Number of events. For a batch, the four fields above are None."""
    began_at: dt.datetime
    """Time of the first record: the first attempt, or an outcome without an attempt."""
    newest_at: dt.datetime
    """Time of the record that decides the status."""
    status: DeliveryStatus
    reason: str | None
    """The reason why the delivery has not arrived: the reason of its newest dead letter. Without a dead letter: the error class
    of the newest attempt, or the reason for no attempt. None: the endpoint has accepted it."""
    attempts: int
    """Attempts among the newest MAX_OF_ONE records."""
    dead_letters: int
    """Dead letters of the newest attempt or outcome. A batch has one for each event that was given up."""
    dead_letter: int | None
    """The position of the newest dead letter. None: there is none."""
    dead_letter_state: LetterState | None


class FoundDeliveries(NamedTuple):
    """A page of deliveries: the newest first, or the oldest first if `PageStart.is_backwards`."""

    deliveries: Sequence[DeliverySummary]
    further: RecordPosition | None
    """The position at which the next page in the same order begins; None if all records were examined."""
    places: Sequence[RecordPosition] = ()
    """The position of each delivery's first record."""


def search(
    connection: connect.Connection,
    customer_id: str,
    asked: DeliverySearch,
    *,
    start: PageStart = records.NEWEST,
    limit: int,
    most: int = MAX_LOOKED_AT,
    most_of_one: int = MAX_OF_ONE,
    most_letters: int = MAX_LETTERS,
) -> FoundDeliveries:
    """Examine at most `most` records older than `start`, or newer if `start.is_backwards`; return the first `limit` matches.

    The page may be empty although further deliveries match. The next page begins at `further`. A match is a delivery that fits
    the criteria and whose first record is among the examined records. The newest `most_of_one` records of a delivery decide its
    status, and at most `most_letters` of its dead letters are counted.
    """
    wanted = _parameters(customer_id, asked, most_of_one, most_letters)
    found = records.nearest(connection, "deliveries", wanted, start, limit=limit, most=most)
    return FoundDeliveries(list(map(_delivery, found.rows)), found.further, found.places)


def count(connection: connect.Connection, customer_id: str, asked: DeliverySearch) -> records.Total:
    """Return the number of matching deliveries whose first record is among MAX_EXAMINED records.

    These records are the customer's newest within the period, the endpoint and the `webhook-id` that the search names.
    """
    wanted = _parameters(customer_id, asked, MAX_OF_ONE, MAX_LETTERS)
    return records.count(connection, "deliveries", wanted, most=MAX_EXAMINED)


def _parameters(customer_id: str, asked: DeliverySearch, most_of_one: int, most_letters: int) -> dict[str, Any]:
    return records.parameters(customer_id, asked) | {"most_of_one": most_of_one, "most_letters": most_letters}


def get(
    connection: connect.Connection, customer_id: str, webhook_id: str, *, most: int = MAX_LOOKED_AT
) -> DeliverySummary | None:
    """Return the delivery with this `webhook-id`; None if the archive has no records of it for the customer.

    The search begins at the first record of the delivery, so a delivery with more than `most` records is found too.
    """
    asked = {"customer_id": customer_id, "webhook_id": webhook_id}
    with connect.translated_errors():
        first = connection.execute(query("first_record_of_delivery"), asked).fetchone()
    if first is None:
        return None
    # The search begins at the delivery's first record, because a delivery may have more records than one call examines.
    behind = PageStart(RecordPosition(first["started_at"], first["position"] + 1))
    found = search(connection, customer_id, DeliverySearch(webhook_id=webhook_id), start=behind, limit=1, most=most).deliveries
    return next(iter(found), None)


def _delivery(row: dict[str, Any]) -> DeliverySummary:
    state, began_at, status = row.pop("dead_letter_state"), row.pop("started_at"), DeliveryStatus(row.pop("status"))
    letter_state = None if state is None else LetterState(state)
    return DeliverySummary(began_at=began_at, status=status, dead_letter_state=letter_state, **row)
