"""Accept that records were gone before a lane read them: note which in the audit log, and let the lane go on behind them.

Runs in the command, with a Spark of its own, while no job runs the lanes.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from delivery.config import settings, topic_pattern
from delivery.stages.checkpoint import lock, losses
from delivery.stages.kafka import source
from delivery.stages.lanes import session
from fanout.kafka import topic_scanner
from subscriptions_db.postgres import audit, connect


class Accepted(NamedTuple):
    """What one lane has lost of a partition."""

    lane: str
    loss: losses.Loss

    def document(self) -> dict[str, Any]:
        """Return it for machines, for people, and for the audit log."""
        records = None if self.loss.last is None else self.loss.last - self.loss.first + 1
        return {"lane": self.lane, **self.loss._asdict(), "records": records}


class _Move(NamedTuple):
    checkpoint: losses.Checkpoint
    positions: losses.Positions
    held: dict[tuple[str, int], losses.Held]


def accept(config: settings.Settings, libraries: session.Libraries, lanes: Collection[str], *, is_dry: bool) -> list[Accepted]:
    """Return what the lanes have lost; unless `is_dry`, note it, and then move their checkpoints.

    Nothing is moved without its note. After a crash between the two it is found, and noted, once more.
    """
    mine = lock.Lock(config.spark, lanes)
    with mine.held(threading.Event(), is_patient=False), session.running(config.spark, libraries) as spark:
        found, moves = _examined(config, spark, lanes)
        if moves and not is_dry:
            with connect.connect(config.database) as connection, connect.translated_errors():
                audit.note_many(connection, list(map(_entry, found)))
            for move in moves:
                move.checkpoint.move(move.positions, move.held)
        return found


def _examined(config: settings.Settings, spark: SparkSession, lanes: Collection[str]) -> tuple[list[Accepted], list[_Move]]:
    found, moves = [], []
    with contextlib.closing(topic_scanner.Scanner(config.kafka)) as scanner:
        for lane in lanes:
            checkpoint = losses.Checkpoint(spark, f"{config.spark.checkpoint.rstrip('/')}/{lane}")
            extents = scanner.extents({*checkpoint.positions, *_event_topics(config, scanner, lane)})
            held: dict[tuple[str, int], losses.Held] = {one.place: losses.Held(one.low, one.end) for one in extents}
            positions, lost = losses.moved(checkpoint.positions, held)
            found += [Accepted(lane, loss) for loss in lost]
            if lost:
                moves.append(_Move(checkpoint, positions, held))
    return found, moves


def _event_topics(config: settings.Settings, scanner: topic_scanner.Scanner, lane: str) -> list[str]:
    """Return the topics of events that a lane reads."""
    if lane == "retry":
        return []
    found = [name for name in scanner.names() if topic_pattern.matches(config.source.topic_pattern, name)]
    if lane == "batch":
        return found
    return [name for name in found if source.is_realtime(config.source, name) is (lane == "realtime")]


def _entry(one: Accepted) -> dict[str, Any]:
    place = f"{one.loss.topic}:{one.loss.partition}"
    return audit.entry(audit.COMMAND, "accept-loss", "partition", place, customer_id=None, after=one.document())
