"""Publish records to Kafka, and make records of events: from NDJSON lines, or generated.

Runs in `fanout` commands, in the load tests, and in `fanout archive`, which publishes redrives, replays and operational events.
A line of NDJSON is a JSON event. The event's type names the topic, unless the caller names a topic.
"""

from __future__ import annotations

import collections
import datetime as dt
import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import confluent_kafka
import orjson

from delivery import errors
from delivery.config import kafka_clients, plan_builder, settings
from delivery.model import Record
from delivery.stages.kafka import topics
from delivery.webhooks.events import parsing

FLUSH_TIMEOUT_S = 30
"""Seconds to wait until Kafka has confirmed every record."""
MAX_RECORD_BYTES = 1_000_000
"""Maximum bytes of a record that this client takes, the default of librdkafka. A topic takes records of 1,048,588 bytes by
default."""
EVENT_PARTITIONS = 4
"""Partitions of a topic that `fanout publish` or `fanout smoke-test` creates, and of a new `operations.topic`."""
_STOPPED = "No line of a file was published; from standard input, the lines before this one were published"
"""End of the message about a wrong line. `fanout publish` checks a whole file before it publishes the first line."""
_OPTIONS: dict[str, str | int | float | bool] = {
    "linger.ms": 5,
    # A retry by the client must not publish an event twice. delivery.stages.kafka.sink says why one request is in flight.
    "enable.idempotence": True,
    "max.in.flight.requests.per.connection": 1,
    "message.max.bytes": MAX_RECORD_BYTES,
    "partitioner": "murmur2_random",  # gives a key the same partition as the Java client, which the job uses
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A record to publish. Without a key, the client chooses a partition at random."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A published message, with its partition, offset and time."""

    message: Message
    partition: int
    offset: int
    appended_at_ms: int
    """The record's timestamp: when the client got the message, or with LogAppendTime when the broker appended it."""


class Publisher:
    """Publish messages to Kafka, and call `on_placed` for each message that Kafka has confirmed.

    Used by one thread, which calls `on_placed` within `publish` and `flush`. `publish` returns before Kafka has the message.
    All messages are in Kafka when `flush` has returned without an error.
    """

    def __init__(self, kafka: settings.KafkaSettings, on_placed: Callable[[Placed], None] = lambda _: None) -> None:
        self._producer = kafka_clients.producer(kafka, _OPTIONS)
        self._on_placed = on_placed
        self._failure: str | None = None

    def publish(self, message: Message) -> None:
        """Give one message to the client, which sends it in the background. Wait while the client's buffer is full.

        Raise KafkaUnavailable if the client refuses the message, for example because it has more than MAX_RECORD_BYTES. Also
        raise it if Kafka has refused an earlier message.
        """

        def confirmed(error: confluent_kafka.KafkaError | None, record: confluent_kafka.Message) -> None:
            if error is not None:
                self._failure = _refusal(message, error)
            elif (offset := record.offset()) is None:  # not a confirmation: see delivery.stages.kafka.sink
                self._failure = f"topic {message.topic}: the broker's answer has no offset, so the record may be missing"
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
                    message.topic, message.value, key=message.key, headers=list(message.headers), on_delivery=confirmed
                )
            except BufferError:
                self._producer.poll(0.1)
            except confluent_kafka.KafkaException as exc:
                raise errors.KafkaUnavailable(_refused(_refusal(message, exc.args[0]))) from exc
            else:
                self._producer.poll(0)
                self._raise_failure()
                return

    def flush(self, within_s: float = FLUSH_TIMEOUT_S) -> None:
        """Wait until Kafka has confirmed every message.

        Raise KafkaUnavailable if Kafka has refused any message of this publisher, or has not confirmed all after `within_s`.
        """
        left = self._producer.flush(within_s)
        self._raise_failure()
        if left:
            raise errors.KafkaUnavailable(
                f"Kafka has not confirmed {left} records after {within_s:g} s, and may have them: check the brokers "
                "(setting kafka.bootstrap_servers), then try again"
            )

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise errors.KafkaUnavailable(_refused(self._failure))


def _refusal(message: Message, error: confluent_kafka.KafkaError) -> str:
    if error.code() == confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE:
        return (
            f"topic {message.topic}: a record with a value of {len(message.value or b'')} bytes is too large. This client "
            f"takes at most {MAX_RECORD_BYTES}, the topic at most its max.message.bytes: make the value smaller"
        )
    return f"topic {message.topic}: {error.str()}"


def _refused(refusal: str) -> str:
    return (
        f"Kafka refused a record, and may have other records ({refusal}). If the brackets do not say what to do, check the "
        "brokers and this login's right to write the topic. Then try again"
    )


def publish_all(config: settings.Settings, messages: Iterable[Message]) -> dict[str, int]:
    """Publish `messages`, creating missing topics; return the number of messages for each topic.

    If `messages` is a sequence, all missing topics are created before the first message is published. If the iteration of
    `messages` raises, the messages before the failure are published first. Raise KafkaUnavailable if Kafka does not answer, or
    refuses a topic or a message: Kafka may have some of the messages then.
    """
    counts: collections.Counter[str] = collections.Counter()
    if isinstance(messages, Sequence) and messages:
        topics.ensure(config.kafka, sorted({message.topic for message in messages}), EVENT_PARTITIONS)
    publisher = Publisher(config.kafka)
    try:
        try:
            for message in messages:
                if message.topic not in counts and not isinstance(messages, Sequence):
                    topics.ensure(config.kafka, [message.topic], EVENT_PARTITIONS)
                publisher.publish(message)
                counts[message.topic] += 1
        finally:
            publisher.flush()
    except errors.KafkaUnavailable as exc:
        raise errors.KafkaUnavailable(f"{exc}. Records that Kafka has are then written twice") from exc
    return dict(counts)


def from_lines(
    lines: Iterable[bytes], source: settings.SourceSettings, topic: str | None, layout: parsing.Layout | None
) -> Iterator[Message]:
    """Yield a message for each NDJSON line. Empty lines are skipped.

    `topic` is the topic of all messages; None: each event's type names its topic. `layout` has the rules by which the job
    parses events; None: lines that the job would reject are yielded too. Raise RegistrationError, with the number of the line,
    for a line that is not JSON, that has no type while `topic` is None, or that the job would reject.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            document = orjson.loads(line)
        except orjson.JSONDecodeError as exc:
            problem = f"is not JSON ({exc.msg} at column {exc.colno}): correct the line. {_STOPPED}"
            raise errors.RegistrationError(f"line {number}", problem) from exc
        named = topic or parsing.at(document, plan_builder.path_of(source.type_field))
        if not named:
            problem = f"has no {source.type_field!r}: add it, or name a topic with --topic"
            if not isinstance(document, dict):
                problem = "is JSON, but no object: write the event as a JSON object"
            raise errors.RegistrationError(f"line {number}", f"{problem}. {_STOPPED}")
        message = Message(topic=topic or source.topic_prefix + str(named), value=line.strip())
        if layout is not None:
            _require_event(f"line {number}", message, layout)
        yield message


def _require_event(where: str, message: Message, layout: parsing.Layout) -> None:
    record = Record(topic=message.topic, partition=0, offset=0, appended_at_ms=0, value=message.value)
    try:
        parsing.parse(record, layout)
    except errors.EventRejected as exc:
        problem = (
            f"the job would reject this event ({exc.reason}: {exc.detail}): correct the line, or publish it anyway with "
            f"--unchecked. {_STOPPED}"
        )
        raise errors.RegistrationError(where, problem) from None


def generated(
    count: int, *, event_type: str, tenants: int, source: settings.SourceSettings, rng: random.Random
) -> Iterator[Message]:
    """Yield messages with `count` events of about 450 bytes, of tenants `tenant-1` to `tenant-<tenants>`.

    The function uses only `topic_prefix` of `source`. The fields have the default names of the settings `source.*_field`.
    """
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
