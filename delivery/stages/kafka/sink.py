"""Write result rows to Kafka from the worker process: of a task while the task runs, of background attempts when they end.

Runs in the executors' Python workers. Must not import the settings. A worker that unpickles a sink imports this module, and
pydantic would take 11 MB of the worker. Guarantee: at least once. A task succeeds only when Kafka has confirmed each of its
rows. Otherwise the task fails, and its micro-batch is not committed. The rerun repeats the deliveries that the written rows do
not cover (delivery.webhooks.results.completed_work). docs/adr/0015 says why the rows do not go through Spark.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from delivery import errors
from delivery.stages import process_state
from delivery.webhooks.results.topic_rows import TopicRow

if TYPE_CHECKING:
    import confluent_kafka

MAX_REQUEST_BYTES = 16 * 1024 * 1024
"""Most bytes of one request to Kafka, and so of one row. A postponed batch may have 10 MiB, the largest `max_bytes` of an
endpoint. It is one record of the retries topic, because its retry must contain the same events."""
IS_REPEATED = (
    "Deliveries without written results are repeated. Check the brokers, the job's right to write the topic, and the topic's "
    "max.message.bytes"
)
"""The end of the message about a row that could not be written."""
DELIVERY_TIMEOUT_MS = 600_000
"""Milliseconds for which a row waits for an absent Kafka. If the task failed earlier, deliveries whose results it could not
write would be repeated. The retry lane keeps the results of attempts that outlive their task for a longer time
(endpoint_state.COMPLETED_KEPT_MS)."""
_FLUSH_S = 1.0
"""Seconds of one flush. The loop in `finish` looks for a failed row between two flushes."""
OPTIONS: Mapping[str, str | int | float | bool] = {
    "enable.idempotence": True,  # acknowledged by all replicas; a retry by the client neither repeats a row nor reorders two
    # With more than 1, a row can repeat in spite of idempotence. When a request after a failed one is refused, librdkafka
    # renumbers all rows in flight. A row that a killed broker had stored but not confirmed is then stored again. Seen: 1 of
    # 3,600 events. One at a time was as fast.
    "max.in.flight.requests.per.connection": 1,
    "partitioner": "murmur2_random",  # as Java clients: the rows of an endpoint stay in one partition
    "compression.type": "lz4",
    "linger.ms": 5,
    "message.max.bytes": MAX_REQUEST_BYTES,
    "queue.buffering.max.kbytes": 65_536,  # for each process
    "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
    "topic.metadata.propagation.max.ms": 20_000,  # how long a missing topic is waited for
}
Client = tuple[tuple[str, str | int | float | bool], ...]
"""Options of librdkafka by name, sorted: hashable, so that a worker process keeps one producer for equal options."""


class Writing(Protocol):
    """The writer of the rows of one task, or of some background attempts, to Kafka."""

    def write(self, made: Iterable[TopicRow]) -> None:
        """Enqueue rows for their topics. Waits while the producer's queue is full.

        Raise KafkaUnavailable if a row cannot be enqueued, or an earlier row could not be written.
        """

    def flush(self, within_s: float) -> None:
        """Wait up to `within_s` seconds until Kafka has confirmed the enqueued rows. Called by a task that fails."""

    def finish(self) -> None:
        """Wait until Kafka has confirmed all rows; raise KafkaUnavailable if a row could not be written."""


Sink = Callable[[], Writing]
"""A function that creates the writer of a task. Called in the task's worker. Survives pickling."""


@dataclass(frozen=True, slots=True)
class KafkaSink:
    """The job's Sink: it creates writers that share the producer of their worker process."""

    client: Client = field(repr=False)
    """Configuration of librdkafka, with the password."""

    def __call__(self) -> Writing:
        """Return a new writer. Called in the worker, for a task or for the results of background attempts."""
        return _ToKafka(process_state.RESULT_PRODUCERS.get(self._producer, self.client))

    def _producer(self) -> confluent_kafka.Producer:
        import confluent_kafka  # noqa: PLC0415  # the driver imports this module too

        return confluent_kafka.Producer({**OPTIONS, **dict(self.client)})


def to(client: Mapping[str, str | int | float | bool]) -> KafkaSink:
    """Return a sink that connects to Kafka with `client`.

    `client` has the options of librdkafka, as delivery.config.kafka_clients.for_librdkafka returns them.
    """
    return KafkaSink(tuple(sorted(client.items())))


class _ToKafka:
    def __init__(self, producer: confluent_kafka.Producer) -> None:
        self._producer = producer
        self._lock = threading.Lock()
        """Guards `_unconfirmed`: any thread that polls the shared producer runs the callbacks of all tasks."""
        self._unconfirmed = 0
        self._failure: str | None = None

    def write(self, made: Iterable[TopicRow]) -> None:
        for row in made:
            self._produce(row)
        self._producer.poll(0)

    def flush(self, within_s: float) -> None:
        self._producer.flush(within_s)

    def finish(self) -> None:
        while self._unconfirmed and self._failure is None:
            self._producer.flush(_FLUSH_S)  # each row is confirmed or fails within `delivery.timeout.ms`
        self._raise_failure()

    def _produce(self, row: TopicRow) -> None:
        while True:
            self._raise_failure()
            try:
                self._producer.produce(row.topic, row.value, key=row.key, on_delivery=self._confirm)
            except BufferError:  # the queue is full
                self._producer.poll(0.1)
            except Exception as exc:
                process_state.RESULT_PRODUCERS.clear()  # a producer that has failed may not recover
                raise errors.KafkaUnavailable(
                    f"topic {row.topic} does not take a row of {len(row.value or b'')} bytes ({exc}). A task with such a row "
                    "fails and is tried again. If it keeps failing, the lane ends. Deliveries without a written result are "
                    "repeated. If the row is too large, raise message.max.bytes in kafka.librdkafka_options. Otherwise check "
                    "the brokers"
                ) from exc
            else:
                with self._lock:
                    self._unconfirmed += 1
                return

    def _confirm(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is not None:
            self._failure = f"topic {message.topic()} could not be written: {error.str()}. {IS_REPEATED}"
        elif message.offset() is None:
            # An idempotent producer that has failed before may take the answer "duplicate" for success. Seen: 1 in 15 rows that
            # the broker had refused as too large.
            self._failure = f"topic {message.topic()} could not be written: the broker's answer has no offset. {IS_REPEATED}"
        with self._lock:
            self._unconfirmed -= 1  # last: `finish`, in another thread, looks for a failure after the last row is confirmed

    def _raise_failure(self) -> None:
        if self._failure is not None:
            process_state.RESULT_PRODUCERS.clear()  # a producer that has failed may not recover: the next task makes one
            raise errors.KafkaUnavailable(self._failure)
