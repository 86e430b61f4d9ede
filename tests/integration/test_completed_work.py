"""Completed work is read back from Kafka from a moment on, over all partitions."""

import time
import uuid

import pytest
from confluent_kafka import Producer

from delivery.config import kafka_clients
from delivery.stages.kafka import completed_reader, topics
from delivery.webhooks.results import completed_work as decided
from delivery.webhooks.results import dead_letter_records, log_records, topic_rows
from delivery.webhooks.results.log_entries import AttemptEntry
from tests.support import records

pytestmark = pytest.mark.integration


@pytest.fixture
def names(connection):
    """Topics of this test's own. That of the retry lane is not there: an older version has not made it."""
    name = uuid.uuid4().hex[:8]
    made = topic_rows.Topics(attempts=f"a-{name}", dead_letters=f"d-{name}", rejected=f"r-{name}", retries=f"t-{name}")
    topics.ensure(connection, [made.attempts, made.dead_letters], 3)
    return made


def delivered(offset):
    return records.log(records.entry(AttemptEntry, subscription_id="s1", topic="t", partition=0, offset=offset))


def test_it_is_what_was_written_since(connection, names):
    now_ms = int(time.time() * 1000)
    # Idempotent, so that the old messages stay in front: a retry to a leader that moves would append them behind the others.
    producer = Producer(kafka_clients.for_librdkafka(connection) | {"enable.idempotence": True})
    for offset in range(100):
        at_ms = now_ms - (10 * completed_reader.SLACK_MS if offset < 30 else 0)
        value = log_records.encode(delivered(offset))
        producer.produce(names.attempts, value, partition=offset % 3, timestamp=at_ms)
    letter = records.dead_letter(subscription_id="s1", topic="t", partition=0, offset=500)
    producer.produce(names.dead_letters, dead_letter_records.encode(letter))
    producer.flush()

    found = completed_reader.read(
        completed_reader.CompletedWork(client=kafka_clients.for_librdkafka(connection), topics=names, since_ms=now_ms)
    )

    expected = {decided.key("s1", decided.KafkaPosition("t", 0, offset)) for offset in range(30, 100)}
    assert found == expected | {decided.key("s1", decided.KafkaPosition("t", 0, 500))}


def test_unreadable_records_are_counted_in_one_warning(connection, names, caplog):
    producer = Producer(kafka_clients.for_librdkafka(connection))
    producer.produce(names.attempts, b"x")
    producer.produce(names.attempts, log_records.encode(delivered(1)))
    producer.produce(names.dead_letters, b"y")
    producer.flush()
    now_ms, client = int(time.time() * 1000), kafka_clients.for_librdkafka(connection)
    found = completed_reader.read(completed_reader.CompletedWork(client=client, topics=names, since_ms=now_ms))
    assert found == {decided.key("s1", decided.KafkaPosition("t", 0, 1))}
    assert f"2 records of the topics {names.dead_letters}, {names.retries}, {names.attempts} could not be read" in caplog.text


def test_a_kafka_that_is_away_means_that_everything_is_made_again(names, caplog):
    away = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    work_log = completed_reader.CompletedWork(client=away, topics=names, since_ms=0)
    assert completed_reader.read(work_log, completed_reader.ReadBounds(asked_s=0.5)) == frozenset()
    assert "may be sent again" in caplog.text
