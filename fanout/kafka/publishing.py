"""Publish events to Kafka: from NDJSON lines, or generated.

Runs in the command. A line is a plain JSON event; its type names the topic.
"""

from __future__ import annotations

import collections
import datetime as dt
import random
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import confluent_kafka
import orjson

from delivery import errors
from delivery.config import kafka_clients, settings
from delivery.model import Record
from delivery.stages.kafka import topics
from delivery.webhooks.events import parsing

FLUSH_TIMEOUT_S = 30
EVENT_PARTITIONS = 4
_OPTIONS: dict[str, str | int | float | bool] = {
    "linger.ms": 5,
    # So that a retry by the client does not publish an event twice; delivery.stages.kafka.sink says why one at a time.
    "enable.idempotence": True,
    "max.in.flight.requests.per.connection": 1,
    "partitioner": "murmur2_random",  # a key has the partition that the Java client, and so the job, gives it
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One Kafka record to be."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where Kafka put a message."""

    message: Message
    partition: int
    offset: int
    appended_at_ms: int
    """As Kafka's readers see it: when it was handed to the client, unless the topic keeps the time of the append itself."""


class Publisher:
    """Publish messages, and say where each of them is. Used by one thread."""

    def __init__(self, kafka: settings.Kafka, on_placed: Callable[[Placed], None] = lambda _: None) -> None:
        self._producer = confluent_kafka.Producer(_OPTIONS | kafka_clients.for_librdkafka(kafka))
        self._on_placed = on_placed
        self._failure: str | None = None

    def publish(self, message: Message) -> None:
        """Hand over one message; waits when the client's buffer is full."""

        def reported(error: confluent_kafka.KafkaError | None, record: confluent_kafka.Message) -> None:
            if error is not None:
                self._failure = error.str()
            elif (offset := record.offset()) is None:  # as delivery.stages.kafka.sink: a confirmation without an offset is none
                self._failure = "the broker does not say where it is"
            else:
                self._on_placed(
                    Placed(
                        message=message,
                        partition=record.partition() or 0,
                        offset=offset,
                        appended_at_ms=record.timestamp()[1],
                    )
                )

        while True:
            try:
                self._producer.produce(
                    message.topic, message.value, key=message.key, headers=list(message.headers), on_delivery=reported
                )
            except BufferError:
                self._producer.poll(0.1)
            else:
                self._producer.poll(0)
                return

    def flush(self) -> None:
        """Wait until Kafka has everything; raise KafkaUnavailable when it has not."""
        left = self._producer.flush(FLUSH_TIMEOUT_S)
        if self._failure is not None:
            raise errors.KafkaUnavailable(f"Kafka refused a record: {self._failure}")
        if left:
            raise errors.KafkaUnavailable(f"{left} records are not confirmed after {FLUSH_TIMEOUT_S} s: is Kafka running?")


def publish_all(config: settings.Settings, messages: Iterable[Message]) -> dict[str, int]:
    """Publish `messages`, creating the topics that are missing; return how many went to each topic.

    When the iterator raises, Kafka has all messages before that one.
    """
    counts: collections.Counter[str] = collections.Counter()
    publisher = Publisher(config.kafka)
    try:
        for message in messages:
            if message.topic not in counts:
                topics.ensure(config.kafka, [message.topic], EVENT_PARTITIONS)
            publisher.publish(message)
            counts[message.topic] += 1
    finally:
        publisher.flush()
    return dict(counts)


def from_lines(
    lines: Iterable[bytes], source: settings.Source, topic: str | None, layout: parsing.Layout | None
) -> Iterator[Message]:
    """Yield a message per NDJSON line; raise RegistrationError that names the first line that is no event.

    With `layout` a line is refused that the job would reject; without one any JSON is taken.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            document = orjson.loads(line)
        except orjson.JSONDecodeError as exc:
            raise errors.RegistrationError(f"line {number}", f"not JSON: {exc}") from exc
        named = topic or (isinstance(document, dict) and document.get(source.type_field))
        if not named:
            raise errors.RegistrationError(f"line {number}", f"has no {source.type_field!r}; or name a topic with --topic")
        message = Message(topic=topic or source.topic_prefix + str(named), value=line.strip())
        if layout is not None:
            _require_event(f"line {number}", message, layout)
        yield message


def _require_event(where: str, message: Message, layout: parsing.Layout) -> None:
    record = Record(topic=message.topic, partition=0, offset=0, appended_at_ms=0, value=message.value)
    try:
        parsing.parse(record, layout)
    except errors.EventRejected as exc:
        said = f"the job would reject it ({exc.reason}: {exc.detail}); --unchecked publishes it all the same"
        raise errors.RegistrationError(where, said) from None


def generated(count: int, *, event_type: str, tenants: int, source: settings.Source, rng: random.Random) -> Iterator[Message]:
    """Yield `count` events of about 450 bytes, of tenants `tenant-1` to `tenant-<tenants>`."""
    for _ in range(count):
        document: dict[str, Any] = {
            "id": str(uuid.UUID(int=rng.getrandbits(128), version=4)),
            "type": event_type,
            "tenant_id": f"tenant-{rng.randint(1, tenants)}",
            "time": dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds"),
            "amount": rng.randint(1, 1000),
            "note": "x" * 280,
        }
        yield Message(topic=source.topic_prefix + event_type, value=orjson.dumps(document))
