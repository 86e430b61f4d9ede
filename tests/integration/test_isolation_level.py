"""With `read_committed`, commands, replays and the lag count the records that the lanes read, and no others."""

import contextlib
import uuid

import pytest
from confluent_kafka import Producer
from pydantic import SecretStr

from delivery.config import kafka_clients
from delivery.stages.kafka import lag, topics
from fanout.kafka import topic_scanner

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("level", "read", "end"),
    [("read_committed", [b"committed"], 4), ("read_uncommitted", [b"aborted", b"committed", b"open"], 5)],
)
def test_records_of_transactions_count_as_in_the_lanes(connection, level, read, end):
    """Regression: replays delivered events of aborted transactions, and an open one made a healthy job look stalled."""
    topic = f"events.transactions-{uuid.uuid4().hex}"
    topics.ensure(connection, [topic], 1)
    producer = Producer(kafka_clients.for_librdkafka(connection) | {"transactional.id": topic})
    producer.init_transactions(30)
    for value, end_transaction in ((b"aborted", producer.abort_transaction), (b"committed", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        producer.flush()
        end_transaction(30)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush()
    kafka = connection.model_copy(update={"spark_options": {"isolation.level": SecretStr(level)}})
    try:
        with contextlib.closing(topic_scanner.Scanner(kafka)) as scanner:
            extents = scanner.extents([topic])
            assert [message.value() for message in scanner.messages(extents, "events")] == read
        assert [extent.end for extent in extents] == [end]
        found = lag._ends(kafka_clients.admin(kafka), {topic: {0: 0}}, kafka_clients.isolation_level(kafka))
        assert found == {topic: {0: end}}
    finally:
        producer.abort_transaction(30)
