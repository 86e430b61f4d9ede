"""Retention deletes records while they are read: no reader takes the rest of the partition for read."""

import contextlib
import uuid

import confluent_kafka
import pytest
from confluent_kafka import Producer, TopicPartition

from delivery import errors
from delivery.config import kafka_clients
from delivery.stages.kafka import bounded_reader, completed_reader, lag, topics
from fanout.kafka import topic_scanner

pytestmark = pytest.mark.integration


@pytest.fixture
def topic(connection):
    """A topic with ten records in its one partition."""
    name = f"short-{uuid.uuid4().hex[:8]}"
    topics.ensure(connection, [name], 1)
    producer = Producer(kafka_clients.for_librdkafka(connection))
    for number in range(10):
        producer.produce(name, str(number).encode(), partition=0)
    producer.flush()
    return name


def delete_before(connection, topic, offset):
    admin = kafka_clients.admin(connection)
    [deleted] = admin.delete_records([TopicPartition(topic, 0, offset)]).values()
    deleted.result(30)


def test_a_scan_whose_records_are_deleted_meanwhile_fails_and_says_what_to_do(connection, topic):
    """Regression: it ended without an error and without the records after the deleted ones, so a redrive left these out."""
    with contextlib.closing(topic_scanner.Scanner(connection)) as scanner:
        extents = scanner.extents([topic])
        delete_before(connection, topic, 6)
        with pytest.raises(errors.TopicUnreadable, match=rf"^Kafka deleted records of {topic}:0 before .* try again"):
            scanner.read(extents, "dead letters", lambda _: None)
        found = []
        scanner.read(scanner.extents([topic]), "dead letters", lambda message: found.append(message.offset()))
        assert found == [6, 7, 8, 9]


def test_a_deleted_topic_that_a_lane_has_paused_has_no_end_and_hides_no_other(connection, topic):
    """Regression: the lag of all topics was unknown then, and the lane looked as if Kafka did not answer."""
    admin, known = kafka_clients.admin(connection), {topic: {0: 4}, "gone": {0: 4}}
    with pytest.raises(confluent_kafka.KafkaException, match="UNKNOWN_TOPIC_OR_PART"):
        lag._ends(admin, known, "read_uncommitted")
    ends = lag._ends(admin, known, "read_uncommitted", may_be_gone={"gone"})
    assert lag.by_topic(known, ends) == {topic: 6, "gone": 0}


def test_results_that_are_deleted_meanwhile_hide_no_later_results(connection, topic):
    """Regression: the completed-work log and the real-time lane's start lacked them, so that deliveries were repeated."""
    delete_before(connection, topic, 6)
    config = {**completed_reader.CONSUMER, **kafka_clients.for_librdkafka(connection)}
    with contextlib.closing(confluent_kafka.Consumer(config)) as consumer:
        polls = bounded_reader.batches(consumer, [TopicPartition(topic, 0, 2)], max_records=100, wait_s=1.0)
        assert [message.offset() for poll in polls for message in poll] == [6, 7, 8, 9]
