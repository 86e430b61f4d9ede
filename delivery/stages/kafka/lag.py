"""Measure the lag of each lane: the records in Kafka that the lane has not handled.

In the real-time lane, records count as handled when a task reports that their results are written. In the other lanes, records
count as handled when their micro-batch is committed.

Runs on the driver, and in `fanout archive` for the archive's lag: the records that are not archived yet. For each lane, and
for the archive, a thread of its own asks Kafka for the ends of the partitions. Spark's own figures change only with the commit
of a micro-batch, so they stand still when a lane hangs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Container, Mapping

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # public, but missing in the stubs

from delivery.config import kafka_clients, lane_areas, settings
from delivery.observability import health, metrics

log = logging.getLogger(__name__)

TIMEOUT_S = 5.0
"""Seconds for one request to Kafka."""


def watch_all(config: settings.Settings, watches: Mapping[str, health.Watch], stop: threading.Event) -> None:
    """Call `watch` for each lane in `watches`."""
    for lane, lane_watch in watches.items():
        watch(config, lane, lane_watch, stop)


def watch(config: settings.Settings, lane: str, lane_watch: health.Watch, stop: threading.Event) -> None:
    """Start the thread that reports one lane's lag to `lane_watch`, if the metrics are served or the executors are scaled."""
    if config.metrics.port or config.scaling.is_on:
        threading.Thread(target=_poll, args=(config, lane, lane_watch, stop), name=f"lag of {lane}", daemon=True).start()


def _poll(config: settings.Settings, lane: str, lane_watch: health.Watch, stop: threading.Event) -> None:
    admin: AdminClient | None = None
    before, handled = health.Progress(), 0
    interval_s = config.scaling.interval_s if config.scaling.is_on else config.metrics.lag_interval_s
    while not stop.is_set():
        # Wake-up records are not events, so they are not lag.
        ticks = lane_areas.wakeup_topics(config)
        progress = lane_watch.progress
        positions = {topic: at for topic, at in progress.positions.items() if topic not in ticks}
        before, handled = progress, handled + handled_between(before.positions, positions)
        try:
            admin = admin or kafka_clients.admin(config.kafka)
            paused = lane_watch.paused_topics
            known = {**positions, **paused}
            waiting = by_topic(known, _ends(admin, known, kafka_clients.isolation_level(config.kafka), may_be_gone=paused))
        except Exception as exc:  # noqa: BLE001  # the thread must survive, or the probes would judge by old facts
            log.warning(
                "the lag of `%s` could not be read from Kafka (%s). Lanes and archive continue where Kafka answers, and a "
                "retry follows in %g s. If this is logged again, check the brokers, and that this process may describe its "
                "topics",
                lane, exc, interval_s,
            )  # fmt: skip
            metrics.SOURCE_UP.labels(lane).set(0)
            lane_watch.observe(health.Backlog(handled=handled, handled_at_s=progress.at_s), is_source_up=False)
            # After a change of the leader this client asks the old leader, and is refused, for up to 15 minutes.
            admin = None
        else:
            metrics.SOURCE_UP.labels(lane).set(1)
            for topic, lag in waiting.items():
                metrics.LAG_RECORDS.labels(lane, topic).set(lag)
            lane_watch.observe(
                health.Backlog(
                    lag=sum(lag for topic, lag in waiting.items() if topic not in paused) if positions else None,
                    handled=handled,
                    handled_at_s=progress.at_s,
                    partitions=sum(map(len, positions.values())),
                    # A lane without a topic reports that, or has positions of wake-up topics only.
                    has_no_topics=not known and (lane_watch.has_no_topics or bool(progress.positions)),
                )
            )
        stop.wait(interval_s)


def by_topic(positions: health.Positions, ends: health.Positions) -> dict[str, int]:
    """Return the number of records between `positions` and `ends` in each topic: the lag by topic.

    A partition that `ends` does not have counts as 0, because Kafka has no records of it.
    """
    return {
        topic: sum(max(0, ends[topic].get(partition, offset) - offset) for partition, offset in offsets.items())
        for topic, offsets in positions.items()
    }


def handled_between(before: health.Positions, now: health.Positions) -> int:
    """Return the number of records between two positions of a lane, over all partitions.

    A partition that `before` does not have counts as 0, because its first offset is unknown.
    """
    return sum(
        max(0, offset - before[topic][partition])
        for topic, offsets in now.items()
        for partition, offset in offsets.items()
        if partition in before.get(topic, ())
    )


def _ends(
    admin: AdminClient, positions: health.Positions, isolation_level: str, *, may_be_gone: Container[str] = ()
) -> health.Positions:
    """Return the end offset of each partition in `positions`; raise KafkaException if Kafka does not answer, or refuses.

    With the isolation level `read_committed`, a partition ends where its first open transaction begins. `may_be_gone` has
    the topics whose partitions may no longer exist: the result leaves out their missing partitions. These are the topics that
    the lane has paused. A lane does not read its paused topics, so it continues with the others when a paused topic is deleted.
    """
    if not positions:
        kafka_clients.require_answer(admin, within_s=TIMEOUT_S)
        return {}
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = {TopicPartition(topic, number): latest for topic, numbers in positions.items() for number in numbers}
    ends: dict[str, dict[int, int]] = {topic: {} for topic in positions}
    level = IsolationLevel[isolation_level.upper()]
    for partition, answer in admin.list_offsets(asked, isolation_level=level, request_timeout=TIMEOUT_S).items():
        try:
            ends[partition.topic][partition.partition] = answer.result().offset
        except KafkaException as exc:
            if exc.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART or partition.topic not in may_be_gone:
                raise
    return ends
