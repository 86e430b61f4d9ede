"""Refuse to start when a topic of the retry lane has another name than in the lane's checkpoint.

Runs on the driver before the lanes. Spark refuses to run a query if its offset log has a topic that the query does not read.
Meanwhile the other lanes would postpone deliveries into the topic with the new name. After the name is changed back, nobody
would read the topic with the new name.
"""

from __future__ import annotations

import logging

from pyspark.sql import SparkSession

from delivery import errors
from delivery.config import settings
from delivery.stages.checkpoint import offset_log, recovery
from delivery.stages.checkpoint.offset_log import Positions

log = logging.getLogger(__name__)


def require_same(spark: SparkSession, config: settings.Settings) -> None:
    """Raise SettingsError if the checkpoint of the retry lane has positions in a topic that no setting names now.

    Otherwise look at the interrupted micro-batch, if there is one. If its end offsets have a topic that no setting names now,
    remove this topic from them. Spark has never run the micro-batch, and would refuse to run it with this topic.
    Without a committed micro-batch do nothing. Raise LaneFailed if the checkpoint is damaged. Called while no query of the lane
    runs.
    """
    folder = f"{config.spark.checkpoint.rstrip('/')}/retry"
    _, committed = recovery.newest(spark, folder)
    if committed < 0:
        return
    checkpoint = offset_log.Checkpoint(spark, folder)
    names = {"delivery.retries_topic": config.delivery.retries_topic, "retry.ticks_topic": config.retry.ticks_topic}
    read = set(names.values())
    if renamed := sorted(checkpoint.positions.keys() - read):
        # A checkpoint of before there was a ticks topic has no position there.
        changed = [setting for setting, topic in names.items() if topic not in checkpoint.positions][: len(renamed)]
        earlier = renamed[0] if len(renamed) == 1 else "the earlier names"
        raise errors.SettingsError(
            f"the checkpoint of lane retry has positions in {', '.join(renamed)}: set {' and '.join(changed)} to {earlier}. "
            "The job did not start, and nothing was sent. A topic of lane retry cannot be renamed: deliveries wait there"
        )
    if checkpoint.has_whole_ends(read.__contains__):
        return

    def ends_in_read(ends: Positions) -> Positions:
        if others := sorted(ends.keys() - read):
            log.warning(
                "an interrupted micro-batch of lane retry names the topics %s, which no setting names now. The lane leaves "
                "these topics out, and continues at its earlier positions. If deliveries were postponed there meanwhile, lane "
                "retry does not attempt them: request a replay of that time for their endpoints", ", ".join(others),
            )  # fmt: skip
        return {topic: at for topic, at in ends.items() if topic in read}

    checkpoint.move(checkpoint.positions, ends_in_read)
