"""Select the replays to work on, and record the progress of each.

Runs in `fanout archive`, which reads a replay in chunks: some records of one partition at a time. The progress is
committed after the deliveries of a chunk are enqueued. After a crash in between, the next process enqueues the same chunk
again, with the same `webhook-id`s.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query
from subscriptions_db.replays.requests import ReplayRequest, ReplayState


class PartitionProgress(NamedTuple):
    """The progress of a replay in one partition. Offsets from `next_offset` to before `end_offset` are still to read."""

    topic: str
    partition: int
    next_offset: int
    end_offset: int


class ReplayCounts(NamedTuple):
    """Numbers of a replay's deliveries by outcome. `add_counts` adds them to the counts of the replay in Postgres."""

    replay_id: str
    delivered: int = 0
    dead_lettered: int = 0
    skipped: int = 0


def resumable(connection: connect.Connection, *, max_pending: int) -> list[ReplayRequest]:
    """Return the unfinished replays, the oldest first.

    Two kinds are left out: replays with `max_pending` or more deliveries without an outcome, and running replays of a time
    range whose endpoint is paused or disabled. Raise RegistryUnavailable if Postgres is unavailable.
    """
    with connect.translated_errors():
        rows = connection.execute(query("resumable_replays"), {"max_pending": max_pending})
        return [ReplayRequest.from_row(row) for row in rows]


@contextlib.contextmanager
def locked(connection: connect.Connection, replay: ReplayRequest) -> Iterator[ReplayRequest | None]:
    """Lock a replay in a transaction, and yield the replay as it is now.

    Yield None if the replay has ended or was deleted, or if another process has locked it.
    """
    with connect.translated_errors(), connection.transaction():
        row = connection.execute(query("lock_replay"), {"replay_id": replay.replay_id}).fetchone()
        yield None if row is None else ReplayRequest.from_row(row)


def begin(
    connection: connect.Connection,
    replay: ReplayRequest,
    places: Sequence[PartitionProgress],
    *,
    is_whole: bool,
    now: dt.datetime,
) -> None:
    """Record that a replay is running, and the partitions to read. `is_whole`: Kafka still holds all requested events."""
    columns = {name: [getattr(place, name) for place in places] for name in PartitionProgress._fields}
    connection.execute(query("put_replay_partitions"), columns | {"replay_id": replay.replay_id})
    connection.execute(query("begin_replay"), {"replay_id": replay.replay_id, "is_whole": is_whole, "now": now})


def next_partition(connection: connect.Connection, replay: ReplayRequest) -> PartitionProgress | None:
    """Return a partition that still has offsets to read; None if there is none."""
    row = connection.execute(query("next_replay_partition"), {"replay_id": replay.replay_id}).fetchone()
    return None if row is None else PartitionProgress(**row)


def advance(
    connection: connect.Connection,
    replay: ReplayRequest,
    reached: PartitionProgress,
    *,
    is_lost: bool,
    records: int,
    handed_over: int,
) -> None:
    """Store `reached.next_offset` for its partition, and add `records` and `handed_over` to the counts of the replay.

    `records` are the records read, and `handed_over` the deliveries enqueued. `is_lost`: Kafka no longer holds some of the
    requested events, so the replay is not whole.
    """
    connection.execute(query("advance_replay_partition"), reached._asdict() | {"replay_id": replay.replay_id})
    count(connection, replay, is_lost=is_lost, records=records, handed_over=handed_over)


def count(connection: connect.Connection, replay: ReplayRequest, *, is_lost: bool, records: int, handed_over: int) -> None:
    """Add `records`, the records read, and `handed_over`, the deliveries enqueued, to a replay's counts.

    `is_lost`: Kafka no longer holds some of the requested events, so the replay is not whole.
    """
    counted = {"records": records, "handed_over": handed_over, "is_lost": is_lost}
    connection.execute(query("add_replayed_records"), counted | {"replay_id": replay.replay_id})


def end(
    connection: connect.Connection, replay: ReplayRequest, state: ReplayState, *, now: dt.datetime, reason: str | None = None
) -> None:
    """Record the final state of a replay, and delete its partitions' progress.

    `reason`: why the replay failed; None: it did not fail.
    """
    asked = {"replay_id": replay.replay_id, "state": state, "reason": reason, "now": now}
    connection.execute(query("end_replay"), asked)
    connection.execute(query("delete_replay_partitions"), asked)


def add_counts(connection: connect.Connection, ended: Iterable[ReplayCounts]) -> None:
    """Add outcomes of deliveries to the counts of their replays. `ended` has at most one item for each replay.

    The caller must archive the outcomes in the same transaction, so that each archived outcome counts once.
    """
    rows = sorted(ended)
    if rows:
        columns = {name: [getattr(row, name) for row in rows] for name in ReplayCounts._fields}
        connection.execute(query("add_replay_outcomes"), columns)


def forget(connection: connect.Connection, *, before: dt.datetime) -> int:
    """Delete the replays that ended before a time; return their number."""
    with connect.translated_errors():
        return connection.execute(query("delete_old_replays"), {"before": before}).rowcount
