"""Follow topics from where the archive has got to.

Runs in `fanout archive`, in one thread. There is no consumer group: how far the archive is stands in Postgres, beside its rows.
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
from delivery.stages.kafka import topics
from fanout.kafka.places import Place

log = logging.getLogger(__name__)

TIMEOUT_S = 30
AT_ONCE = 500
LOOK_FOR_PARTITIONS_S = 30.0


class Start(NamedTuple):
    """Where to begin in a partition."""

    offset: int
    lost: int
    """Records that Kafka dropped before they were archived."""
    is_anew: bool
    """The topic is another one than that which was archived under its name."""


def start_of(archived_until: int | None, low: int, high: int) -> Start:
    """Decide where to begin in a partition that Kafka has from `low` to before `high`.

    1. It was never archived: at its first record.
    2. Its retention was faster than the archive: at its first record, with a gap.
    3. It ends before where the archive is: its topic was deleted and made anew.
    4. Where the archive is.
    """
    if archived_until is None:
        return Start(low, 0, is_anew=False)
    if archived_until < low:
        return Start(low, low - archived_until, is_anew=False)
    if archived_until > high:
        return Start(low, 0, is_anew=True)
    return Start(archived_until, 0, is_anew=False)


class Source:
    """Read records as they come, those of a partition in their order."""

    def __init__(self, kafka: settings.Kafka, names: list[str]) -> None:
        self._servers = kafka.bootstrap_servers
        self._names = names
        self._ends: dict[Place, int] = {}
        self._positions: dict[Place, int] = {}
        self._heard_at = self._looked_at = time.monotonic()
        own = {
            "group.id": "fanout-archive",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_uncommitted",  # as Spark reads
            "queued.max.messages.kbytes": 32 * 1024,
            "error_cb": self._complain,
        }
        self.is_away = False
        self._consumer = confluent_kafka.Consumer(own | kafka_clients.for_librdkafka(kafka))

    def begin(self, archived_until: Mapping[Place, int]) -> dict[Place, Start]:
        """Take up every partition where the archive has got to, and return where that is."""
        with self._translated():
            places = self._places()
            marks = {place: self._consumer.get_watermark_offsets(TopicPartition(*place), TIMEOUT_S) for place in places}
            starts = {place: start_of(archived_until.get(place), low, high) for place, (low, high) in marks.items()}
            self._consumer.assign([TopicPartition(*place, start.offset) for place, start in starts.items()])
        self._positions = {place: start.offset for place, start in starts.items()}
        self._ends = {place: high for place, (_, high) in marks.items() if starts[place].offset < high}
        return starts

    def take(self, wait_s: float) -> list[confluent_kafka.Message]:
        """Return what has come, as soon as some has; raise KafkaUnavailable when it is time to begin anew."""
        with self._translated():
            came = [message for message in self._consumer.consume(AT_ONCE, wait_s) if self._is_record(message)]
        if came:
            self._heard_at, self.is_away = time.monotonic(), False
        return came

    def reached(self, message: confluent_kafka.Message) -> None:
        """Take note that a record is archived."""
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
        """Tell whether all is archived that was there at the beginning; raise KafkaUnavailable when no more of it comes."""
        if self._ends and time.monotonic() - self._heard_at > TIMEOUT_S:
            raise errors.KafkaUnavailable(f"{self._servers} sends nothing more for {TIMEOUT_S} s: try again")
        return not self._ends

    def has_new_partitions(self) -> bool:
        """Tell, when it was not asked for a while, whether there are partitions that are not read."""
        if time.monotonic() - self._looked_at < LOOK_FOR_PARTITIONS_S:
            return False
        self._looked_at = time.monotonic()
        with self._translated():
            places = set(self._places())
        self.is_away = False
        return not self._positions.keys() >= places

    def close(self) -> None:
        """Leave Kafka."""
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
            raise errors.KafkaUnavailable(f"{place.topic}:{place.partition} cannot be read: {error.str()}")
        self._heard_at, self.is_away = time.monotonic(), False
        self._ends.pop(place, None)  # what was behind its last record is none for readers
        return False

    def _complain(self, error: KafkaError) -> None:
        """Say once that Kafka is away. The client goes on asking by itself."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN and not self.is_away:  # noqa: SLF001
            self.is_away = True
            log.warning("Kafka at %s does not answer; what comes meanwhile is archived later", self._servers)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except confluent_kafka.KafkaException as exc:
            raise errors.KafkaUnavailable(f"Kafka at {self._servers} does not answer ({exc.args[0].name()})") from exc


def place_of(message: confluent_kafka.Message) -> Place:
    """Return the partition that a record is in."""
    return Place(str(message.topic()), message.partition() or 0)
