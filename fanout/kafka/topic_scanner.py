"""Read the records that topics have now, up to the ends that they had when `Scanner.extents` was called.

Runs in `fanout` commands, in `fanout archive` and in the load tests. Reads the same records as the lanes: also records of
aborted transactions, except with `isolation.level = read_committed` in `kafka.spark_options`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from dataclasses import dataclass

import confluent_kafka
import rich.console
import rich.progress
from confluent_kafka import TopicPartition

from delivery import errors
from delivery.config import kafka_clients, lane_areas, settings, topic_pattern
from delivery.stages.kafka import bounded_reader, offset_requests, topics
from fanout.kafka.places import Place

TIMEOUT_S = 30
"""Seconds to wait for the offsets of partitions, or for the next record of a range."""
MAX_RECORDS_PER_POLL, POLL_S = 2000, 0.1
"""Maximum records of one poll, and seconds to wait for them."""
_OF_A_TOPIC = frozenset({confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED})
"""Codes of errors that concern a topic, and not the brokers."""
Consume = Callable[[confluent_kafka.Message], None]
"""A function that `Scanner.read` calls with each record. For an unreadable record, the function raises StateUnreadable,
ArithmeticError, LookupError, RecursionError, TypeError or ValueError, such as a MsgspecError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """A range of offsets to read from a partition."""

    place: Place
    low: int
    """First offset that Kafka still has."""
    first: int
    """First offset to read."""
    end: int
    """Offset after the last record to read."""

    @property
    def is_whole(self) -> bool:
        """Return True if retention has certainly deleted no record that `Scanner.extents` was asked for.

        With `since_ms` of `Scanner.extents`, these are the records since that time. Without it, these are all records that
        were ever written to the partition. Records that compaction has removed are not noticed.
        """
        return self.low == 0 or self.first > self.low


class Scanner:
    """Read topics. Used by one thread. Its methods raise KafkaUnavailable if Kafka does not answer, or refuses a request."""

    def __init__(self, kafka: settings.KafkaSettings, console: rich.console.Console | None = None) -> None:
        self._kafka = kafka
        self._console = console
        own = {
            "group.id": "fanout-scanner",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",  # by default the client would skip to the partition's end, and report nothing
            # The next call of `messages` must not wait until the broker answers the last fetch of the call before.
            "fetch.wait.max.ms": 5,
            "fetch.queue.backoff.ms": 5,  # pause after the queue was full; by default a second
            "queued.max.messages.kbytes": 32
            * 1024,  # for all partitions together, so that memory does not grow with the topics
        }
        self._consumer = kafka_clients.consumer(kafka, own, {"isolation.level": kafka_clients.isolation_level(kafka)})

    def names(self) -> list[str]:
        """Return the names of all topics that the login may describe, sorted."""
        with self._translated():
            return sorted(self._consumer.list_topics(timeout=topics.TIMEOUT_S).topics)

    def extents(self, names: Iterable[str], *, since_ms: int | None = None) -> list[Extent]:
        """Return the ranges of offsets that the partitions of these topics have now.

        Topics that do not exist, or that this login may not describe, are left out.

        With `since_ms`, a range begins at the first record that is not older than `since_ms`. A range is empty if all records
        of the partition are older. A negative `since_ms`, a time before 1970, has no effect: Kafka refuses most negative times,
        and takes a few negative numbers for other requests.
        """
        with self._translated():
            known = self._consumer.list_topics(timeout=topics.TIMEOUT_S).topics
            places = [Place(name, number) for name in names if name in known for number in known[name].partitions]
            marks = {place: offset_requests.first_and_end(self._consumer, *place, timeout_s=TIMEOUT_S) for place in places}
            starts = {place: low for place, (low, _) in marks.items()}
            if since_ms is not None and since_ms >= 0 and places:
                asked = [TopicPartition(*place, since_ms) for place in places]
                for found in offset_requests.first_since(self._consumer, asked, timeout_s=TIMEOUT_S):
                    place = Place(found.topic, found.partition)
                    starts[place] = found.offset if found.offset >= 0 else marks[place][1]  # all records are older
        return [Extent(place=place, low=low, first=starts[place], end=high) for place, (low, high) in marks.items()]

    def require_visible(self, names: Iterable[str]) -> None:
        """Raise KafkaUnavailable if this login may not describe one of the topics, whether or not the topic exists.

        Raise nothing for a deleted topic that the login may describe. `extents` leaves out deleted topics and hidden topics
        alike. After this check, a topic that `extents` leaves out is deleted.
        """
        for name in names:
            with self._translated():
                offset_requests.partitions_of(self._consumer, name, timeout_s=TIMEOUT_S)

    def bounds(self, place: Place) -> tuple[int, int]:
        """Return the first offset of a partition and the offset after its last record; (0, 0) if there is no such partition.

        Raise KafkaUnavailable also if this login may not describe the topic.
        """
        with self._translated():
            if place.partition not in offset_requests.partitions_of(self._consumer, place.topic, timeout_s=TIMEOUT_S):
                return 0, 0
            return offset_requests.first_and_end(self._consumer, *place, timeout_s=TIMEOUT_S)

    def read(self, extents: Collection[Extent], name: str, consume: Consume) -> None:
        """Call `consume` with every record of `extents`, in order within each partition.

        `name` has the same use as in `messages`. Raise the errors of `messages`, and RecordUnreadable if `consume` cannot read
        a record.
        """
        with contextlib.closing(self.messages(extents, name)) as messages:
            for message in messages:
                _consume(message, consume)

    def messages(self, extents: Collection[Extent], name: str) -> Generator[confluent_kafka.Message, None, None]:
        """Yield every record of `extents`, in order within each partition. Close the generator to stop before the end.

        `name` tells the operator which records are read, such as `dead letters`. Raise KafkaUnavailable if Kafka deletes
        records of `extents` before they are read.
        """
        ends: dict[tuple[str, int], int] = {extent.place: extent.end for extent in extents if extent.first < extent.end}
        firsts: dict[tuple[str, int], int] = {extent.place: extent.first for extent in extents}
        total = sum(end - firsts[place] for place, end in ends.items())
        if not ends:
            return
        starts = [TopicPartition(*place, firsts[place]) for place in ends]
        polls = bounded_reader.batches(self._consumer, starts, ends=ends, max_records=MAX_RECORDS_PER_POLL, wait_s=POLL_S)
        with self._translated(), self._progress(name, total) as advance:
            last = time.monotonic()
            try:
                for polled in polls:
                    last = time.monotonic() if polled else last
                    if time.monotonic() - last > TIMEOUT_S:
                        raise errors.KafkaUnavailable(
                            f"reading {name} stopped before the end, because Kafka at {self._kafka.bootstrap_servers} has sent "
                            f"no record for {TIMEOUT_S} s: check the brokers, then try again"
                        )
                    for message in polled:
                        _require_record(message)
                        yield message
                    advance(len(polled))
            finally:
                self._consumer.unassign()  # else the client would go on fetching for a caller that stopped before the end

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except confluent_kafka.KafkaException as exc:
            problem = topics.unavailable(self._kafka, exc, "to read a topic")
            raise errors.TopicUnreadable(str(problem)) if exc.args[0].code() in _OF_A_TOPIC else problem from exc

    @contextlib.contextmanager
    def _progress(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        """Yield the function to which the caller reports the number of records of each poll.

        On a terminal, a bar shows the progress. Without a terminal, the function does nothing.
        """
        if self._console is None or not self._console.is_terminal:
            yield lambda _: None
            return
        with rich.progress.Progress(console=self._console, transient=True) as progress:
            task = progress.add_task(f"reading {name}", total=total)
            yield lambda count: progress.advance(task, count)


def _require_record(message: confluent_kafka.Message) -> None:
    """Raise KafkaUnavailable if the client gave an error in place of a record.

    Raise TopicUnreadable, its subclass, if the error concerns only this topic.
    """
    place, error = f"{message.topic()}:{message.partition()}", message.error()
    if error is not None and error.code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001  # its public name
        raise errors.TopicUnreadable(
            f"Kafka deleted records of {place} before they were read, and reading stopped: try again, and lengthen the topic's "
            "retention if this happens often"
        )
    if error is not None:
        kind = errors.TopicUnreadable if error.code() in _OF_A_TOPIC else errors.KafkaUnavailable
        raise kind(
            f"{place} cannot be read ({error.str()}), and reading stopped: check the brokers, and that this login may read the "
            "topic. Then try again"
        )


def _consume(message: confluent_kafka.Message, consume: Consume) -> None:
    try:
        consume(message)
    except (errors.StateUnreadable, ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as exc:
        said = f"{type(exc).__name__}: {str(exc).partition('. ')[0]}"
        raise unreadable(f"{message.topic()}:{message.partition()}:{message.offset()}", said) from exc


def unreadable(place: str, fault: str) -> errors.RecordUnreadable:
    """Return the error for the record at `place`, `topic:partition:offset`, which cannot be used because of `fault`."""
    return errors.RecordUnreadable(
        f"record {place} is not one that this version of the job writes ({fault}): another program, or another version of the "
        "job, has written to this topic. The command stopped at this record, and wrote nothing to Kafka: run it in the version "
        "that wrote the record. If another program wrote it, stop that program; the command works again when Kafka has deleted "
        "the record"
    )


def event_topics(config: settings.Settings, known: Iterable[str]) -> list[str]:
    """Return the topics in `known` that match `source.topic_pattern`, without topics that the job itself writes."""
    own = {*topics.of_results(config.delivery), *lane_areas.wakeup_topics(config)}
    return [name for name in known if topic_pattern.matches(config.source.topic_pattern, name) and name not in own]
