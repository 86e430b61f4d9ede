"""Move topics from the direct lane to the real-time lane, or back, when `source.realtime_pattern` has changed.

Runs on the driver before the lanes. Both lanes must keep their progress below one `spark.checkpoint`. A position is the next
offset of a partition. The positions of a moved topic go to the checkpoint of the other lane. Otherwise Spark would refuse to
run the old lane, because a topic that the lane had read is missing. In the new lane, Spark would read the topic from its first
record, and all of the topic would be sent again. After a crash between two steps the next start repeats the same steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable

from pyspark.sql import SparkSession

from delivery import errors
from delivery.config import settings
from delivery.stages.checkpoint import left_out_topics, offset_log, recovery
from delivery.stages.checkpoint.offset_log import Positions
from delivery.stages.kafka import topic_source
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


def move_topics(spark: SparkSession, config: settings.Settings, names: Collection[str]) -> None:
    """Move the positions of the topics that `source.realtime_pattern` now assigns to the other lane.

    `names` are the lanes of this job. Raise SettingsError if topics must move and this job runs only one of the two lanes.
    Raise SettingsError also if topics must move to a direct lane that has committed nothing: its checkpoint takes no position.
    Raise KafkaUnavailable if the progress of the real-time lane cannot be read, and LaneFailed if a checkpoint is damaged.
    """
    if not {"direct", "realtime"} & set(names):
        return
    root = config.spark.checkpoint.rstrip("/")
    direct, realtime = _opened(spark, f"{root}/direct"), _opened(spark, f"{root}/realtime")
    kept = start_offsets.load_positions(spark, f"{root}/realtime")
    if not (kept or config.source.realtime_pattern):
        return
    at = {} if direct is None else direct.positions
    _, come = split_by_topic(at, lambda topic: topic_source.is_realtime(config.source, topic))
    _, gone = split_by_topic(kept, lambda topic: not topic_source.is_realtime(config.source, topic))
    if not (come or gone):
        return
    _require_both_lanes(names, {**come, **gone})
    if direct is None:
        raise errors.SettingsError(
            f"source.realtime_pattern leaves out {', '.join(gone)}, and lane direct has committed nothing yet: it would start "
            "these topics at source.starting_offsets. The job did not start, and nothing was moved. Set the earlier pattern, "
            "let lane direct handle an event of another topic, and then change the pattern"
        )
    if gone or realtime is None:
        start = start_offsets.read(spark, config, f"{root}/realtime", of=kept.__contains__)
        kept = start_offsets.by_topic(start.next_offsets)
    if gone:
        handled = split_by_topic(kept, gone.__contains__)[1]
        direct.change(lambda positions: merged(positions, handled))
        log.info("lane direct takes over the topics %s from lane realtime, at their positions", ", ".join(gone))

    def changed(positions: Positions) -> Positions:
        return merged(split_by_topic(positions, gone.__contains__)[0], come)

    if realtime is None:
        start_offsets.begin_at(spark, f"{root}/realtime", changed(kept))
    else:
        realtime.change(changed)
    if come:
        direct.change(lambda positions: split_by_topic(positions, come.__contains__)[0])
        log.info("lane realtime takes over the topics %s from lane direct, at their positions", ", ".join(come))
    left_out_topics.align(spark, config, ["direct"])  # source.topic_pattern may match the topics of `gone` no longer


def _require_both_lanes(names: Collection[str], topics: Iterable[str]) -> None:
    if not {"direct", "realtime"} <= set(names):
        raise errors.SettingsError(
            f"source.realtime_pattern moves {', '.join(topics)} between the lanes direct and realtime, and this job "
            "runs only one of them. The job did not start, and nothing was moved: run both lanes in one job once (--lanes), so "
            "that the topics keep their positions"
        )


def _opened(spark: SparkSession, folder: str) -> offset_log.Checkpoint | None:
    _, committed = recovery.newest(spark, folder)
    return None if committed < 0 else offset_log.Checkpoint(spark, folder)
