"""Give topics over from the direct lane to the real-time lane, or back, when `source.realtime_pattern` has changed.

Runs on the driver, before the lanes, where both keep their progress below one `spark.checkpoint`. Spark refuses to go on
without a topic that it has read, and begins one that is new to it with its first record: all of it would be sent again. So the
position moves to the other lane's checkpoint. After a crash between two steps the next start makes the same steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from pyspark.sql import SparkSession

from delivery import errors
from delivery.config import settings
from delivery.stages.checkpoint import losses, recovery
from delivery.stages.kafka import source
from delivery.stages.realtime import floors

log = logging.getLogger(__name__)


def parted(positions: losses.Positions, goes: Callable[[str], bool]) -> tuple[losses.Positions, losses.Positions]:
    """Return the positions that stay and those that go, by their topics."""
    stays = {topic: numbers for topic, numbers in positions.items() if not goes(topic)}
    return stays, {topic: numbers for topic, numbers in positions.items() if goes(topic)}


def joined(positions: losses.Positions, come: losses.Positions) -> losses.Positions:
    """Return positions with others; where both have a partition, the farther one."""
    result = {topic: dict(numbers) for topic, numbers in positions.items()}
    for topic, numbers in come.items():
        known = result.setdefault(topic, {})
        for number, at in numbers.items():
            known[number] = max(at, known.get(number, 0))
    return result


def move(spark: SparkSession, config: settings.Settings, names: Collection[str]) -> None:
    """Move the positions of the topics that belong to the other lane now.

    Raises SettingsError where another application may run one of the two lanes, or the direct lane has no checkpoint to take
    a position; KafkaUnavailable where it cannot be read how far the real-time lane has come.
    """
    if not {"direct", "realtime"} & set(names):
        return
    root = config.spark.checkpoint.rstrip("/")
    direct, realtime = _opened(spark, f"{root}/direct"), _opened(spark, f"{root}/realtime")
    kept = floors.remembered(spark, f"{root}/realtime") if realtime is None else realtime.positions
    if not (kept or config.source.realtime_pattern):
        return
    at = {} if direct is None else direct.positions
    _, come = parted(at, lambda topic: source.is_realtime(config.source, topic))
    _, gone = parted(kept, lambda topic: not source.is_realtime(config.source, topic))
    if not (come or gone):
        return
    if not {"direct", "realtime"} <= set(names):
        raise errors.SettingsError(
            "source.realtime_pattern has changed: run the lanes direct and realtime in one job once (--lanes)"
        )
    if direct is None:
        raise errors.SettingsError(
            f"source.realtime_pattern leaves out {', '.join(gone)}, and lane direct has committed nothing yet: it would begin "
            "there by source.starting_offsets. Let it handle an event of another topic before the pattern changes"
        )
    if gone:
        begin = floors.read(spark, config, f"{root}/realtime", of=gone.__contains__)
        handled = floors.by_topic(begin.next_offsets, gone)
        direct.change(lambda positions: joined(positions, handled))
        log.info("lane direct takes over %s", ", ".join(gone))

    def changed(positions: losses.Positions) -> losses.Positions:
        return joined(parted(positions, gone.__contains__)[0], come)

    if realtime is None:
        floors.remember(spark, f"{root}/realtime", changed(kept))
    else:
        realtime.change(changed)
    if come:
        direct.change(lambda positions: parted(positions, come.__contains__)[0])
        log.info("lane realtime takes over %s", ", ".join(come))


def _opened(spark: SparkSession, folder: str) -> losses.Checkpoint | None:
    _, committed = recovery.newest(spark, folder)
    return None if committed < 0 else losses.Checkpoint(spark, folder)
