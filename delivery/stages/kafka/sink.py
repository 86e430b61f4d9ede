"""Write rows of results to their topics, from the worker that made them, while its task goes on.

Runs in the executors' Python workers. Must not import the settings: a worker that unpickles a sink imports this module, and
pydantic would take 11 MB of it. Guarantee: at least once. A task ends well when Kafka has confirmed each of its rows; where it
has not, the task fails, so that its micro-batch is not committed and no failure is forgotten. What repeats then is what the
rows do not tell (delivery.webhooks.results.completed_work). docs/adr/0015 says why the rows do not go through Spark.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from delivery import errors
from delivery.webhooks.results.topic_rows import Row

if TYPE_CHECKING:
    import confluent_kafka

MAX_REQUEST_BYTES = 16 * 1024 * 1024
"""A batch of an endpoint's largest `max_bytes` (10 MiB) that is postponed is one record of the retries topic, as it must leave
with the same events again."""
_FLUSH_S = 1.0
_OPTIONS: Mapping[str, str | int | float | bool] = {
    "enable.idempotence": True,  # acknowledged by all replicas; a retry by the client neither repeats a row nor reorders two
    # Else it may: where one that follows a failed one is refused, librdkafka numbers all that is on its way anew, and what a
    # killed broker had taken but not confirmed is taken again. Seen: 1 of 3,600 events. One at a time was as quick.
    "max.in.flight.requests.per.connection": 1,
    "partitioner": "murmur2_random",  # as Java clients: the rows of an endpoint stay in the partition that they have been in
    "compression.type": "lz4",
    "linger.ms": 5,
    "message.max.bytes": MAX_REQUEST_BYTES,
    "queue.buffering.max.kbytes": 65_536,  # of each process
    # A task waits for a Kafka that is away: were it to fail, what it has sent and could not write would be sent again.
    "delivery.timeout.ms": 600_000,
    "topic.metadata.propagation.max.ms": 20_000,  # how long a missing topic is waited for
}
Client = tuple[tuple[str, str | int | float | bool], ...]


class Writing(Protocol):
    """The rows of one task."""

    def write(self, made: Iterable[Row]) -> None:
        """Hand rows over. Waits while too many are on their way."""

    def flush(self, within_s: float) -> None:
        """Wait until what is on its way is in its topic, no longer than `within_s`. For a task that has failed."""

    def finish(self) -> None:
        """Wait until all of them are in their topics; raise KafkaUnavailable when one is not."""


Sink = Callable[[], Writing]
"""Begins the writing of a task, in its worker. Survives pickling."""


@dataclass(frozen=True, slots=True)
class Kafka:
    """The sink of the job."""

    client: Client = field(repr=False)
    """Configuration of librdkafka, with the password."""

    def __call__(self) -> Writing:
        """As Sink. Called in the worker."""
        return _ToKafka(_producer(self.client))


def to(client: Mapping[str, str | int | float | bool]) -> Kafka:
    """Return the sink for a Kafka, by the configuration of its client (delivery.config.kafka_clients.for_librdkafka)."""
    return Kafka(tuple(sorted(client.items())))


@functools.cache  # once for each worker process: connections outlive tasks
def _producer(client: Client) -> confluent_kafka.Producer:
    import confluent_kafka  # noqa: PLC0415  # the driver imports this module too

    return confluent_kafka.Producer({**_OPTIONS, **dict(client)})


class _ToKafka:
    def __init__(self, producer: confluent_kafka.Producer) -> None:
        self._producer = producer
        self._lock = threading.Lock()
        """Of what follows: whoever polls the producer hears of everybody's rows, and two threads may."""
        self._unconfirmed = 0
        self._failure: str | None = None

    def write(self, made: Iterable[Row]) -> None:
        for row in made:
            self._hand_over(row)
        self._producer.poll(0)

    def flush(self, within_s: float) -> None:
        self._producer.flush(within_s)

    def finish(self) -> None:
        while self._unconfirmed and self._failure is None:
            self._producer.flush(_FLUSH_S)  # each row is confirmed or has failed by `delivery.timeout.ms`
        self._raise_failure()

    def _hand_over(self, row: Row) -> None:
        while True:
            self._raise_failure()
            try:
                self._producer.produce(row.topic, row.value, key=row.key, on_delivery=self._ended)
            except BufferError:  # as much as may be is on its way
                self._producer.poll(0.1)
            except Exception as exc:
                _producer.cache_clear()  # as below
                told = f"topic {row.topic} does not take a row of {len(row.value or b'')} bytes: {exc}"
                raise errors.KafkaUnavailable(told) from exc
            else:
                with self._lock:
                    self._unconfirmed += 1
                return

    def _ended(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        with self._lock:
            self._unconfirmed -= 1
        if error is not None:
            self._failure = f"topic {message.topic()} could not be written: {error.str()}"
        elif message.offset() is None:
            # An idempotent producer that has failed before may take the answer "a duplicate" for success. Seen: 1 in 15 rows
            # that the broker had refused as too large.
            self._failure = f"topic {message.topic()} could not be written: the broker does not say where the row is"

    def _raise_failure(self) -> None:
        if self._failure is not None:
            _producer.cache_clear()  # whether one that has failed can go on is not known; the next task begins with a new one
            raise errors.KafkaUnavailable(self._failure)
