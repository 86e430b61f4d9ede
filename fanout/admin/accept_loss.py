"""Accept the loss of records that Kafka deleted before a lane read them, so that the lane continues after them.

Writes the loss to the audit log, and moves the lane's checkpoint to the next records that Kafka has. Runs in `fanout` commands,
with its own Spark session, while no job runs these lanes.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Collection
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from delivery.config import settings, topic_pattern
from delivery.stages.checkpoint import left_out_topics, losses, offset_log, paused_topics
from delivery.stages.checkpoint_lock import lock
from delivery.stages.kafka import completed_reader, topic_source
from delivery.stages.lanes import session
from fanout.kafka import topic_scanner
from subscriptions_db.postgres import audit_entries, connect


class Accepted(NamedTuple):
    """Records of one partition that one lane has lost."""

    lane: str
    loss: losses.Loss

    def document(self) -> dict[str, Any]:
        """Return the loss as a dictionary, for the output of the command and for the audit log.

        The keys are `lane`, the fields of Loss, and `records`, the number of lost records. `records` is None if the number is
        unknown: the partition is gone, or ends before the lane's position.
        """
        records = None if self.loss.last is None else self.loss.last - self.loss.first + 1
        return {"lane": self.lane, **self.loss._asdict(), "records": records}


class _Move(NamedTuple):
    checkpoint: offset_log.Checkpoint
    positions: offset_log.Positions
    held: dict[tuple[str, int], losses.OffsetRange]
    """Topic and partition → the range of offsets that Kafka has now."""
    goes_back: bool
    """True if the lane reads a partition again from its first record, because the partition ends before the lane's position."""


def accept(config: settings.Settings, libraries: session.Libraries, lanes: Collection[str], *, is_dry: bool) -> list[Accepted]:
    """Return the losses of the lanes. Unless `is_dry`, write them to the audit log, and then move the checkpoints past them.

    With `is_dry` nothing is changed. Otherwise the function takes three steps:
    1. It corrects the checkpoints as the start of a job does. Positions of paused topics, and of topics that
       `source.topic_pattern` matches again, return to the checkpoints. Positions of topics that the pattern no longer matches
       move out of the checkpoints.
    2. It writes each loss to the audit log.
    3. It moves the checkpoints past the losses. After a crash between steps 2 and 3, the next run audits the losses again.

    Raise CheckpointInUse if a job runs one of the lanes. Raise LaneFailed if a lane has started a micro-batch and committed
    none, or if its checkpoint is damaged. Raise SettingsError if the checkpoint cannot be written. Raise LeaseRefused if the
    Kubernetes Lease `spark.checkpoint_lease` cannot be used. Raise KafkaUnavailable or RegistryUnavailable if Kafka or Postgres
    does not answer. Raise KafkaUnavailable also if this login may not describe a topic of a lane, because the topic may exist.
    """
    own_lock = lock.Lock(config.spark, lanes)
    with own_lock.acquired(threading.Event(), is_patient=False), session.running(config.spark, libraries) as spark:
        if not is_dry:
            paused_topics.restore(spark, config.spark.checkpoint, lanes)
            left_out_topics.align(spark, config, lanes)
        found, moves = _examine(config, spark, lanes)
        if moves and not is_dry:
            with connect.connect(config.database) as connection, connect.translated_errors():
                audit_entries.note_many(connection, list(map(_entry, found)))
            # The lanes read receipts and results from this time on. Earlier receipts name offsets that now have other records.
            after_results_ms = round(time.time() * 1000) + completed_reader.SLACK_MS
            for move in moves:
                move.checkpoint.move(
                    move.positions,
                    functools.partial(losses.clamped, held=move.held),
                    began_ms=after_results_ms if move.goes_back else None,
                )
        return found


def _examine(config: settings.Settings, spark: SparkSession, lanes: Collection[str]) -> tuple[list[Accepted], list[_Move]]:
    found, moves = [], []
    with contextlib.closing(topic_scanner.Scanner(config.kafka)) as scanner:
        for lane in lanes:
            folder = f"{config.spark.checkpoint.rstrip('/')}/{lane}"
            checkpoint = offset_log.Checkpoint(spark, folder)
            # Without `is_dry`, nothing is left to restore.
            before = paused_topics.restored(spark, folder, checkpoint.positions)
            before = left_out_topics.restored(spark, config, lane, before)
            extents = scanner.extents({*before, *_event_topics(config, scanner, lane)})
            scanner.require_visible(before.keys() - {extent.place.topic for extent in extents})
            held: dict[tuple[str, int], losses.OffsetRange] = {
                extent.place: losses.OffsetRange(extent.low, extent.end) for extent in extents
            }
            positions, lost = losses.moved(before, held, has_committed=checkpoint.has_committed)
            found += [Accepted(lane, loss) for loss in lost]
            if lost:
                goes_back = any(loss.why is losses.LossReason.ENDS_BEFORE for loss in lost)
                moves.append(_Move(checkpoint, positions, held, goes_back))
    return found, moves


def _event_topics(config: settings.Settings, scanner: topic_scanner.Scanner, lane: str) -> list[str]:
    """Return the event topics that a lane reads now.

    The retry lane reads none, the batch lane reads all, and the direct and the real-time lane divide them.
    """
    if lane == "retry":
        return []
    found = [name for name in scanner.names() if topic_pattern.matches(config.source.topic_pattern, name)]
    if lane == "batch":
        return found
    return [name for name in found if topic_source.is_realtime(config.source, name) is (lane == "realtime")]


def _entry(accepted: Accepted) -> dict[str, Any]:
    place = f"{accepted.loss.topic}:{accepted.loss.partition}"
    return audit_entries.entry(
        audit_entries.COMMAND, "accept-loss", "partition", place, customer_id=None, after=accepted.document()
    )
