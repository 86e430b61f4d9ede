"""Create, list, seek and delete consumers of dead letters, and lease dead letters to their pollers.

Runs in the API, in the caller's transaction; `list_consumers` also in `fanout` commands. A consumer leases a dead letter to one
poller at a time. A dead letter whose lease expires without an ack is leased again, so a consumer may get it more than once.
After `max_receives` leases, the dead letter is parked instead: polls no longer lease it. receipts.py acks, nacks and extends
the leases. parked_letters.py lists and unparks parked dead letters.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from delivery import errors
from subscriptions_db import answer_size
from subscriptions_db.archive.search import archived_dead_letters
from subscriptions_db.archive.search.archive_positions import ReceiptHandle
from subscriptions_db.archive.search.archived_dead_letters import ArchivedDeadLetter
from subscriptions_db.archive.search.selection import DeadLetterSearch
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query

MAX_LEASE_S = 43_200.0
"""Maximum seconds of a lease: twelve hours."""
MAX_UNACKNOWLEDGED = 10_000
"""Maximum dead letters of one consumer that were leased and not acked. At the limit, a poll leases only nacked dead letters,
and dead letters whose lease has expired. Parked dead letters do not count."""
MAX_PARKED_PER_POLL = 1000
"""Maximum expired leases that one poll examines for parking. The next poll continues."""
_BEGINNING = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerState:
    """A group of pollers that share the dead letters of one selection."""

    name: str
    selection: DeadLetterSearch
    read_until: int
    """The position up to which the consumer has read. Polls lease only later dead letters for the first time."""
    created_at: dt.datetime
    unacknowledged: int
    """Dead letters that were leased and not acked yet. Nacked dead letters count, and so do dead letters whose lease has
    expired. Parked dead letters do not count."""
    max_receives: int | None
    """Number of leases without an ack after which a dead letter is parked. None: never."""


class LetterLease(NamedTuple):
    """A dead letter that is leased to a poller."""

    letter: ArchivedDeadLetter
    receipt: ReceiptHandle
    times: int
    """Number of leases of the dead letter by this consumer, including this lease."""
    until: dt.datetime


class PollResult(NamedTuple):
    """The leases of one poll."""

    leased: list[LetterLease]
    has_more: bool
    """True: there may be more dead letters to lease, so the poller should poll again at once."""


def lease_end(now: dt.datetime, lease_s: float) -> dt.datetime:
    """Return the end of a lease of `lease_s` seconds, limited to MAX_LEASE_S."""
    return now + dt.timedelta(seconds=min(max(lease_s, 0.0), MAX_LEASE_S))


def room(limit: int, again: int, unacknowledged: int, *, max_unacknowledged: int = MAX_UNACKNOWLEDGED) -> int:
    """Return how many dead letters a poll for `limit` dead letters may lease for the first time.

    `again` is the number of dead letters that the poll leases again. `unacknowledged` is the number of leased dead letters
    without an ack, including those that the poll leases again.
    """
    return max(0, min(limit - again, max_unacknowledged - unacknowledged))


def create(
    connection: connect.Connection,
    customer_id: str,
    name: str,
    selection: DeadLetterSearch,
    *,
    after: int = _BEGINNING,
    max_receives: int | None = None,
) -> bool:
    """Create a consumer that begins after a position; change nothing and return False if the name exists.

    The selection cannot change later, because a consumer examines each dead letter only once, unless a seek moves the consumer
    back. The selection's `url` and `text` are not stored. `max_receives` is as in ConsumerState. Raise RegistrationError if the
    selection has a time range, or a constraint of Postgres refuses a value.
    """
    if selection.since is not None or selection.until is not None:
        raise errors.RegistrationError("since", "a consumer cannot select by time: create it, then seek to the time")
    place = {"read_until": after, "max_receives": max_receives}
    wanted = _key(customer_id, name) | selection.parameters() | {"type": selection.event_type} | place
    with connect.translated_errors():
        return connection.execute(query("put_consumer"), wanted).rowcount == 1


def list_consumers(connection: connect.Connection, customer_id: str, name: str | None = None) -> list[ConsumerState]:
    """Return a customer's consumers, sorted by name, or only the consumer `name`."""
    with connect.translated_errors():
        found = connection.execute(query("consumers"), {"customer_id": customer_id, "name": name})
        return [_consumer(row) for row in found]


def delete(connection: connect.Connection, customer_id: str, name: str) -> bool:
    """Delete a consumer and its leases; return True if it existed. Dead letters stay unchanged."""
    with connect.translated_errors():
        return connection.execute(query("delete_consumer"), _key(customer_id, name)).rowcount == 1


def set_max_receives(connection: connect.Connection, customer_id: str, name: str, max_receives: int | None) -> bool:
    """Change after how many leases without an ack a dead letter is parked; return True if the consumer exists.

    None: dead letters are never parked. Dead letters that are parked already stay parked. Raise RegistrationError if a
    constraint of Postgres refuses the number.
    """
    with connect.translated_errors():
        changed = connection.execute(query("set_max_receives"), _key(customer_id, name) | {"max_receives": max_receives})
        return changed.rowcount == 1


def lease(
    connection: connect.Connection,
    customer_id: str,
    name: str,
    *,
    limit: int,
    lease_s: float,
    now: dt.datetime,
    of_whole_customer: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    max_unacknowledged: int = MAX_UNACKNOWLEDGED,
    max_parked: int = MAX_PARKED_PER_POLL,
) -> PollResult:
    """Lease dead letters to a poller: at most `limit`, and as many as fit into an answer. The result is sorted by position.

    The leases end after `lease_s` seconds, at most MAX_LEASE_S. Dead letters of the first kind have priority:

    1. Dead letters that were unparked, whose lease has expired, or whose wait after a nack is over. A dead letter that was
       leased `max_receives` times is parked instead. A call examines at most `max_parked` expired leases to park dead letters.
       The lease of a dead letter that was discarded or redriven since is deleted.
    2. Dead letters after the consumer's `read_until`, until it has `max_unacknowledged` dead letters without an ack.

    The search for the second kind runs in `of_whole_customer`. This context lifts the restriction of an API key that reaches
    only some endpoints (a limited key). Under the restriction, row-level security would hide the dead letters of other
    endpoints: each poll would read all of them, and the consumer would not move past them. A limited key reaches only consumers
    that select one of its endpoints. So the search returns only positions of this endpoint. The dead letters at these positions
    are read under the restriction.

    Raise RegistrationError if the consumer does not exist.
    """
    key = _key(customer_id, name)
    until, token = lease_end(now, lease_s), uuid.uuid4()
    with connect.translated_errors(), connect.in_transaction(connection):
        consumer = locked(connection, key)
        taken = {"token": token, "until": until, "now": now}
        ended, is_parking = _expired(connection, key | taken, consumer["max_receives"], limit, max_parked)
        sizes = archived_dead_letters.sizes(connection, customer_id, ended)
        fits = answer_size.count(sizes)
        [renewed] = connection.execute(query("renew_expired_leases"), key | taken | {"positions": ended[:fits]}).fetchall()
        times = dict(zip(renewed["positions"], renewed["times"], strict=True))
        again = archived_dead_letters.waiting(connection, customer_id, renewed["positions"])
        if gone := list(times.keys() - {letter.position for letter in again}):
            connection.execute(query("delete_leases"), key | {"positions": gone})
        unacknowledged = renewed["unacknowledged"] - len(gone)
        free = room(limit, len(again), unacknowledged, max_unacknowledged=max_unacknowledged)
        left = free if fits == len(ended) else 0
        new, has_more = _new(connection, key, consumer, left, taken, held=sum(sizes), of_whole_customer=of_whole_customer)
    given = sorted([*again, *new], key=lambda letter: letter.position)
    leased = [
        LetterLease(letter, ReceiptHandle(letter.position, token), times.get(letter.position, 1), until) for letter in given
    ]
    return PollResult(leased, has_more or is_parking or fits < len(ended) or len(times) == limit)


def seek(connection: connect.Connection, customer_id: str, name: str, *, after: int) -> None:
    """Move a consumer to a position, forwards or backwards, and end its leases. All its receipt handles become invalid.

    Dead letters after the position are no longer parked, and polls lease them again. Parked dead letters up to the position
    stay parked. Raise RegistrationError if the consumer does not exist.
    """
    key = _key(customer_id, name)
    with connect.translated_errors(), connect.in_transaction(connection):
        locked(connection, key)
        connection.execute(query("end_leases"), key | {"read_until": after})
        connection.execute(query("end_receipts_of_parked"), key)
        connection.execute(query("set_read_until"), key | {"read_until": after})


def position_before(connection: connect.Connection, customer_id: str, since: dt.datetime) -> int:
    """Return the position before the first waiting dead letter that was archived at `since` or later.

    If every waiting dead letter was archived earlier, return what `end` returns.
    """
    with connect.translated_errors():
        first = connection.execute(query("first_dead_letter_since"), {"customer_id": customer_id, "since": since}).fetchone()
        if first is not None and first["position"] is not None:
            return int(first["position"]) - 1
        return end(connection, customer_id)


def end(connection: connect.Connection, customer_id: str) -> int:
    """Return the position of the newest dead letter in state `waiting`, or 0, the beginning, if there is none.

    Later dead letters have higher positions.
    """
    with connect.translated_errors():
        last = connection.execute(query("last_dead_letter"), {"customer_id": customer_id}).fetchone()
    return int(last["position"]) if last is not None and last["position"] is not None else _BEGINNING


def _expired(
    connection: connect.Connection, taken: dict[str, Any], max_receives: int | None, limit: int, max_parked: int
) -> tuple[list[int], bool]:
    """Return the positions of at most `limit` dead letters with an expired lease, which the poll can lease again.

    1. `max_receives` given: examine the `max_parked` leases that expired first. Park the dead letters that were leased
       `max_receives` times, and return other positions. Also return True if the call has parked some dead letters and there may
       be further expired leases.
    2. `max_receives` None: park nothing. Return the positions of the leases that expired first, and False.

    `taken` has the parameters of the statements.
    """
    if max_receives is None:
        return [row["position"] for row in connection.execute(query("expired_leases"), taken | {"limit": limit})], False
    found = connection.execute(query("expired_leases"), taken | {"limit": max_parked}).fetchall()
    if parked := [row["position"] for row in found if row["times"] >= max_receives]:
        connection.execute(query("park"), taken | {"positions": parked})
    others = [row["position"] for row in found if row["times"] < max_receives]
    return others[:limit], len(found) == max_parked and bool(parked)


def _new(
    connection: connect.Connection,
    key: dict[str, Any],
    consumer: dict[str, Any],
    limit: int,
    taken: dict[str, Any],
    *,
    held: int,
    of_whole_customer: Callable[[], contextlib.AbstractContextManager[None]],
) -> tuple[list[ArchivedDeadLetter], bool]:
    """Lease at most `limit` matching dead letters after the consumer's `read_until`.

    Move `read_until` past the examined dead letters. Return the leased dead letters, and True if there may be more. With
    `limit` 0, examine nothing, and return an empty list and False. `held` are the bytes that the answer has already. `key`
    names the consumer, `consumer` is its row, and `taken` has the token and the times of the leases.
    """
    if not limit:
        return [], False
    after, selection = consumer["read_until"], _selection(consumer)
    customer_id = key["customer_id"]
    with of_whole_customer():
        found = archived_dead_letters.find_fitting(connection, customer_id, selection, after=after, limit=limit, held=held)
    if found.until != after:
        connection.execute(query("put_leases"), key | taken | {"positions": found.positions, "read_until": found.until})
    return archived_dead_letters.waiting(connection, customer_id, found.positions), found.has_more


def locked(connection: connect.Connection, key: dict[str, Any]) -> dict[str, Any]:
    """Lock the consumer with this `customer_id` and `name`; raise RegistrationError if it does not exist.

    Return its row: the columns of the statement `lock_consumer`. Must run in a transaction.
    """
    found = connection.execute(query("lock_consumer"), key).fetchone()
    if found is None:
        problem = f"this customer has no consumer {key['name']}, so nothing was changed: create it, or correct the name"
        raise errors.RegistrationError("consumer", problem)
    return found


def _key(customer_id: str, name: str) -> dict[str, Any]:
    return {"customer_id": customer_id, "name": name}


def _selection(row: dict[str, Any]) -> DeadLetterSearch:
    return DeadLetterSearch(**{name: row[name] for name in ("endpoint_id", "event_type", "tenant_id", "reason")})


def _consumer(row: dict[str, Any]) -> ConsumerState:
    facts = {name: row[name] for name in ("name", "read_until", "created_at", "unacknowledged", "max_receives")}
    return ConsumerState(selection=_selection(row), **facts)
