"""Read the records of offset ranges from Kafka, in the tasks of the direct lane and the batch lane.

Runs in the executors' Python workers. Must not import the settings, because pydantic would take 11 MB of each worker.
`record_of` and `headers_of` also run in the archive and the commands.
Guarantee: a task gets every record of its ranges that Kafka holds, or fails.
"""

from __future__ import annotations

import collections
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from delivery import errors
from delivery.model import Record
from delivery.stages import process_state
from delivery.stages.kafka.offset_ranges import RecordRange
from delivery.stages.kafka.sink import Client

OPTIONS: Mapping[str, str | int | float | bool] = {
    "group.id": "fanout-journal",  # required by the client; the reader neither joins the group nor commits offsets
    # The next task must not wait until the broker answers the last fetch of the task before.
    "fetch.wait.max.ms": 5,
    "fetch.queue.backoff.ms": 5,  # pause after the queue was full; by default a second
}
"""Configuration of the consumer. `kafka.librdkafka_options` may replace these options, but neither FIXED_OPTIONS nor
`isolation.level` (kafka_clients.for_reading)."""
FIXED_OPTIONS: Mapping[str, str | int | float | bool] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # Behind the last record of a range there may be offsets without a record, such as the mark of a transaction's end.
    "enable.partition.eof": True,
    # A record that Kafka no longer holds is a lost event, so the task fails.
    "auto.offset.reset": "error",
    "check.crcs": True,  # as Java's client does
    # The client fetches ahead, also beyond the end of a range. These options bound the bytes that it throws away.
    "fetch.max.bytes": 2 * 1024 * 1024,  # of all partitions in one fetch, compressed; a larger batch comes alone
    "fetch.message.max.bytes": 256 * 1024,  # of one partition in one fetch
    "queued.min.messages": 500,
    "queued.max.messages.kbytes": 16 * 1024,
    "message.max.bytes": 1_000_000,  # not more than fetch.max.bytes, or the client refuses to start
    # Also the limit of a decompressed batch in zstd. A batch above this limit can never be read.
    "receive.message.max.bytes": 1_000_000_000,
}
"""Options of the consumer on which the reader relies."""
POLL_S = 0.1
"""Seconds for which one poll waits for a record."""
LISTING_STEP_S = 1.0
"""Seconds for which one request for the list of topics waits."""
RECORDS_AT_ONCE = 500
"""Most records of one poll."""
MAX_HELD_BYTES = 8 * 1024 * 1024
"""If more bytes than this wait for records of an earlier range, the reader fetches only the earliest range. One poll may exceed
this limit."""
RECORD_BYTES = 500
"""Estimated memory of a record without its value and headers."""
LIST_EVERY_S = 600.0
"""Seconds after which a process lists the topics again. librdkafka forgets a topic's leaders 15 minutes after it listed the
topic, and then needs up to a second to begin with the topic."""
MAX_HEADERS = 100_000
"""If a record has more headers than this, librdkafka returns none of them."""
UNREADABLE_HEADERS = (("\ufffd", b""),)
"""Stands for all headers of a record that has a header whose name is not UTF-8. Because of U+FFFD, `attributes.require_utf8`
rejects the record."""
NO_RECORDS = "Kafka did not give the records of a task"
"""Beginning of the error when Kafka did not answer. kafka_outage recognises the error by this text."""
IS_READ_AGAIN = "The records are read again. Check the brokers"
"""End of the error that begins with NO_RECORDS."""
Place = tuple[str, int]
"""A topic, and the number of a partition."""
_headers: Callable[[Message], Any] = operator.methodcaller("headers")
"""Return the headers of a message. Raise SystemError if a header's name is not UTF-8: confluent_kafka then sets an error, and
returns a list with a hole. `methodcaller` calls from C, where Python checks for the error. A direct call may miss it."""
_GONE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})  # noqa: SLF001  # their public names
_PASSING = frozenset({
    KafkaError.BROKER_NOT_AVAILABLE, KafkaError.FENCED_LEADER_EPOCH, KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NETWORK_EXCEPTION, KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.OFFSET_NOT_AVAILABLE, KafkaError.REPLICA_NOT_AVAILABLE, KafkaError.REQUEST_TIMED_OUT,
    KafkaError.THROTTLING_QUOTA_EXCEEDED, KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._TIMED_OUT, KafkaError._TRANSPORT,  # noqa: SLF001
})  # fmt: skip
"""Errors after which librdkafka tries again by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingBounds:
    """The time limits of a task that reads from Kafka."""

    silence_s: float = 20.0
    """Seconds without a record, after which the task fails. Longer than a change of leaders, which may take 9 s by default."""
    listing_s: float = 20.0
    """Seconds to wait for the list of topics."""


BOUNDS = ReadingBounds()
"""The time limits of the job."""


class ReadsRanges(Protocol):
    """A function that reads offset ranges in a task. Survives pickling."""

    def __call__(self, ranges: Sequence[RecordRange], /) -> Iterator[list[Record]]:
        """Yield the records of `ranges`, those of each partition in the order of their offsets. A partition has one range.

        Raise KafkaUnavailable if Kafka does not answer, and TopicUnreadable if it does not give records of a range.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaReader:
    """The job's ReadsRanges. The tasks of a worker process use one consumer, one after another."""

    client: Client = field(repr=False)
    """Configuration of librdkafka, with the password."""
    with_keys: bool = False
    """True: the records get their keys."""
    in_order: bool = False
    """True: all records of a range come before the records of the next one, so a task that runs again gets the same order.
    False: a record comes as soon as Kafka has sent it."""
    bounds: ReadingBounds = BOUNDS

    def __call__(self, ranges: Sequence[RecordRange], /) -> Iterator[list[Record]]:
        """Yield the records of `ranges`. Without a range, only connect and list the topics, so that the next task need not."""
        reader = process_state.EVENT_CONSUMERS.get(lambda: _RangeConsumer(self.client, self.bounds), self.client)
        try:
            yield from reader.records(ranges, with_keys=self.with_keys, in_order=self.in_order)
        except Exception:
            process_state.EVENT_CONSUMERS.clear()  # the next task opens new connections
            raise


def to(client: Mapping[str, str | int | float | bool], *, with_keys: bool = False, in_order: bool = False) -> KafkaReader:
    """Return a reader that connects to Kafka with `client`, the options that kafka_clients.for_reading returns."""
    return KafkaReader(client=tuple(sorted(client.items())), with_keys=with_keys, in_order=in_order)


class _RangeConsumer:
    """Read ranges with one consumer of librdkafka, for one task at a time."""

    def __init__(self, client: Client, bounds: ReadingBounds) -> None:
        self._consumer = Consumer({**OPTIONS, **dict(client), **FIXED_OPTIONS})
        self._bounds = bounds
        self._topics: frozenset[str] = frozenset()
        self._list_at = 0.0
        """When the topics are listed again, in monotonic seconds."""

    def records(self, ranges: Sequence[RecordRange], *, with_keys: bool, in_order: bool) -> Iterator[list[Record]]:
        """Yield the records of `ranges`, with `in_order` in the order of the ranges. Raise the errors of ReadsRanges."""
        self._list_topics({found.topic for found in ranges})
        unread = Unread(ranges)
        self._consumer.assign(unread.next_offsets())
        try:
            taken = self._taken(unread, with_keys=with_keys)
            for records in self._in_order(taken, unread, RangeOrder(ranges)) if in_order else taken:
                if records:
                    yield records
        finally:
            self._consumer.unassign()

    def _taken(self, unread: Unread, *, with_keys: bool) -> Iterator[list[Record]]:
        """Yield the records of each poll that are in the ranges, perhaps none, until everything is read."""
        deadline = time.monotonic() + self._bounds.silence_s
        while unread:
            # `consume(500, POLL_S)` would wait for POLL_S, unless 500 records came.
            polled = self._consumer.consume(1, POLL_S)
            if polled:
                polled += self._consumer.consume(RECORDS_AT_ONCE - 1, 0)
            messages = unread.take(polled)
            now = time.monotonic()
            if messages:
                deadline = now + self._bounds.silence_s
            elif unread and now > deadline:
                raise errors.KafkaUnavailable(f"{NO_RECORDS}: {unread.explain()}. {IS_READ_AGAIN}")
            yield [record_of(message, with_key=with_keys) for message in messages]
            deadline += time.monotonic() - now  # the caller's work on these records is no silence of Kafka
            if unread and (passed := unread.drain_passed()):
                self._consumer.incremental_unassign(passed)

    def _in_order(self, taken: Iterable[list[Record]], unread: Unread, order: RangeOrder) -> Iterator[list[Record]]:
        """Yield the records of `taken` in the order of the ranges. While `order` is full, fetch only the earliest range."""
        fetched: Place | None = None  # the only unread partition that is assigned; None: all unread partitions are
        for records in taken:
            yield order.release(records, unread)
            if not unread or (fetched == unread.first() if order.is_full else fetched is None):
                continue  # the right partitions are assigned
            earliest, *others = unread.next_offsets()
            if fetched is None:
                self._consumer.incremental_unassign(others)
            elif fetched != unread.first():
                self._consumer.incremental_assign([earliest] if order.is_full else [earliest, *others])
            else:
                self._consumer.incremental_assign(others)
            fetched = unread.first() if order.is_full else None

    def _list_topics(self, wanted: set[str]) -> None:
        now = time.monotonic()
        if now < self._list_at and wanted <= self._topics:
            return
        deadline = now + self._bounds.listing_s
        while True:
            try:
                # In short steps: Python handles no signal during a call, and a worker whose JVM is gone must end soon.
                self._topics = frozenset(self._consumer.list_topics(timeout=LISTING_STEP_S).topics)
                break
            except KafkaException as exc:
                if time.monotonic() > deadline:
                    raise errors.KafkaUnavailable(f"{NO_RECORDS}: {exc.args[0].str()}. {IS_READ_AGAIN}") from exc
        self._list_at = now + LIST_EVERY_S


class Unread:
    """The part of some ranges that is not read yet. Its truth value is False when everything is read. Does no I/O."""

    def __init__(self, ranges: Sequence[RecordRange]) -> None:
        self._unread = {(found.topic, found.partition): [found.start, found.end] for found in ranges}
        """For each partition that is not read: the next offset, and the end of its range."""
        self._passed: set[Place] = set()
        self._error = ""
        """The text of the last error that did not end the task."""

    def __bool__(self) -> bool:
        return bool(self._unread)

    def __contains__(self, place: Place) -> bool:
        return place in self._unread

    def first(self) -> Place:
        """Return the first partition, in the order of the ranges, whose range is not read to its end."""
        return next(iter(self._unread))

    def next_offsets(self) -> list[TopicPartition]:
        """Return the partitions whose range is not read to its end, in the order of the ranges, each with its next offset."""
        return [TopicPartition(*place, span[0]) for place, span in self._unread.items()]

    def take(self, polled: Sequence[Message]) -> list[Message]:
        """Return the messages that are in the ranges, and note how far the partitions are read now.

        A range is read when one of these has come: its last offset, a later offset, or the end of the partition at or behind
        the range's end. Transactions and compaction leave offsets without a record. A message that comes again is left out.
        Raise TopicUnreadable if a partition cannot be read.
        """
        wanted = []
        for message in polled:
            place, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
            if (error := message.error()) is not None:
                self._note(error, place, offset)
                continue
            span = self._unread.get(place)
            if span is None or offset >= span[1]:
                self._unread.pop(place, None)
                self._passed.add(place)
            elif offset >= span[0]:
                wanted.append(message)
                span[0] = offset + 1
                if span[0] == span[1]:
                    del self._unread[place]
        return wanted

    def drain_passed(self) -> list[TopicPartition]:
        """Return the partitions of which a message behind the range has come since the last call: fetching more is useless."""
        passed, self._passed = self._passed, set()
        return [TopicPartition(*place) for place in passed]

    def explain(self) -> str:
        """Return which partitions are unread, and the last error, for a message to the operator."""
        (topic, partition), (offset, _) = next(iter(self._unread.items()))
        others = f" and {len(self._unread) - 1} other partitions" if len(self._unread) > 1 else ""
        return f"partition {partition} of topic {topic} from offset {offset}{others}" + (self._error and f" ({self._error})")

    def _note(self, error: KafkaError, place: Place, offset: int) -> None:
        span = self._unread.get(place)
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # its public name
            # If the partition ends before the range's end, this replica does not have the records yet: keep polling.
            if span is not None and offset >= span[1]:
                del self._unread[place]
        elif span is None or error.code() in _PASSING:
            self._error = error.str()
        elif error.code() not in _GONE:
            # librdkafka continues behind a batch of records that it cannot read, so the records would be lost.
            raise errors.TopicUnreadable(
                f"partition {place[1]} of topic {place[0]} cannot be read from offset {span[0]} on: {error.str()}. No "
                "record is passed over. Check the job's right to read the topic, and the brokers' logs. Steps: "
                "docs/operations.md#fanoutabsent-fanoutnotready"
            )
        elif span[0] <= offset < span[1]:  # other offsets were fetched for an earlier task, or ahead of this one
            raise errors.TopicUnreadable(
                f"partition {place[1]} of topic {place[0]} no longer has the records from offset {span[0]} to {span[1] - 1}: "
                "they expired or were deleted before they were read, or the topic was deleted and created again. Reading "
                "stopped before these records. With the job stopped, `fanout accept-loss` lists what is lost"
            )


class RangeOrder:
    """Put the records of several ranges into the order of the ranges. Does no I/O."""

    def __init__(self, ranges: Sequence[RecordRange], *, max_bytes: int = MAX_HELD_BYTES) -> None:
        self._places = collections.deque((found.topic, found.partition) for found in ranges)
        """The partitions of which records are not released yet, in the order of the ranges."""
        self._held: dict[Place, list[Record]] = collections.defaultdict(list)
        """The records that wait, by range."""
        self._bytes = 0
        self._max_bytes = max_bytes
        self.is_full = False
        """True from the moment when more than `max_bytes` wait, until at most `max_bytes // 2` wait."""

    def release(self, taken: Iterable[Record], unread: Unread) -> list[Record]:
        """Add `taken`, and return all records that can be passed on now. The others wait.

        Records can be passed on if all ranges before their range are read to the end. Called after `unread.take` for these
        records, and not after all ranges are read.
        """
        first, ready = self._places[0], []
        for record in taken:
            place = (record.topic, record.partition)
            if place == first:
                ready.append(record)
            else:
                self._held[place].append(record)
                self._bytes += _size(record)
        while first not in unread:
            self._places.popleft()
            if not self._places:
                break
            first = self._places[0]
            waited = self._held.pop(first, [])
            self._bytes -= sum(map(_size, waited))
            ready += waited
        self.is_full = self._bytes > (self._max_bytes // 2 if self.is_full else self._max_bytes)
        return ready


def _size(record: Record) -> int:
    return RECORD_BYTES + len(record.value or b"") + sum(len(name) + len(value) for name, value in record.headers)


def record_of(message: Message, *, with_key: bool = False) -> Record:
    """Return a message of Kafka as a Record. A header without a value gets an empty value."""
    return Record(
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        message.timestamp()[1],
        message.value(),
        headers_of(message),
        message.key() if with_key else None,
    )


def headers_of(message: Message) -> tuple[tuple[str, bytes], ...]:
    """Return a message's headers, or UNREADABLE_HEADERS if a name is not UTF-8. A header without a value gets b""."""
    try:
        headers = _headers(message)
    except SystemError:
        return UNREADABLE_HEADERS
    return tuple((name, value or b"") for name, value in headers) if headers else ()
