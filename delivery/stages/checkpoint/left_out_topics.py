"""Keep the positions of topics that `source.topic_pattern` no longer matches, until it matches them again.

Runs on the driver before the lanes. Spark refuses to run a query if its offset log has a topic that the query does not read.
So the positions of such topics move from the lane's offset log into a file of its checkpoint folder. If the pattern matches a
topic again, its position moves back, and the lane continues there. Without the file Spark would take the topic for a new one,
and read it from its first record. After a crash between two writes the next start ends with the same positions.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from pyspark.sql import SparkSession

from delivery.config import settings, topic_pattern
from delivery.stages.checkpoint import offset_log, recovery
from delivery.stages.checkpoint.offset_log import Positions

log = logging.getLogger(__name__)

FILE = "left-out-topics.json"
"""Name of the file with the positions, in a lane's checkpoint folder. Its JSON has the form of Positions."""
LANES = ("direct", "batch")
"""Lanes that read topics by `source.topic_pattern` alone. The topics of the real-time lane move to and from the direct lane."""


class Split(NamedTuple):
    """The positions of a lane's topics, by whether the lane reads them now."""

    read: Positions
    """The positions for the offset log: their topics are read."""
    left_out: Positions
    """The positions for the file: their topics are not read."""


def split(logged: Positions, kept: Positions, reads: Callable[[str], bool]) -> Split:
    """Split the positions in the offset log (`logged`) and the file (`kept`) by whether the lane reads the topic now. Pure.

    `reads` returns True for a topic that the lane reads now. If the offset log and the file have a position of one partition,
    the position in the offset log counts, because it is newer.
    """
    known = {topic: kept.get(topic, {}) | logged.get(topic, {}) for topic in logged | kept}
    return Split(
        {topic: at for topic, at in known.items() if reads(topic)},
        {topic: at for topic, at in known.items() if not reads(topic)},
    )


def align(spark: SparkSession, config: settings.Settings, lanes: Iterable[str]) -> None:
    """Move positions between the offset logs of `lanes` and the files, by the topics that these lanes read now.

    Lanes that are not in LANES stay unchanged. Raise LaneFailed if a checkpoint is damaged.
    """
    for lane in lanes:
        if lane in LANES:
            _align(spark, f"{config.spark.checkpoint.rstrip('/')}/{lane}", lane, _reader(config, lane))


def restored(spark: SparkSession, config: settings.Settings, lane: str, positions: Positions) -> Positions:
    """Return the positions that a lane at `positions` would have after `align`. Write nothing."""
    if lane not in LANES:
        return positions
    folder = f"{config.spark.checkpoint.rstrip('/')}/{lane}"
    return split(positions, _kept(spark, f"{folder}/{FILE}"), _reader(config, lane)).read


def _kept(spark: SparkSession, name: str) -> Positions:
    found: Positions = json.loads(offset_log.read(spark, name) or "{}")
    return found


def _reader(config: settings.Settings, lane: str) -> Callable[[str], bool]:
    wake_up = {config.batch.ticks_topic} if lane == "batch" else set()
    return lambda topic: topic in wake_up or topic_pattern.matches(config.source.topic_pattern, topic)


def _align(spark: SparkSession, folder: str, lane: str, reads: Callable[[str], bool]) -> None:
    _, committed = recovery.newest(spark, folder)
    if committed < 0:  # the offset log has no position yet
        return
    checkpoint, name = offset_log.Checkpoint(spark, folder), f"{folder}/{FILE}"
    kept = _kept(spark, name)
    now = split(checkpoint.positions, kept, reads)
    comes = now.read.keys() & kept.keys()
    goes = now.left_out.keys() & checkpoint.positions.keys()
    if comes or goes or not checkpoint.has_whole_ends(reads):
        _write(spark, name, kept | now.left_out)
        checkpoint.move(now.read, lambda ends: {topic: at for topic, at in ends.items() if reads(topic)})
        _write(spark, name, now.left_out)
    if goes:
        log.warning(
            "lane %s no longer reads the topics %s: source.topic_pattern does not match them now. Their events wait in Kafka, "
            "until Kafka's retention deletes them. To deliver them, change the pattern so that it matches these topics again: "
            "the lane then continues at its earlier positions", lane, ", ".join(sorted(goes)),
        )  # fmt: skip
    if comes:
        log.warning("lane %s reads the topics %s again, at their earlier positions", lane, ", ".join(sorted(comes)))


def _write(spark: SparkSession, name: str, positions: Positions) -> None:
    if positions:
        offset_log.write(spark, name, json.dumps(positions, separators=(",", ":")))
    else:
        offset_log.delete(spark, name)
