"""Write the events of a batch record (a Kafka record with many events) to the same topic, each as a record of its own.

The writer waits until Kafka has confirmed or refused each event.

Runs in the executors' Python workers. Must not import the settings, because pydantic would take 11 MB of each worker.
Guarantee: at least once. A task that fails later writes the same events again, with the same ids.

The events have a producer of their own in each worker process. Kafka may refuse events: the job may lack the right to write a
topic, or a record may be too large for the topic. After a refusal, a producer may report records as written that are not. So
results of deliveries go through another producer.
"""

from __future__ import annotations

import collections
import functools
import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from delivery import errors
from delivery.stages import process_state
from delivery.stages.kafka import sink
from delivery.webhooks.events import batch_records
from delivery.webhooks.results.task_results import Results
from delivery.webhooks.routing import intake
from delivery.webhooks.state import chunking

if TYPE_CHECKING:
    import confluent_kafka

FOR_GOOD = (
    "TOPIC_AUTHORIZATION_FAILED",
    "MSG_SIZE_TOO_LARGE",
    "RECORD_LIST_TOO_LARGE",
    "INVALID_RECORD",
    "INVALID_TIMESTAMP",
    "POLICY_VIOLATION",
    "TOPIC_EXCEPTION",
    "UNSUPPORTED_FOR_MESSAGE_FORMAT",
    "UNSUPPORTED_COMPRESSION_TYPE",
)
"""Names of Kafka's errors after which the same record would be refused again."""
IS_READ_AGAIN = "The batch record is read again. Check the brokers"
"""End of each error text for a record that may be written later."""
GROUP_BYTES = 4 * 1024 * 1024
"""Most bytes of the records that a task holds and writes at once. A larger batch record is written alone. A task may read
thousands of batch records with a thousand events each."""
RECORD_BYTES = 128
"""Bytes of memory that a record takes beside its value, key and headers."""
_OPTIONS: Mapping[str, str | int | float | bool] = {
    **sink.OPTIONS,
    # Kafka refuses all records of a request that is too large for the topic. Few topics take less than this.
    "batch.size": 65_536,
    "queue.buffering.max.kbytes": 16_384,
}
_FLUSH_S = 1.0
"""Seconds of one flush. Between two flushes a failure ends the wait."""


class WriteEvents(Protocol):
    """A function that writes the events of batch records to their topics. Called in the task's worker. Survives pickling."""

    def __call__(self, records: Sequence[batch_records.EventRecord], /) -> Mapping[int, str]:
        """Write records, and wait for Kafka's answers. Return the reason for each record refused for good.

        The key of a reason is the record's index in `records`, from 0.

        Raise KafkaUnavailable if a record could not be written, and may be written later.
        """


@dataclass(frozen=True, slots=True)
class KafkaEventWriter:
    """The WriteEvents of the job: it writes by a Kafka producer that all tasks of a worker process share."""

    client: sink.Client = field(repr=False)
    """Configuration of librdkafka, with the password."""

    def __call__(self, records: Sequence[batch_records.EventRecord], /) -> Mapping[int, str]:
        """Write records, with the result and the errors of WriteEvents. Discard the producer if a record was not written.

        A confirmation without an offset does not prove that Kafka has the record. The record counts as refused if Kafka refuses
        another record for good. Otherwise raise KafkaUnavailable.
        """
        import confluent_kafka  # noqa: PLC0415  # the driver imports this module too

        codes = frozenset(getattr(confluent_kafka.KafkaError, name) for name in FOR_GOOD)
        try:
            refused = _Write(self._producer(), codes, len(records)).all(records)
        except errors.KafkaUnavailable:
            self._discard_producer()
            raise
        if refused:
            self._discard_producer()
        return refused

    def _discard_producer(self) -> None:
        """Drop the producer with its queued records. Otherwise the producer sends the records later, and keeps its threads."""
        producer = self._producer()
        producer.purge(in_queue=True, in_flight=False)
        producer.flush(0)
        process_state.EVENT_PRODUCERS.clear()

    def _producer(self) -> confluent_kafka.Producer:
        import confluent_kafka  # noqa: PLC0415

        return process_state.EVENT_PRODUCERS.get(
            lambda: confluent_kafka.Producer({**_OPTIONS, **dict(self.client)}), self.client
        )


def to(client: Mapping[str, str | int | float | bool]) -> KafkaEventWriter:
    """Return the WriteEvents that connects to Kafka with `client`, the options of librdkafka."""
    return KafkaEventWriter(tuple(sorted(client.items())))


def take_apart(batches: Sequence[batch_records.BatchRecord], write: WriteEvents, *, group_bytes: int = GROUP_BYTES) -> Results:
    """Write the events of batch records. Return each batch record in `batch_records`, or its rejection in `rejections`.

    A batch record is rejected if it cannot be split, or if Kafka refuses one of its events for good. Kafka may then have other
    events of the batch. `group_bytes` bounds the bytes of the records that are held and written at once. A larger batch record
    is written alone. Raise KafkaUnavailable as WriteEvents does.
    """
    results = Results()
    for chunk in chunking.chunks(batches, _size, group_bytes):
        group, made = _made(chunk, results)
        if not group:
            continue
        owners = [number for number, records in enumerate(made) for _ in records]
        reasons = write(list(itertools.chain.from_iterable(made)))
        refused = collections.Counter(owners[index] for index in reasons)
        first = {owners[index]: reasons[index] for index in sorted(reasons, reverse=True)}
        for number, batch in enumerate(group):
            if number in refused:
                results.rejections.append(_rejection(batch, refused[number], first[number]))
            else:
                results.batch_records.append(batch)
    return results


def _made(
    batches: Sequence[batch_records.BatchRecord], results: Results
) -> tuple[list[batch_records.BatchRecord], list[list[batch_records.EventRecord]]]:
    """Return the batch records that can be split, and the records of each. Add rejections of the others to `results`."""
    group, made = [], []
    for batch in batches:
        events = _events_of(batch)
        if isinstance(events, str):
            results.rejections.append(intake.Rejection(record=batch.record, reason=intake.NOT_WRITTEN, detail=events))
        else:
            group.append(batch)
            made.append(events)
    return group, made


def _events_of(batch: batch_records.BatchRecord) -> list[batch_records.EventRecord] | str:
    """Return the records to write for the events of a batch record, or one of two reasons for its rejection.

    1. The new records would be too large, because each has the key of the batch. The parser has checked their size without the
       keys.
    2. The batch cannot be split here, although the parser has split it before in another thread. A thread whose stack is
       fuller can parse fewer levels of nested JSON.
    """
    size = batch.written_bytes + batch.events * len(batch.record.key or b"")
    if size > batch_records.MAX_WRITTEN_BYTES:
        return (
            f"the {batch.events} events of the batch would have {size} bytes, because each gets the key of the batch; at most "
            f"{batch_records.MAX_WRITTEN_BYTES} are written: use a shorter key, or write smaller batches"
        )
    try:
        return list(batch_records.event_records(batch))
    except Exception as fault:  # noqa: BLE001  # one batch record must not fail the task, and stop the lane
        return f"the batch cannot be split here ({type(fault).__name__}): write each event as a record of its own"


def _size(batch: batch_records.BatchRecord) -> int:
    return batch.written_bytes + batch.events * (RECORD_BYTES + len(batch.record.key or b""))


def _rejection(batch: batch_records.BatchRecord, refused: int, why: str) -> intake.Rejection:
    detail = (
        f"Kafka refuses {refused} of the {batch.events} events of the batch as records of their own ({why}): let the job write "
        "to the topic, or write smaller events; then write the batch again. The other events of the batch are written"
    )
    return intake.Rejection(record=batch.record, reason=intake.NOT_WRITTEN, detail=detail)


class _Write:
    """One call of KafkaEventWriter: the number of records without an answer, and Kafka's answers."""

    def __init__(self, producer: confluent_kafka.Producer, for_good: frozenset[int], count: int) -> None:
        self._producer, self._for_good, self._unanswered = producer, for_good, count
        self._lock = threading.Lock()
        """Guards the fields that `_answered` changes: any thread that polls the shared producer runs all callbacks."""
        self._refused: dict[int, str] = {}
        self._unplaced: dict[int, str] = {}
        self._failure: str | None = None

    def all(self, records: Sequence[batch_records.EventRecord]) -> dict[int, str]:
        for index, record in enumerate(records):
            self._produce(index, record)
        while self._unanswered and self._failure is None:
            self._producer.flush(_FLUSH_S)  # each record is confirmed or fails within `delivery.timeout.ms`
        self._raise_failure()
        if self._unplaced and not self._refused:
            raise errors.KafkaUnavailable(f"{next(iter(self._unplaced.values()))}. {IS_READ_AGAIN}")
        return self._refused | self._unplaced

    def _produce(self, index: int, record: batch_records.EventRecord) -> None:
        import confluent_kafka  # noqa: PLC0415

        while True:
            self._raise_failure()
            try:
                self._producer.produce(
                    record.topic,
                    record.value,
                    key=record.key,
                    partition=record.partition,
                    headers=list(record.headers),
                    on_delivery=functools.partial(self._answered, index, record.topic),
                )
            except BufferError:  # the queue is full
                self._producer.poll(0.1)
            except confluent_kafka.KafkaException as exc:
                self._answered(index, record.topic, exc.args[0])
                return
            else:
                return

    def _answered(
        self, index: int, topic: str, error: confluent_kafka.KafkaError, message: confluent_kafka.Message | None = None
    ) -> None:
        with self._lock:
            if error is not None and error.code() in self._for_good:
                self._refused[index] = error.str()
            elif error is not None:
                self._failure = f"topic {topic} did not take an event of a batch record ({error.str()}). {IS_READ_AGAIN}"
            elif message is not None and message.offset() is None:
                # After a refusal, an idempotent producer may take the answer "duplicate" for success (sink._ToKafka).
                self._unplaced[index] = f"topic {topic}: the broker's answer has no offset for an event of a batch record"
            self._unanswered -= 1  # last: `all`, in another thread, looks at the answers after the last record is answered

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise errors.KafkaUnavailable(self._failure)
