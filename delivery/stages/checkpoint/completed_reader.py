"""Read the results that an interrupted micro-batch has written. `results.completed_work` decides which deliveries ended.

Runs on the driver at the start of a lane, and in an executor where Spark runs a task again. Must not import the settings: a
worker that unpickles a journal imports this module, and pydantic would take 11 MB of it. What cannot be read back is made
again: that Kafka does not answer is no reason to stand still.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from delivery.webhooks.results import completed_work, topic_rows

if TYPE_CHECKING:
    import confluent_kafka

log = logging.getLogger(__name__)

READ_S = 60.0
"""For so long what was written is read back; what is not read by then is made again."""
_ASKED_S = 10.0
SLACK_MS = 60_000
"""Clocks of driver, executors and brokers differ. To read too much costs time only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """What crosses to the tasks of one micro-batch: what is known to have ended, and how to learn more."""

    client: Mapping[str, str | int | float | bool] = field(repr=False)
    """Configuration of librdkafka, with the password."""
    topics: topic_rows.Topics
    since_ms: int
    """When the micro-batch ran first, or before."""
    lane: type[completed_work.CompletedWorkLog] = completed_work.FastLaneLog
    """Whose it is."""
    known: frozenset[completed_work.Key] = frozenset()

    def ended(self, attempt_number: int) -> frozenset[completed_work.Key]:
        """Return which deliveries a task need not make. `attempt_number` counts Spark's attempts at the task from 0.

        Nothing is read in a task's first attempt: only an earlier run of the whole micro-batch may have handled its records,
        and what that has written is in `known`.
        """
        return self.known if attempt_number == 0 else self.known | read(self)


def read(of: Journal) -> frozenset[completed_work.Key]:
    """Return what has ended by what was written after `of.since_ms`, as far as it can be read. Never raises."""
    import confluent_kafka  # noqa: PLC0415  # most workers never need it

    began, taken, found = time.monotonic(), 0, of.lane()
    config = {"group.id": "fanout-journal", "enable.auto.commit": False, "enable.partition.eof": True, **of.client}
    try:
        with contextlib.closing(confluent_kafka.Consumer(config)) as consumer:
            for topic, reader in found.readers(of.topics).items():
                for message in messages(consumer, topic, of.since_ms - SLACK_MS, until=began + READ_S):
                    found.add(message.value() or b"", reader)
                    taken += 1
    except Exception as exc:  # noqa: BLE001  # whatever it is, also a file that is missing here: the journal only saves repeats
        log.warning("the topics could not be read back, and what they tell is made again: %s", exc)
    log.info(
        "%d deliveries or turns had ended, by %d rows read in %.1f s", len(found.completed), taken, time.monotonic() - began
    )
    return frozenset(found.completed)


def messages(
    consumer: confluent_kafka.Consumer, topic: str, since_ms: int, *, until: float
) -> Iterator[confluent_kafka.Message]:
    """Yield what has a value and was written to a topic from `since_ms` on, up to now."""
    from confluent_kafka import KafkaError, TopicPartition  # noqa: PLC0415

    partitions = consumer.list_topics(topic, _ASKED_S).topics[topic].partitions
    asked = [TopicPartition(topic, number, since_ms) for number in partitions]
    # An offset below 0: nothing was written since.
    firsts = [first for first in asked and consumer.offsets_for_times(asked, _ASKED_S) if first.offset >= 0]
    unread = {first.partition for first in firsts}
    consumer.assign(firsts)
    while unread and time.monotonic() < until:
        for message in consumer.consume(1000, 1.0):
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # its public name
                    unread.discard(int(message.partition() or 0))
            elif message.value() is not None:
                yield message
    if unread:
        log.warning("topic %s was not read to its end in time", topic)
