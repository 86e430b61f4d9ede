"""Read from the result topics which deliveries an interrupted micro-batch had completed, so that they are not repeated.

delivery.webhooks.results.completed_work interprets the result records. Runs on the driver before a query, and in an executor
where Spark retries a task. The real-time lane also reads its offset receipts (records of handled offsets) with this module.
Must not import the settings: a worker that unpickles a CompletedWork imports this module, and pydantic would take 11 MB of the
worker. If Kafka does not answer `read`, the lane starts anyway, and deliveries whose results could not be read are repeated.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from delivery import errors
from delivery.stages.kafka import bounded_reader
from delivery.webhooks.results import completed_work, topic_rows

if TYPE_CHECKING:
    import confluent_kafka

log = logging.getLogger(__name__)

SLACK_MS = 60_000
"""Milliseconds by which reading begins before the start of the micro-batch, because the clocks of driver, executors and brokers
differ. Reading too much costs only time."""
CONSUMER: Mapping[str, str | int | float | bool] = {
    "group.id": "fanout-journal",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    # If retention deletes records before they are read, continue with the records that Kafka still has. By default the client
    # would skip to the partition's end.
    "auto.offset.reset": "earliest",
}
"""Configuration of the consumer for `messages`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBounds:
    """The time limits for reading the topics of results."""

    read_s: float = 60.0
    """Seconds for reading the results. Deliveries whose results are not read by then are repeated. For offset receipts: longest
    time without a message."""
    asked_s: float = 10.0
    """Seconds for one request to Kafka, for partitions or for offsets."""


BOUNDS = ReadBounds()
"""The time limits of the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedWork:
    """The completed-work log of one micro-batch: the deliveries that ended in an earlier run. Pickled into the tasks.

    `known` has the keys of these deliveries, as far as the driver has read them. The other fields say where a task that Spark
    retries reads further keys.
    """

    client: Mapping[str, str | int | float | bool] = field(repr=False)
    """Configuration of librdkafka, with the password."""
    topics: topic_rows.Topics
    since_ms: int
    """Milliseconds since the epoch. The first run of the micro-batch began at this time or later."""
    lane: type[completed_work.CompletedWorkLog] = completed_work.FastLaneLog
    """The class that interprets results: FastLaneLog, or RetryLaneLog for the retry lane."""
    known: frozenset[completed_work.Key] = frozenset()
    """Keys of the deliveries, and in the retry lane of the leases, that an earlier run of the whole micro-batch completed."""

    def ended(self, attempt_number: int) -> frozenset[completed_work.Key]:
        """Return the keys of the deliveries, and of the leases of retry entries, that a task must not repeat.

        Called in the task. `attempt_number` counts Spark's attempts at the task from 0. Attempt 0 returns `known`, and reads
        nothing: before it, only an earlier run of the whole micro-batch can have handled the task's records. Later attempts
        also read the topics.
        """
        return self.known if attempt_number == 0 else self.known | read(self)


def read(work_log: CompletedWork, bounds: ReadBounds = BOUNDS) -> frozenset[completed_work.Key]:
    """Return the keys of the work that a new run must not repeat, according to the results in Kafka.

    `work_log.lane` decides which work counts. In the direct, batch and real-time lanes: deliveries that were accepted,
    dead-lettered or postponed to the retry lane. In the retry lane: accepted deliveries, and leases (sets of retry entries)
    with a report.

    Reading begins at the results that were written SLACK_MS before `work_log.since_ms`.

    Never raises. If a topic cannot be read, or not within `bounds.read_s` seconds, log a warning and return the keys found.
    """
    import confluent_kafka  # noqa: PLC0415  # most workers never need it

    began, rows, found = time.monotonic(), 0, work_log.lane()
    config = {**CONSUMER, **work_log.client}
    try:
        with contextlib.closing(confluent_kafka.Consumer(config)) as consumer:
            for topic, reader in found.readers(work_log.topics).items():
                since_ms, until = work_log.since_ms - SLACK_MS, began + bounds.read_s
                for message in messages(consumer, topic, since_ms, until=until, bounds=bounds):
                    if message.error() is None:
                        found.add(message.value() or b"", reader, (topic, message.partition(), message.offset()))
                        rows += 1
    except Exception as exc:  # noqa: BLE001  # any failure, a missing file included: this log only prevents repeats
        log.warning(
            "not all results since the last commit could be read from the topics %s (%s). The lane continues, and deliveries "
            "whose results were not read may be sent again, with the same webhook-id. A repeated batch with other events has a "
            "new webhook-id. Check that Kafka answers, and that the job may read these topics", _listed(found, work_log), exc,
        )  # fmt: skip
    if found.unreadable:
        log.warning(
            "%d records of the topics %s could not be read. An earlier log line, `could not be read when completed deliveries "
            "were searched`, names the first. Their deliveries may be sent again, with the same webhook-id. A repeated batch "
            "with other events has a new webhook-id. After an upgrade or downgrade of the platform there is nothing to do. "
            "Otherwise another program writes to these topics: find it, or send the traceback to the maintainers of the "
            "platform",
            found.unreadable, _listed(found, work_log),
        )  # fmt: skip
    log.info(
        "%d deliveries or leases, of any lane, had ended before this run: they are not repeated (%d records of the topics "
        "%s read in %.1f s)",
        len(found.completed), rows, _listed(found, work_log), time.monotonic() - began,
    )  # fmt: skip
    return frozenset(found.completed)


def _listed(found: completed_work.CompletedWorkLog, work_log: CompletedWork) -> str:
    return ", ".join(found.readers(work_log.topics))


def messages(
    consumer: confluent_kafka.Consumer,
    topic: str,
    since_ms: int,
    *,
    until: float,
    is_patient: bool = False,
    bounds: ReadBounds = BOUNDS,
) -> Iterator[confluent_kafka.Message]:
    """Yield the messages with a value that were written to a topic at `since_ms` or later, and messages with an error.

    `since_ms` is in milliseconds since the epoch. Reading ends at the end of each partition. The caller decides what an error
    means. A topic that does not exist has no messages. Raise KafkaException if Kafka does not answer the requests for
    partitions and offsets, refuses them, or refuses to let this login read. Raise KafkaUnavailable if the topic is not read to
    its end by the time `until`, in monotonic seconds. With `is_patient`, each poll with messages sets `until` to
    `bounds.read_s` seconds after that poll.
    """
    from confluent_kafka import KafkaError, KafkaException, TopicPartition  # noqa: PLC0415

    from delivery.stages.kafka import offset_requests  # noqa: PLC0415

    numbers = offset_requests.partitions_of(consumer, topic, timeout_s=bounds.asked_s)
    asked = [TopicPartition(topic, number, since_ms) for number in numbers]
    found_since = asked and offset_requests.first_since(consumer, asked, timeout_s=bounds.asked_s, until=until)
    firsts = [first for first in found_since if first.offset >= 0]
    polls = bounded_reader.batches(consumer, firsts, max_records=1000, wait_s=1.0)
    while time.monotonic() < until:
        batch = next(polls, None)
        if batch is None:
            return
        if batch and is_patient:
            until = time.monotonic() + bounds.read_s
        for message in batch:
            if (error := message.error()) is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise KafkaException(error)  # no other message would follow
            if error is not None or message.value() is not None:
                yield message
    why = "no message came for {:.0f} s" if is_patient else "the {:.0f} s for all topics of results are over"
    raise errors.KafkaUnavailable(
        f"topic {topic} was not read to its end: {why.format(bounds.read_s)}. Kafka may be overloaded"
    )
