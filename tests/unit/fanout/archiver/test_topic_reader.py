"""`fanout archive --once` ends when all records are archived, or when Kafka sends nothing while the archive waits for it."""

from types import SimpleNamespace

import pytest

from delivery import errors
from delivery.config import kafka_clients, settings
from fanout.archiver import topic_reader


@pytest.fixture
def clock(monkeypatch):
    times = SimpleNamespace(now=0.0)
    monkeypatch.setattr(topic_reader.time, "monotonic", lambda: times.now)
    return times


class Consumer:
    """A consumer of one partition with three records. A poll without a record takes the time that it may wait."""

    def __init__(self, clock):
        self._clock = clock
        self.waiting = []

    def list_topics(self, **_):
        return SimpleNamespace(topics={"attempts": SimpleNamespace(partitions=[0])})

    def get_watermark_offsets(self, *_):
        return 0, 3

    def assign(self, _):
        pass

    def consume(self, _, wait_s):
        if not self.waiting:
            self._clock.now += wait_s
            return []
        offset = self.waiting.pop(0)
        return [SimpleNamespace(error=lambda: None, topic=lambda: "attempts", partition=lambda: 0, offset=lambda: offset)]


@pytest.fixture
def consumer(clock):
    return Consumer(clock)


@pytest.fixture
def source(consumer, monkeypatch):
    monkeypatch.setattr(kafka_clients, "consumer", lambda *_: consumer)
    made = topic_reader.Source(settings.KafkaSettings(), ["attempts"])
    made.begin({})
    return made


def test_a_slow_archive_does_not_take_kafka_for_silent(source, consumer, clock):
    """Regression: if the rows of one poll took longer than Kafka may be silent, the command failed."""
    consumer.waiting += [0, 1]
    for _ in range(2):
        [record] = source.poll(1.0)
        source.reached(record)
        clock.now += 10 * topic_reader.TIMEOUT_S  # Postgres is slow
        assert not source.has_all()


def test_a_silent_kafka_is_named(source, consumer):
    consumer.waiting += [0]
    source.poll(1.0)
    for _ in range(topic_reader.TIMEOUT_S):
        source.poll(1.0)
        assert not source.has_all()
    source.poll(1.0)
    with pytest.raises(errors.KafkaUnavailable, match="has sent nothing for 30 s"):
        source.has_all()


def test_an_archive_that_has_all_records_ends(source, consumer):
    consumer.waiting += [0, 1, 2]
    for _ in range(3):
        source.reached(*source.poll(1.0))
    assert source.has_all()
