"""Choose the lanes that a job runs, and prepare the real-time lane: check its settings and slots, then move topics.

Runs on the driver before the lanes start. `fanout accept-loss` uses only `default_names`. If `source.realtime_pattern` has
changed, topics move between the direct and the real-time lane. All checks come before this move, so a refused start moves
nothing. After a refused start, the job can start with its earlier settings again, because each topic is still in its earlier
lane.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection

from pyspark.sql import SparkSession

from delivery import errors
from delivery.config import settings
from delivery.stages.lanes import lane_context
from delivery.stages.realtime import realtime_query, topic_moves
from delivery.stages.registry import job_registry

log = logging.getLogger(__name__)
LANES = ("direct", "batch", "retry", realtime_query.NAME)
"""Names of all lanes."""


def default_names(config: settings.Settings) -> list[str]:
    """Return the lanes to run if the operator names none: all, except `realtime` if `source.realtime_pattern` is empty."""
    return _with_topics(config, LANES)


def names_to_run(config: settings.Settings, named: Collection[str] | None) -> list[str]:
    """Return the lanes that the job runs: those in `named`, the lanes that the operator names. `named` None: all lanes.

    Leave `realtime` out if `source.realtime_pattern` is empty. Log a warning if the operator has named it all the same. Raise
    SettingsError if no lane is left.
    """
    names = _with_topics(config, named or LANES)
    if not names:
        raise errors.SettingsError(
            "lane realtime is named in --lanes and has no topics, so the job did not start: set source.realtime_pattern, or "
            "name other lanes"
        )
    if named and len(names) < len(named):
        log.warning(
            "lane realtime is named in --lanes and does not run, because source.realtime_pattern is empty. Lane direct takes "
            "the topics that lane realtime had. Leave realtime out of --lanes (chart: drivers.NAME.lanes), or set a pattern"
        )
    return names


def _with_topics(config: settings.Settings, names: Collection[str]) -> list[str]:
    return [name for name in names if name != realtime_query.NAME or config.source.realtime_pattern]


def build_realtime(
    config: settings.Settings,
    spark: SparkSession,
    registry: job_registry.RegistrySupply,
    context: lane_context.LaneContext,
    *,
    stop: threading.Event,
    names: Collection[str],
    once: bool,
) -> dict[str, realtime_query.RealtimeLane]:
    """Return a dictionary with the real-time lane by its name. `names` are the lanes that the operator names, or all lanes.

    The dictionary is empty if the lane is not in `names`, or if `source.realtime_pattern` is empty. After all checks, move
    topics between the lanes if `source.realtime_pattern` has changed. A refused start has moved nothing.

    Raise SettingsError if the lane cannot run with these settings. Unless `once` is true, raise it also if Spark has too few
    slots. Raise the errors of topic_moves.move_topics.
    """
    lanes: dict[str, realtime_query.RealtimeLane] = {}
    if config.source.realtime_pattern and realtime_query.NAME in names:
        lane = _lane(config, spark, registry, context, stop, shares=len(names) > 1)
        if not once:  # with `once`, micro-batches need no slot for each partition
            lane.require_slots()
        lanes[realtime_query.NAME] = lane
    topic_moves.move_topics(spark, config, names)
    if config.source.realtime_pattern and realtime_query.NAME not in names and "direct" in names:
        log.warning(
            "endpoints in direct mode get no events of the topics of source.realtime_pattern from this application: lane "
            "direct leaves them out, and lane realtime does not run here. Unless it runs in another application, these "
            "events wait in Kafka. Name realtime in --lanes here or there (chart: drivers.NAME.lanes), or drop the pattern"
        )
    return lanes


def _lane(
    config: settings.Settings,
    spark: SparkSession,
    registry: job_registry.RegistrySupply,
    context: lane_context.LaneContext,
    stop: threading.Event,
    *,
    shares: bool,
) -> realtime_query.RealtimeLane:
    if registry.follower is None:
        raise errors.SettingsError(
            'lane realtime does not run with snapshot.source = "lookup", because its workers get the registry from the driver. '
            'The job did not start: set snapshot.source to "broadcast", or leave the lane out'
        )
    return realtime_query.RealtimeLane(config, spark, registry.follower, stop, context, shares=shares)
