"""Ask Kafka for the offsets of partitions, and ask again while the leader of a partition moves.

Runs on the driver, in executors, in `fanout archive`, in `fanout` commands and in the load tests. A leader moves when its
broker starts or ends, and a new topic has no leader at first. librdkafka does not repeat these requests by itself.
"""

from __future__ import annotations

import time
from collections.abc import Collection

import confluent_kafka
import tenacity
from confluent_kafka import KafkaError, KafkaException, TopicPartition

WAIT_S = 0.2
"""Seconds from a refused request to the next one."""
MOVING = frozenset({KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE})


def partitions_of(
    consumer: confluent_kafka.Consumer, topic: str, *, timeout_s: float, wait_s: float = WAIT_S
) -> Collection[int]:
    """Return the numbers of a topic's partitions; empty: the topic does not exist.

    Raise KafkaException if Kafka does not answer within `timeout_s` or refuses, or if the topic has no leader by then.
    """

    def request() -> Collection[int]:
        found = consumer.list_topics(topic, timeout_s).topics[topic]
        if found.error is not None and found.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise KafkaException(found.error)
        numbers: Collection[int] = found.partitions
        return numbers

    return _while_leaders_move(time.monotonic() + timeout_s, wait_s)(request)


def first_and_end(
    consumer: confluent_kafka.Consumer, topic: str, partition: int, *, timeout_s: float, wait_s: float = WAIT_S
) -> tuple[int, int]:
    """Return the first offset of a partition and the offset after its last record.

    Raise KafkaException if Kafka does not answer within `timeout_s` or refuses, or if the partition has no leader by then.
    """
    asked = TopicPartition(topic, partition)
    repeated = _while_leaders_move(time.monotonic() + timeout_s, wait_s)
    marks: tuple[int, int] = repeated(consumer.get_watermark_offsets, asked, timeout_s)
    return marks


def first_since(
    consumer: confluent_kafka.Consumer,
    asked: list[TopicPartition],
    *,
    timeout_s: float,
    until: float | None = None,
    wait_s: float = WAIT_S,
) -> list[TopicPartition]:
    """Return, for each partition in `asked`, its first offset at or after a time.

    `asked` has this time in the offset field, in milliseconds since the epoch. If a partition has no record of this time or
    later, its offset in the result is below 0. Raise KafkaException if Kafka does not answer within `timeout_s`, or refuses at
    least one partition. Also raise it if a partition still has no leader at the time `until`, in monotonic seconds. `until` is
    by default the time `timeout_s` seconds after the call.
    """
    until = time.monotonic() + timeout_s if until is None else until

    def request() -> list[TopicPartition]:
        found: list[TopicPartition] = consumer.offsets_for_times(asked, timeout_s)
        for place in found:
            if place.error is not None:  # its offset is still the time that was asked for
                raise KafkaException(place.error)
        return found

    return _while_leaders_move(until, wait_s)(request)


def _while_leaders_move(until: float, wait_s: float) -> tenacity.Retrying:
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(lambda exc: isinstance(exc, KafkaException) and exc.args[0].code() in MOVING),
        wait=tenacity.wait_fixed(wait_s),
        stop=lambda _: time.monotonic() > until,
        reraise=True,
    )
