"""Read records of topics as they arrive, beginning at the offsets up to which the topics are archived.

Runs in `fanout archive`, in one thread. The consumer commits no offsets to Kafka: Postgres stores the archived offsets beside
the rows.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import confluent_kafka
from confluent_kafka import KafkaError, TopicPartition

from delivery import errors
from delivery.config import kafka_clients, settings
from delivery.observability import health
from delivery.stages.kafka import offset_requests, topics
from fanout.kafka.places import Place

log = logging.getLogger(__name__)

TIMEOUT_S = 30
"""Seconds to wait for the offsets of a partition, or for any answer of Kafka while records are still to be read."""
MAX_RECORDS_PER_POLL = 500
"""Maximum messages of one poll: records, and notices of the end of a partition."""
PARTITION_CHECK_S = 30.0
"""Seconds between two checks for new partitions."""


class Start(NamedTuple):
    """The offset from which the archive reads a partition, and the loss before it."""

    offset: int
    lost: int
    """Number of records that Kafka deleted before they were archived."""
    is_recreated: bool
    """True if the partition ends before the archived offset: the topic was deleted and created again, or its newest records
    were lost."""


def start_of(archived_until: int | None, low: int, high: int) -> Start:
    """Decide where to begin in a partition whose offsets in Kafka are from `low` up to, and not including, `high`.

    `archived_until` is the offset after the last archived record; None: no record of the partition was archived.

    1. `archived_until` is None: begin at the first record of the partition.
    2. Kafka deleted records before they were archived: begin at the first record of the partition, and report the loss.
    3. The partition ends before `archived_until`: its topic was created again, or its newest records were lost.
       Begin at the first record of the partition.
    4. Otherwise begin at `archived_until`.
    """
    if archived_until is None:
        return Start(low, 0, is_recreated=False)
    if archived_until < low:
        return Start(low, low - archived_until, is_recreated=False)
    if archived_until > high:
        return Start(low, 0, is_recreated=True)
    return Start(archived_until, 0, is_recreated=False)


class Source:
    """Read records of the topics `names` as they arrive, in order within each partition. Used by one thread."""

    def __init__(
        self, kafka: settings.KafkaSettings, names: list[str], *, partition_check_s: float = PARTITION_CHECK_S
    ) -> None:
        """`partition_check_s` are the seconds between two checks for new partitions."""
        self._kafka = kafka
        self._partition_check_s = partition_check_s
        self._names = names
        self._ends: dict[Place, int] = {}
        self._positions: dict[Place, int] = {}
        self._silent_s = 0.0
        """Seconds that `poll` has waited since Kafka last sent something."""
        self._checked_at = time.monotonic()
        own = {
            "group.id": "fanout-archive",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_uncommitted",  # as Spark reads
            "queued.max.messages.kbytes": 32 * 1024,
            "error_cb": self._on_error,
        }
        self.is_unavailable = False
        self.may_have_more = False
        """True if the last `poll` returned because MAX_RECORDS_PER_POLL messages had arrived."""
        self._consumer = kafka_clients.consumer(kafka, own)

    def begin(self, archived_until: Mapping[Place, int]) -> dict[Place, Start]:
        """Begin to read every partition at its start (see `start_of`), and return the starts. A missing topic is left out.

        Raise KafkaUnavailable if Kafka does not answer, or refuses a request.
        """
        with self._translated():
            places = self._places()
            marks = {place: offset_requests.first_and_end(self._consumer, *place, timeout_s=TIMEOUT_S) for place in places}
            starts = {place: start_of(archived_until.get(place), low, high) for place, (low, high) in marks.items()}
            self._consumer.assign([TopicPartition(*place, start.offset) for place, start in starts.items()])
        self._positions = {place: start.offset for place, start in starts.items()}
        self._ends = {place: high for place, (_, high) in marks.items() if starts[place].offset < high}
        return starts

    def poll(self, wait_s: float) -> list[confluent_kafka.Message]:
        """Return the records that arrive within `wait_s`; the list may be empty.

        Return earlier when MAX_RECORDS_PER_POLL messages have arrived, which include notices of the end of a partition.
        If no broker answers, `is_unavailable` of this source becomes True, and nothing is raised: the list has only records
        that the client had read before. Raise KafkaUnavailable if Kafka reports another error. The caller must then create a
        new Source and call `begin`.
        """
        began = time.monotonic()
        with self._translated():
            messages = self._consumer.consume(MAX_RECORDS_PER_POLL, wait_s)
        self.may_have_more = len(messages) >= MAX_RECORDS_PER_POLL
        records = [message for message in messages if self._is_record(message)]
        if messages:
            self._silent_s, self.is_unavailable = 0.0, False
        else:
            self._silent_s += time.monotonic() - began
        return records

    def reached(self, message: confluent_kafka.Message) -> None:
        """Advance the position of a partition past this record, because the record is archived."""
        place, after = place_of(message), (message.offset() or 0) + 1
        self._positions[place] = after
        if after >= self._ends.get(place, after + 1):
            del self._ends[place]

    @property
    def positions(self) -> health.Positions:
        """Return the next offset to archive, by topic and partition."""
        by_topic: dict[str, dict[int, int]] = {}
        for (topic, partition), offset in self._positions.items():
            by_topic.setdefault(topic, {})[partition] = offset
        return by_topic

    def has_all(self) -> bool:
        """Return True if all records that existed at `begin` are archived.

        Raise KafkaUnavailable if some are not archived yet, and Kafka has sent nothing while `poll` waited for TIMEOUT_S.
        """
        if self._ends and self._silent_s > TIMEOUT_S:
            raise errors.KafkaUnavailable(
                f"Kafka at {self._kafka.bootstrap_servers} has sent nothing for {TIMEOUT_S} s, and some records were not "
                "read. The records that were read are archived. Check the brokers, and run the command again"
            )
        return not self._ends

    def has_new_partitions(self) -> bool:
        """Return True if the topics have partitions that this source does not read.

        Ask Kafka at most once in `partition_check_s` seconds. For that time after the creation of this source, and after each
        request, return False without a request. Raise KafkaUnavailable if Kafka does not answer, or refuses the request.
        """
        if time.monotonic() - self._checked_at < self._partition_check_s:
            return False
        self._checked_at = time.monotonic()
        with self._translated():
            places = set(self._places())
        self.is_unavailable = False
        return not self._positions.keys() >= places

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def _places(self) -> list[Place]:
        known = self._consumer.list_topics(timeout=topics.TIMEOUT_S).topics
        return [Place(name, number) for name in self._names if name in known for number in known[name].partitions]

    def _is_record(self, message: confluent_kafka.Message) -> bool:
        error = message.error()
        if error is None:
            return True
        place = place_of(message)
        if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001  # its public name
            raise errors.KafkaUnavailable(
                f"{place.topic}:{place.partition} cannot be read ({error.str()}), so its next records are not archived yet: "
                "check the brokers, and that the archiver may read the topic"
            )
        self._ends.pop(place, None)  # offsets after the last record hold only markers of transactions
        return False

    def _on_error(self, error: KafkaError) -> None:
        """Set `is_unavailable`, and log it once, if all brokers are down. Other errors are ignored.

        The Kafka client calls this function for each of its errors, and reconnects by itself.
        """
        if error.code() == KafkaError._ALL_BROKERS_DOWN and not self.is_unavailable:  # noqa: SLF001
            self.is_unavailable = True
            log.warning(
                "Kafka at %s does not answer. No new record is archived until it answers again, which the archiver notices by "
                "itself. Check the brokers and kafka.bootstrap_servers",
                self._kafka.bootstrap_servers,
            )

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except confluent_kafka.KafkaException as exc:
            raise topics.unavailable(self._kafka, exc, "to read a topic") from exc


def place_of(message: confluent_kafka.Message) -> Place:
    """Return the partition of a record."""
    return Place(str(message.topic()), message.partition() or 0)
