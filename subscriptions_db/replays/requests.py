"""Request, list and cancel replays, of a time range or of one delivery.

Runs in the API and in `fanout` commands, in the caller's transaction if there is one. `fanout archive` carries out the replays
(progress.py).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import secrets
from dataclasses import dataclass
from typing import Any, NamedTuple

from delivery import errors
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query


class ReplayState(enum.StrEnum):
    """The state of a replay."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    """Every delivery is enqueued in the retry lane. The outcomes of the deliveries are still counted."""
    FAILED = "failed"
    CANCELLED = "cancelled"


UNFINISHED = frozenset({ReplayState.WAITING, ReplayState.RUNNING})
"""The states of replays that still enqueue deliveries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRange:
    """The events to replay: all events that were appended to Kafka at `since` or later, and before `until`."""

    since: dt.datetime
    until: dt.datetime
    event_types: list[str] | None = None
    """Exact types, or prefix wildcards such as `order.*`. None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOne:
    """The delivery that a resend delivers again, and the position of its event in Kafka."""

    webhook_id: str
    subscription_id: str
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """A requested replay and its progress."""

    replay_id: str
    number: int
    """Sequence number, over the replays of all customers. A later request has a higher number."""
    customer_id: str
    endpoint_id: str
    asked: ReplayRange | ReplayOne
    state: ReplayState
    reason: str | None
    """The reason why the replay failed. None: it has not failed."""
    is_whole: bool
    """False: Kafka may no longer hold some of the requested events."""
    created_at: dt.datetime
    state_since: dt.datetime
    records: int
    """Records read, whether or not they were due to the endpoint."""
    handed_over: int
    """Deliveries enqueued in the retry lane. Each of them is also in one of the three counts below once it has ended."""
    delivered: int
    dead_lettered: int
    skipped: int

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> ReplayRequest:
        """Return the replay of a row of `replays`."""
        asked: ReplayRange | ReplayOne
        of_range = {name: row.pop(name) for name in ("since", "until", "event_types")}
        of_one = {name: row.pop(name) for name in ("webhook_id", "subscription_id", "topic", "partition", "offset")}
        asked = ReplayRange(**of_range) if of_one["webhook_id"] is None else ReplayOne(**of_one)
        return cls(asked=asked, **row | {"state": ReplayState(row["state"])})


MAX_DAYS = 31
"""Maximum days from `since` to `until` of one replay."""


def range_of(since: dt.datetime, until: dt.datetime | None, event_types: list[str] | None, *, now: dt.datetime) -> ReplayRange:
    """Return a time range to replay, which ends `now` by default.

    Raise RegistrationError for a range that ends after `now`, is empty, or is longer than MAX_DAYS.
    """
    end = until or now
    if end > now:
        raise errors.RegistrationError(
            "until", "is in the future, so no replay was requested: leave it out. Later events are delivered anyway"
        )
    if since >= end:
        raise errors.RegistrationError("since", "must be before until, which is now if it is left out. No replay was requested")
    if end - since > dt.timedelta(days=MAX_DAYS):
        raise errors.RegistrationError(
            "since", f"is more than {MAX_DAYS} days before until, so no replay was requested: request several shorter ones"
        )
    return ReplayRange(since=since, until=end, event_types=event_types)


def ask(
    connection: connect.Connection, customer_id: str, endpoint_id: str, asked: ReplayRange | ReplayOne
) -> ReplayRequest | None:
    """Request a replay and return it; return None if an unfinished replay excludes it.

    An unfinished replay of one delivery excludes another replay of the same delivery. An unfinished replay of a time range
    excludes every replay of a time range of the same endpoint. The caller has checked that the endpoint exists. The API also
    checks `room` before the call; `fanout` commands do not.
    """
    fields = {field: getattr(asked, field, None) for kind in (ReplayRange, ReplayOne) for field in kind.__dataclass_fields__}
    whose = {"replay_id": f"rpl_{secrets.token_hex(12)}", "customer_id": customer_id, "endpoint_id": endpoint_id}
    with connect.translated_errors():
        row = connection.execute(query("put_replay"), fields | whose).fetchone()
    return None if row is None else ReplayRequest.from_row(row)


class RoomForReplays(NamedTuple):
    """Numbers of a customer by which the API accepts or refuses the request for a replay."""

    unfinished: int
    """The customer's unfinished replays."""
    reached_dead_letters: int | None
    """The customer's quota of waiting dead letters, if `fanout archive` found the quota reached, and it is reached now. None:
    the quota is not reached, or there is none."""


def room(connection: connect.Connection, customer_id: str) -> RoomForReplays:
    """Return the numbers of a customer by which the API accepts or refuses the request for a replay."""
    with connect.translated_errors():
        [row] = connection.execute(query("room_for_replays"), {"customer_id": customer_id}).fetchall()
    return RoomForReplays(row["unfinished"], row["dead_letters"])


def get(connection: connect.Connection, customer_id: str, replay_id: str) -> ReplayRequest | None:
    """Return a customer's replay; None if there is none with this id."""
    with connect.translated_errors():
        row = connection.execute(query("replay"), {"customer_id": customer_id, "replay_id": replay_id}).fetchone()
    return None if row is None else ReplayRequest.from_row(row)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySearch:
    """Search criteria for replays. A criterion that is None matches everything."""

    endpoint_id: str | None = None
    state: ReplayState | None = None
    since: dt.datetime | None = None
    """Requested at this time or later."""
    until: dt.datetime | None = None
    """Requested before this time."""


def nearest(
    connection: connect.Connection, customer_id: str, asked: ReplaySearch, *, number: int, is_newer: bool, limit: int
) -> list[ReplayRequest]:
    """Return at most `limit` matching replays that are older than the replay `number`, the newest first.

    With `is_newer`, return replays that are newer than the replay `number`, the oldest first.
    """
    name, wanted = "oldest_after" if is_newer else "newest_before", {"place": number, "limit": limit}
    return [ReplayRequest.from_row(row) for row in _matching(connection, customer_id, asked, name, wanted)]


def count(connection: connect.Connection, customer_id: str, asked: ReplaySearch) -> int:
    """Return the number of matching replays."""
    [row] = _matching(connection, customer_id, asked, "number_of_replays", {})
    return int(row["count"])


def _matching(
    connection: connect.Connection, customer_id: str, asked: ReplaySearch, name: str, wanted: dict[str, int]
) -> list[dict[str, Any]]:
    statement = "with matching as (" + query("matching_replays") + ")" + query(name)
    with connect.translated_errors():
        # Not prepared: the right plan depends on the criteria that are given.
        parameters = dataclasses.asdict(asked) | wanted | {"customer_id": customer_id}
        return connection.execute(statement, parameters, prepare=False).fetchall()


def get_any(connection: connect.Connection, replay_id: str) -> ReplayRequest | None:
    """Return the replay with this id, of any customer; None if there is none."""
    with connect.translated_errors():
        row = connection.execute(query("any_replay"), {"replay_id": replay_id}).fetchone()
    return None if row is None else ReplayRequest.from_row(row)


def newest(connection: connect.Connection, *, endpoint_id: str | None, limit: int) -> list[ReplayRequest]:
    """Return at most `limit` replays to an endpoint, the newest first. `endpoint_id` None: to any endpoint."""
    with connect.translated_errors():
        found = connection.execute(query("newest_replays"), {"endpoint_id": endpoint_id, "limit": limit})
        return [ReplayRequest.from_row(row) for row in found]


def cancel(connection: connect.Connection, customer_id: str, replay_id: str, *, now: dt.datetime) -> bool:
    """Cancel a replay; return False if it is finished or unknown. Deliveries that are enqueued already are still delivered."""
    asked = {"customer_id": customer_id, "replay_id": replay_id, "now": now}
    with connect.translated_errors():
        return connection.execute(query("cancel_replay"), asked).rowcount == 1
