"""Ask Kafka, from a thread of its own, how many records wait for the lane.

Runs on the driver. Spark's own figures come with the commits of micro-batches: they stand still exactly when something hangs.
"""

from __future__ import annotations

import logging
import threading

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # exported, but not said so

from delivery import health, kafka_options, metrics, settings

log = logging.getLogger(__name__)

TIMEOUT_S = 5.0


def watch(config: settings.Settings, lane: str, told: health.Watch, stop: threading.Event) -> None:
    """Begin to ask, if anybody can see the answer."""
    if config.metrics.port:
        threading.Thread(target=_ask, args=(config, lane, told, stop), name=f"backlog of {lane}", daemon=True).start()


def _ask(config: settings.Settings, lane: str, told: health.Watch, stop: threading.Event) -> None:
    admin: AdminClient | None = None
    while not stop.is_set():
        # Ticks are no events: nobody waits for one.
        ticks = {config.batch.ticks_topic, config.retry.ticks_topic}
        positions = {topic: at for topic, at in told.positions.items() if topic not in ticks}
        try:
            admin = admin or AdminClient(kafka_options.for_librdkafka(config.kafka))
            waiting = by_topic(positions, _ends(admin, positions))
        except Exception as exc:  # noqa: BLE001  # the thread must survive, or the probes would judge by old facts
            log.warning("Kafka did not say how far behind lane %s is: %s", lane, exc)
            metrics.SOURCE_UP.set(0)
            told.observed(None, is_source_up=False)
            # This one asks as if nobody else led since, and is refused, until it forgets who did: after 15 minutes.
            admin = None
        else:
            metrics.SOURCE_UP.set(1)
            for topic, lag in waiting.items():
                metrics.LAG_RECORDS.labels(lane, topic).set(lag)
            told.observed(sum(waiting.values()) if positions else None)
        stop.wait(config.metrics.lag_interval_s)


def by_topic(positions: health.Positions, ends: health.Positions) -> dict[str, int]:
    """Return how many records lie between `positions` and `ends` in each topic."""
    return {
        topic: sum(max(0, ends[topic][partition] - offset) for partition, offset in offsets.items())
        for topic, offsets in positions.items()
    }


def _ends(admin: AdminClient, positions: health.Positions) -> health.Positions:
    """Return the end of each partition; raises when Kafka does not answer."""
    if not positions:
        admin.describe_cluster(request_timeout=TIMEOUT_S).result()
        return {}
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = {TopicPartition(topic, number): latest for topic, numbers in positions.items() for number in numbers}
    ends: dict[str, dict[int, int]] = {topic: {} for topic in positions}
    for partition, answer in admin.list_offsets(asked, request_timeout=TIMEOUT_S).items():
        ends[partition.topic][partition.partition] = answer.result().offset
    return ends
