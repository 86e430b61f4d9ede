"""Build the lanes, run each on a thread of its own, and end all when one fails.

Runs on the driver. Each lane is a streaming query with its own checkpoint folder and its own scheduler pool. So no lane queues
behind another lane's whole micro-batch. When one lane ends by itself, all lanes and the process end, and the process manager
restarts the process. If the other lanes continued, the process would look healthy and deliver only a part. With `once`, the
other lanes end early only if a lane fails.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Collection, Mapping
from typing import Protocol

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from delivery.config import plan_builder, settings
from delivery.observability import health
from delivery.stages.checkpoint import left_out_topics, offset_log, paused_topics, retry_topics
from delivery.stages.lanes import batch_query, direct_query, lane_context, retry_query, telemetry
from delivery.stages.lanes.lane_context import Acquire, LaneContext
from delivery.stages.lanes.network_outage import Network
from delivery.stages.registry.job_registry import RegistrySupply
from delivery.stages.tasks import drain
from delivery.webhooks.lanes import worker_plan

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.1
"""Seconds between two checks whether all lanes have ended."""
WITHOUT_DIRECT_LANE = (
    "lane batch leaves out batch records, because lane direct splits them, and lane direct does not run in this application. "
    'Unless lane direct runs in another application on the same topics, with source.batch_records = "taken_apart", nobody gets '
    "the events of batch records. Run lane direct there, name it in --lanes (drivers.NAME.lanes of the chart), or set "
    'source.batch_records to "rejected"'
)
"""Log message when the batch lane runs without the direct lane and passes over batch records."""

HANDLED = "all records that were in Kafka at the start are handled"
COMMITTED = "the next start continues after the records whose results are written"


class RunnableLane(Protocol):
    """A lane: the direct, batch, retry or real-time lane."""

    def run(self, watch: health.Watch, *, once: bool) -> None:
        """Run until the job is asked to stop, or with `once` until all records that are in Kafka now are handled.

        Raise LaneFailed in three cases. (1) The checkpoint is damaged. (2) The lane's query ended, and a restart of the query
        would not help. (3) The lane's micro-batch runs on for too long after a stop. Raise SettingsError if the lane cannot run
        with these settings.
        """


def acquirers(
    names: Collection[str], registry: RegistrySupply, network: Network, spark: SparkSession, stop: threading.Event
) -> dict[str, Acquire]:
    """Return, for each named lane, the function that gets the registry for the lane's next micro-batch.

    The function waits while the lanes are paused because our own network is broken, and then for the registry.
    """
    sources: dict[str, Acquire] = {name: functools.partial(registry.source, spark.sparkContext, name) for name in names}
    return {name: network.pausing(source, stop) for name, source in sources.items()}


def build(
    config: settings.Settings,
    spark: SparkSession,
    acquire: Mapping[str, Acquire],
    stop: threading.Event,
    context: LaneContext,
) -> dict[str, RunnableLane]:
    """Build those of the direct, batch and retry lanes that have an entry in `acquire`; return them by name.

    First change the offset logs of these lanes. Positions of paused topics, and of topics that `source.topic_pattern` matches
    again, move back into the logs. Positions of topics that the pattern no longer matches move out. Raise LaneFailed if a
    checkpoint is damaged, SettingsError if a topic of the retry lane was renamed, and the errors of StatefulLane's constructor.
    """
    if "retry" in acquire:
        retry_topics.require_same(spark, config)
    paused_topics.restore(spark, config.spark.checkpoint, acquire)
    left_out_topics.align(spark, config, acquire)
    built: dict[str, RunnableLane] = {}
    if "direct" in acquire:
        built["direct"] = direct_query.DirectQuery(config, spark, acquire["direct"], stop, context)
    if "batch" in acquire:
        if config.source.batch_records == "taken_apart" and "direct" not in acquire:
            log.warning(WITHOUT_DIRECT_LANE)
        direct = _direct_from(config, spark) if "direct" in acquire else None
        built["batch"] = batch_query.BatchQuery(config, spark, acquire["batch"], stop, context, direct_from=direct)
    if "retry" in acquire:
        built["retry"] = retry_query.RetryQuery(config, spark, acquire["retry"], stop, context)
    return built


def _direct_from(config: settings.Settings, spark: SparkSession) -> offset_log.Positions | None:
    """Return the positions from which the direct lane reports rejected records, in place of the batch lane.

    None: the direct lane is new and begins at the latest records, and the batch lane has committed work. So the first offset of
    the direct lane is unknown, and the batch lane reports all records that it rejects. Otherwise nobody would report rejected
    records before that offset. Records that the direct lane rejects too are reported twice until the job starts again.
    """
    root = config.spark.checkpoint.rstrip("/")
    found = offset_log.committed(spark, f"{root}/direct")
    is_new = not found and config.source.starting_offsets == "latest"
    return None if is_new and offset_log.committed(spark, f"{root}/batch") else found


def run(lanes: Mapping[str, RunnableLane], watches: Mapping[str, health.Watch], stop: threading.Event, *, once: bool) -> None:
    """Run all lanes, each on its own thread, until all have ended; raise the failure of the first lane that failed.

    When a lane fails, or ends by itself without `once`, set `stop`, so that the other lanes end too.
    """
    failures: list[BaseException] = []

    def run_one(name: str, lane: RunnableLane) -> None:
        SparkSession.active().sparkContext.setLocalProperty("spark.scheduler.pool", name)
        try:
            lane.run(watches[name], once=once)
        except BaseException as failure:  # noqa: BLE001  # raised below, on the caller's thread
            failures.append(failure)
        finally:
            if failures or not once:
                stop.set()

    threads = [InheritableThread(run_one, args=(name, lane), name=f"lane {name}") for name, lane in lanes.items()]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if stop.wait(LOOK_EVERY_S):
            log.info("stopping: no lane begins another micro-batch, and those in progress end first")
            break
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def ending(stop: threading.Event, *, once: bool) -> str:
    """Return the text for the log when all lanes have ended: HANDLED with `once`, if nothing has set `stop`; else COMMITTED."""
    return HANDLED if once and not stop.is_set() else COMMITTED


def drain_workers(config: settings.Settings, spark: SparkSession | None, realtime: SparkSession | None) -> None:
    """Wait for the attempts that still run in the workers after the lanes have ended, at most `delivery.stop_within_s`.

    `spark` is the session of the direct, batch and retry lanes; None: none of them ran. `realtime` is the session in which the
    real-time lane ran in micro-batches; None: it never ran in micro-batches. The session `realtime` has worker processes and a
    worker plan of its own. Tasks under the real-time trigger have already waited for their attempts.

    Never raises. After a failure the next start may repeat the requests that were still in flight.
    """
    until_s = time.monotonic() + config.delivery.stop_within_s
    for session, plan in ((spark, plan_builder.plan_of(config)), (realtime, plan_builder.of_realtime(config))):
        if session is not None:
            _drain(config, session, plan, until_s)


def _drain(config: settings.Settings, spark: SparkSession, plan: worker_plan.Plan, until_s: float) -> None:
    try:
        seen = telemetry.Telemetry(spark.sparkContext, "drain", config.logs)
        tools = lane_context.tools_of(config, plan, seen.observer)
        drain.drain_workers(spark, tools, max(0.0, until_s - time.monotonic()))
    except Exception as failure:  # noqa: BLE001  # all lanes have ended well, and their stop must not become an error
        log.warning(
            "attempts that still run in the workers could not be awaited. The job ends now, and the next start may repeat "
            "these attempts. There is nothing to do. The error was: %s", failure,
        )  # fmt: skip
