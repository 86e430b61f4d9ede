"""Partitions are read to their ends, and no further."""

import itertools

from confluent_kafka import KafkaError, TopicPartition

from delivery.stages.kafka import bounded_reader


class Message:
    def __init__(self, partition, offset, error=None):
        self._partition, self._offset, self._error = partition, offset, error

    def topic(self):
        return "t"

    def partition(self):
        return self._partition

    def offset(self):
        return self._offset

    def error(self):
        return self._error


def end_of(partition):
    return Message(partition, None, KafkaError(KafkaError._PARTITION_EOF))


class Consumer:
    """Returns these polls, then nothing."""

    def __init__(self, *polls):
        self._polls = itertools.chain(polls, itertools.repeat([]))
        self.assigned = None

    def assign(self, starts):
        self.assigned = [(start.topic, start.partition, start.offset) for start in starts]

    def unassign(self):
        self.assigned = []

    def consume(self, count, wait_s):
        """As librdkafka: wait until `count` messages are there, or the time is over."""
        assert (count, wait_s) in {(1, 0.5), (99, 0)}, "a wait for many messages takes its whole time"
        if wait_s:
            self._there = list(next(self._polls))
        taken, self._there = self._there[:count], self._there[count:]
        return taken


def read(consumer, *starts, ends=None):
    found = bounded_reader.batches(
        consumer, [TopicPartition("t", *start) for start in starts], ends=ends, max_records=100, wait_s=0.5
    )
    return [[(message.partition(), message.offset()) for message in batch] for batch in found]


def test_it_ends_when_the_broker_reports_the_end_of_every_partition():
    consumer = Consumer([Message(0, 5), end_of(0)], [], [Message(1, 0)], [end_of(1)])
    assert read(consumer, (0, 5), (1, 0)) == [[(0, 5)], [], [(1, 0)], []]
    assert consumer.assigned == []


def test_it_ends_at_the_given_offsets_while_others_write():
    consumer = Consumer([Message(0, 5), Message(0, 6), Message(0, 7)], [Message(1, 0), Message(0, 8)])
    assert read(consumer, (0, 5), (1, 0), ends={("t", 0): 7, ("t", 1): 1}) == [[(0, 5), (0, 6)], [(1, 0)]]


def test_a_gap_at_the_end_of_a_partition_ends_it():
    """Markers of transactions have offsets, and are not records."""
    assert read(Consumer([Message(0, 5)], [end_of(0)]), (0, 5), ends={("t", 0): 8}) == [[(0, 5)], []]
    assert read(Consumer([Message(0, 9)]), (0, 5), ends={("t", 0): 8}) == [[]]


def test_errors_are_left_to_the_caller():
    failed = Message(0, None, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    assert read(Consumer([failed, end_of(0)]), (0, 0)) == [[(0, None)]]


def test_without_partitions_nothing_is_read():
    assert read(Consumer()) == []
