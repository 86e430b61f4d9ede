"""Move topics from the direct lane to the real-time lane, or back, when `source.realtime_pattern` has changed.

Runs on the driver before the lanes. Both lanes must keep their progress below one `spark.checkpoint`. A position is the next
offset of a partition. The positions of a moved topic go to the checkpoint of the other lane. Otherwise Spark would refuse to
run the old lane, because a topic that the lane had read is missing. In the new lane, Spark would read the topic from its first
record, and all of the topic would be sent again. After a crash between two steps the next start repeats the same steps.

A topic that is newer than the last commit of the real-time lane has no position, but may have offset receipts: records of the
attempts topic that name handled offsets. When such a topic leaves the lane, the direct lane continues after these offsets.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection

from pyspark.sql import SparkSession

from delivery import errors
from delivery.config import settings, topic_pattern
from delivery.stages.checkpoint import left_out_topics, object_store, offset_log, paused_topics, recovery
from delivery.stages.checkpoint.offset_log import Positions
from delivery.stages.checkpoint_lock import file_lock
from delivery.stages.kafka import topic_source, topics
from delivery.stages.realtime import start_offsets

log = logging.getLogger(__name__)


def split_by_topic(positions: Positions, goes: Callable[[str], bool]) -> tuple[Positions, Positions]:
    """Return two parts of `positions`: of the topics that stay, and of the topics for which `goes` returns True."""
    stays = {topic: numbers for topic, numbers in positions.items() if not goes(topic)}
    return stays, {topic: numbers for topic, numbers in positions.items() if goes(topic)}


def merged(positions: Positions, come: Positions) -> Positions:
    """Return the union of two sets of positions, with the larger offset of a partition that both contain."""
    result = {topic: dict(numbers) for topic, numbers in positions.items()}
    for topic, numbers in come.items():
        known = result.setdefault(topic, {})
        for number, at in numbers.items():
            known[number] = max(at, known.get(number, 0))
    return result


def move_topics(
    spark: SparkSession,
    config: settings.Settings,
    names: Collection[str],
    *,
    existing: Callable[[settings.KafkaSettings], Collection[str]] = topics.names,
) -> None:
    """Move the positions of the topics that `source.realtime_pattern` now assigns to the other lane.

    `names` are the lanes of this job. They may contain `realtime` without a pattern: then the lane does not run, and the direct
    lane takes its topics back. `existing` returns the names of Kafka's topics.

    Raise SettingsError if topics must move and this job has only one of the two lanes. A job with only the direct lane may take
    topics back if there is no pattern and the checkpoint is a folder.
    If topics must move and there is no pattern, lock the real-time lane's folder until the process ends. Raise CheckpointInUse
    if another process has locked this folder.
    Raise SettingsError also if topics must move to a direct lane that has committed nothing: its checkpoint takes no position.
    Raise KafkaUnavailable if Kafka's topics or the progress of the real-time lane cannot be read. Raise LaneFailed if a
    checkpoint is damaged.
    """
    if not {"direct", "realtime"} & set(names):
        return
    root, source = config.spark.checkpoint.rstrip("/"), config.source
    direct, realtime = _opened(spark, f"{root}/direct"), _opened(spark, f"{root}/realtime")
    kept, has_begun = start_offsets.load_progress(spark, f"{root}/realtime")
    if not (kept or source.realtime_pattern or has_begun):
        return
    is_realtime = functools.partial(topic_source.is_realtime, source)
    at = {} if direct is None else _restored(spark, config, direct.positions)
    # `gone` are the positions of topics that leave the real-time lane, `come` of those that join it.
    gone, come = split_by_topic(kept, is_realtime)[0], split_by_topic(at, is_realtime)[1]
    _require_both_lanes(config, names, {**come, **gone})
    _require_commit(direct, gone)
    newer: set[str] = set()
    if has_begun and "direct" in names:  # lane direct would deliver these topics from their first records
        found = {name for name in existing(config.kafka) if topic_pattern.matches(source.topic_pattern, name)}
        newer = found - at.keys() - kept.keys()
    if not come and not gone and all(map(is_realtime, newer)):
        return
    if not source.realtime_pattern:  # the lane does not run here, so the job has not locked its folder
        file_lock.acquire(config.spark.checkpoint, ["realtime"])
    if gone or newer or realtime is None:
        start = start_offsets.read(spark, config, f"{root}/realtime", of={*kept, *newer}.__contains__)
        kept = start_offsets.by_topic(start.next_offsets)
        gone = split_by_topic(kept, is_realtime)[0]
        _require_both_lanes(config, names, gone)
        _require_commit(direct, gone)
    if direct is not None:
        _move(spark, config, direct, realtime, kept=kept, come=come, gone=gone)


def _move(
    spark: SparkSession,
    config: settings.Settings,
    direct: offset_log.Checkpoint,
    realtime: offset_log.Checkpoint | None,
    *,
    kept: Positions,
    come: Positions,
    gone: Positions,
) -> None:
    if not (come or gone):
        return
    if gone:
        direct.change(lambda positions: merged(positions, gone))
        log.info("lane direct takes over the topics %s from lane realtime, at their positions", ", ".join(gone))

    def changed(positions: Positions) -> Positions:
        return merged(split_by_topic(positions, gone.__contains__)[0], come)

    if realtime is None:
        start_offsets.begin_at(spark, f"{config.spark.checkpoint.rstrip('/')}/realtime", changed(kept))
    else:
        realtime.change(changed)
    if come:
        direct.change(lambda positions: split_by_topic(positions, come.__contains__)[0])
        log.info("lane realtime takes over the topics %s from lane direct, at their positions", ", ".join(come))
    left_out_topics.align(spark, config, ["direct"])  # source.topic_pattern may match the topics of `gone` no longer


def _restored(spark: SparkSession, config: settings.Settings, positions: Positions) -> Positions:
    """Return `positions` of lane direct as they are once the lane has put back its paused and left-out topics.

    A job with lane direct has put these topics back already. In a job without lane direct, `positions` lacks these topics, and
    they would look like new topics.
    """
    folder = f"{config.spark.checkpoint.rstrip('/')}/direct"
    return left_out_topics.restored(spark, config, "direct", paused_topics.restored(spark, folder, positions))


def _require_both_lanes(config: settings.Settings, names: Collection[str], moving: Collection[str]) -> None:
    missing = {"direct", "realtime"} - set(names)
    if missing == {"realtime"} and not config.source.realtime_pattern:
        missing = {"realtime"} if object_store.folder_of(config.spark.checkpoint) is None else set()  # a folder can be locked
    if moving and missing:
        raise errors.SettingsError(
            f"source.realtime_pattern moves {', '.join(moving)} between the lanes direct and realtime, and this job "
            "has only one of them. The job did not start, and nothing was moved: name both lanes in one job once (--lanes), so "
            "that the topics keep their positions"
        )


def _require_commit(direct: offset_log.Checkpoint | None, gone: Collection[str]) -> None:
    if gone and direct is None:
        raise errors.SettingsError(
            f"source.realtime_pattern leaves out {', '.join(gone)}, and lane direct has committed nothing yet: it would start "
            "these topics at source.starting_offsets. The job did not start, and nothing was moved. Set the earlier pattern, "
            "let lane direct handle an event of another topic, and then change the pattern"
        )


def _opened(spark: SparkSession, folder: str) -> offset_log.Checkpoint | None:
    _, committed = recovery.newest(spark, folder)
    return None if committed < 0 else offset_log.Checkpoint(spark, folder)
