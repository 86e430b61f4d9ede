"""The result topics of an interrupted micro-batch are read to their ends, also while leaders move."""

import math
from types import SimpleNamespace

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from delivery import errors
from delivery.config import plan_builder, settings
from delivery.stages.kafka import completed_reader


class Consumer:
    """A consumer of one partition, which is empty since the time asked for. Its look-ups fail with `codes` first.

    With `refusal`, Kafka refuses to describe the topic.
    """

    def __init__(self, *codes, refusal=None):
        self._failures = [KafkaException(KafkaError(code)) for code in codes]
        self._topic = SimpleNamespace(partitions={0: None}, error=None)
        if refusal is not None:
            self._topic = SimpleNamespace(partitions={}, error=KafkaError(refusal))
        self.lookups = 0

    def list_topics(self, topic, _):
        return SimpleNamespace(topics={topic: self._topic})

    def offsets_for_times(self, asked, _):
        self.lookups += 1
        if self._failures:
            raise self._failures.pop(0)
        return [TopicPartition(place.topic, place.partition, -1) for place in asked]

    def assign(self, _):
        pass

    def unassign(self):
        pass

    def close(self):
        pass


class StoppedConsumer(Consumer):
    """A consumer of one partition, which has records. Kafka stops before it sends the first."""

    def offsets_for_times(self, asked, _):
        return [TopicPartition(place.topic, place.partition, 0) for place in asked]

    def consume(self, *_):
        return []


class LongConsumer(StoppedConsumer):
    """A consumer of one partition that has 5 records. Kafka sends one at each poll, then the end. Each takes 20 s."""

    def __init__(self, now):
        super().__init__()
        self._offsets, self._now = iter(range(6)), now

    def consume(self, most, _):
        if most != 1:
            return []
        offset = next(self._offsets)
        self._now[0] += 20
        error = KafkaError(KafkaError._PARTITION_EOF) if offset == 5 else None
        place = {"topic": lambda: "attempts", "partition": lambda: 0, "offset": lambda: offset}
        return [SimpleNamespace(**place, error=lambda: error, value=lambda: b"{}")]


def read(consumer, *, until=math.inf, is_patient=False):
    return list(completed_reader.messages(consumer, "attempts", 1000, until=until, is_patient=is_patient))


def test_a_leader_that_moves_is_waited_for():
    """Regression: the job read nothing while a leader moved, and repeated every delivery of the micro-batch."""
    consumer = Consumer(KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)
    assert (read(consumer), consumer.lookups) == ([], 3)


def test_a_leader_that_moves_for_too_long_ends_the_reading():
    consumer = Consumer(KafkaError.NOT_LEADER_FOR_PARTITION)
    with pytest.raises(KafkaException):
        read(consumer, until=0.0)
    assert consumer.lookups == 1


def test_a_topic_that_is_not_read_to_its_end_is_no_whole_answer():
    """Regression: Kafka stopped in the middle, and the real-time lane started with a part of its receipts."""
    with pytest.raises(
        errors.KafkaUnavailable, match="topic attempts was not read to its end: the 60 s for all topics of results are over"
    ):
        read(StoppedConsumer(), until=0.0)


def test_a_patient_reader_goes_on_while_messages_come(monkeypatch):
    """The receipts of a lane that has rested for days take minutes. With a bound on the whole it could never start."""
    now = [0.0]
    monkeypatch.setattr(completed_reader.time, "monotonic", lambda: now[0])
    assert len(read(LongConsumer(now), until=completed_reader.BOUNDS.read_s, is_patient=True)) == 5
    assert now[0] > completed_reader.BOUNDS.read_s
    with pytest.raises(errors.KafkaUnavailable, match="no message came for 60 s"):
        read(StoppedConsumer(), until=0.0, is_patient=True)


def test_a_topic_that_kafka_refuses_to_describe_is_not_taken_as_empty():
    """Regression: a login that may not see the attempts topic started the real-time lane without receipts."""
    with pytest.raises(KafkaException):
        read(Consumer(refusal=KafkaError.TOPIC_AUTHORIZATION_FAILED))
    assert read(Consumer(refusal=KafkaError.UNKNOWN_TOPIC_OR_PART)) == []


def test_a_lane_starts_without_the_results_that_kafka_does_not_send(monkeypatch, caplog):
    monkeypatch.setattr(confluent_kafka, "Consumer", lambda _: StoppedConsumer())
    work_log = completed_reader.CompletedWork(client={}, topics=plan_builder.plan_of(settings.Settings()).topics, since_ms=0)
    assert completed_reader.read(work_log, completed_reader.ReadBounds(read_s=0.0)) == frozenset()
    assert "may be sent again, with the same webhook-id" in caplog.text


class ForbiddenConsumer(StoppedConsumer):
    """A consumer of a topic that its login may describe, and not read."""

    def consume(self, *_):
        refused = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        return [SimpleNamespace(topic=lambda: "attempts", partition=lambda: 0, offset=lambda: 0, error=lambda: refused)]


def test_a_topic_that_the_login_may_not_read_is_not_waited_for(monkeypatch, caplog):
    """Regression: each start of a lane waited a minute, and its warning named a time limit."""
    monkeypatch.setattr(confluent_kafka, "Consumer", lambda _: ForbiddenConsumer())
    topics = plan_builder.plan_of(settings.Settings()).topics
    assert completed_reader.read(completed_reader.CompletedWork(client={}, topics=topics, since_ms=0)) == frozenset()
    assert "TOPIC_AUTHORIZATION_FAILED" in caplog.text
