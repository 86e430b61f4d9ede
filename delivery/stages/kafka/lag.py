"""Ask Kafka, from a thread of its own, how many records wait for the lane.

Runs on the driver. Spark's own figures come with the commits of micro-batches: they stand still exactly when something hangs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # exported, but not said so

from delivery.config import kafka_clients, settings
from delivery.observability import health, metrics

log = logging.getLogger(__name__)

TIMEOUT_S = 5.0


def watch_all(config: settings.Settings, watches: Mapping[str, health.Watch], stop: threading.Event) -> None:
    """Begin to ask for each lane."""
    for lane, told in watches.items():
        watch(config, lane, told, stop)


def watch(config: settings.Settings, lane: str, told: health.Watch, stop: threading.Event) -> None:
    """Begin to ask, if anybody can see the answer."""
    if config.metrics.port or config.scaling.is_on:
        threading.Thread(target=_ask, args=(config, lane, told, stop), name=f"backlog of {lane}", daemon=True).start()


def _ask(config: settings.Settings, lane: str, told: health.Watch, stop: threading.Event) -> None:
    admin: AdminClient | None = None
    before, handled = health.Progress(), 0
    while not stop.is_set():
        # Ticks are no events: nobody waits for one.
        ticks = {config.batch.ticks_topic, config.retry.ticks_topic}
        progress = told.progress
        positions = {topic: at for topic, at in progress.positions.items() if topic not in ticks}
        before, handled = progress, handled + handled_between(before.positions, positions)
        try:
            admin = admin or AdminClient(kafka_clients.for_librdkafka(config.kafka))
            waiting = by_topic(positions, _ends(admin, positions))
        except Exception as exc:  # noqa: BLE001  # the thread must survive, or the probes would judge by old facts
            log.warning("Kafka did not say how far behind lane %s is: %s", lane, exc)
            metrics.SOURCE_UP.set(0)
            told.observed(health.Backlog(handled=handled, handled_at_s=progress.at_s), is_source_up=False)
            # This one asks as if nobody else led since, and is refused, until it forgets who did: after 15 minutes.
            admin = None
        else:
            metrics.SOURCE_UP.set(1)
            for topic, lag in waiting.items():
                metrics.LAG_RECORDS.labels(lane, topic).set(lag)
            told.observed(
                health.Backlog(
                    lag=sum(waiting.values()) if positions else None,
                    handled=handled,
                    handled_at_s=progress.at_s,
                    partitions=sum(map(len, positions.values())),
                )
            )
        stop.wait(config.scaling.interval_s if config.scaling.is_on else config.metrics.lag_interval_s)


def by_topic(positions: health.Positions, ends: health.Positions) -> dict[str, int]:
    """Return how many records lie between `positions` and `ends` in each topic."""
    return {
        topic: sum(max(0, ends[topic][partition] - offset) for partition, offset in offsets.items())
        for topic, offsets in positions.items()
    }


def handled_between(before: health.Positions, now: health.Positions) -> int:
    """Return how many records lie between the two. A partition that was not known before has none: it may begin anywhere."""
    return sum(
        max(0, offset - before[topic][partition])
        for topic, offsets in now.items()
        for partition, offset in offsets.items()
        if partition in before.get(topic, ())
    )


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
