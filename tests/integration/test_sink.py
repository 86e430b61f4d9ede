"""A task that ends well has its rows in their topics, and a task that could not write fails."""

import random
import uuid

import confluent_kafka
import pytest

from delivery import errors
from delivery.config import kafka_clients
from delivery.stages.kafka import sink, topics
from delivery.webhooks.results import dead_letter_records
from delivery.webhooks.results.topic_rows import TopicRow
from tests.support import sinks

pytestmark = pytest.mark.integration
READ_S = 20


@pytest.fixture
def topic(connection):
    name = f"results-{uuid.uuid4().hex[:8]}"
    topics.ensure(connection, [name], 3)
    return name


@pytest.fixture(params=["kafka", "folder"])
def opened(request, connection, topic, tmp_path):
    """A sink, and how to read what has been written to the topic."""
    if request.param == "kafka":
        return sink.to(kafka_clients.for_librdkafka(connection)), lambda count: read(connection, topic, count)
    folder = sinks.Folder(tmp_path)
    return folder, lambda _: folder.rows()


def read(connection, topic, count):
    options = {"group.id": topic, "auto.offset.reset": "earliest", **kafka_clients.for_librdkafka(connection)}
    consumer = confluent_kafka.Consumer(options)
    consumer.subscribe([topic])
    messages = []
    while len(messages) < count and (some := consumer.consume(count - len(messages), READ_S)):
        messages += some
    consumer.close()
    return [TopicRow(message.topic(), message.key(), message.value()) for message in messages]


def test_all_rows_of_an_ended_task_are_in_kafka_and_in_order_within_a_key(opened, topic):
    begin, written = opened
    rows = [TopicRow(topic, b"ep%d" % (number % 7), b"%d" % number) for number in range(1000)]
    writing = begin()
    writing.write(rows[:400])
    writing.write(rows[400:])
    writing.finish()
    found = written(len(rows))
    assert sorted(found) == sorted(rows)
    for key in {row.key for row in rows}:
        assert [row for row in found if row.key == key] == [row for row in rows if row.key == key]


def test_tasks_that_share_a_process_end_each_by_what_it_wrote_itself(connection, topic):
    """Again and again: what a producer that has failed says is not to be trusted (tests/unit/stages/kafka/test_sink.py)."""
    begin = sink.to(kafka_clients.for_librdkafka(connection))
    for _ in range(10):
        failing, other = begin(), begin()
        failing.write([TopicRow(topic, b"ep1", random.randbytes(2 * 1024 * 1024))])  # more than this topic takes
        other.write([TopicRow(topic, b"ep1", b"small")])
        with pytest.raises(errors.KafkaUnavailable, match=f"{topic} could not be written"):
            failing.finish()
        other.finish()
    assert read(connection, topic, 10) == [TopicRow(topic, b"ep1", b"small")] * 10


def test_a_topic_takes_the_largest_dead_letter(connection, topic):
    """With the configuration that Kafka gives a topic by default. Random bytes are not made shorter by compression."""
    rows = [TopicRow(topic, b"e" * 256, random.randbytes(dead_letter_records.MAX_BYTES))]
    writing = sink.to(kafka_clients.for_librdkafka(connection))()
    writing.write(rows)
    writing.finish()
    assert read(connection, topic, 1) == rows


def test_a_row_that_no_topic_would_take_is_refused_with_its_size(connection, topic):
    with pytest.raises(errors.KafkaUnavailable, match=rf"{topic} does not take a row of {sink.MAX_REQUEST_BYTES + 1} bytes"):
        sink.to(kafka_clients.for_librdkafka(connection))().write([TopicRow(topic, b"", bytes(sink.MAX_REQUEST_BYTES + 1))])


def test_a_task_does_not_end_well_while_no_kafka_answers():
    options = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "delivery.timeout.ms": 200, "linger.ms": 0}
    writing = sink.to(options)()
    writing.write([TopicRow("attempts", b"ep1", b"{}")])
    with pytest.raises(errors.KafkaUnavailable, match="attempts could not be written"):
        writing.finish()


def test_the_password_of_the_client_is_not_in_what_describes_a_sink():
    assert "hunter2" not in repr(sink.to({"sasl.password": "hunter2"}))
