"""With `read_committed`, commands, replays and the lag count the records that the lanes read, and no others."""

import contextlib
import uuid

import pytest
from pydantic import SecretStr

from delivery.config import kafka_clients
from delivery.stages.kafka import lag, topics
from fanout.kafka import topic_scanner
from tests.support import transactions

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("level", "read", "end"),
    [("read_committed", [b"committed"], 4), ("read_uncommitted", [b"aborted", b"committed", b"open"], 5)],
)
def test_records_of_transactions_count_as_in_the_lanes(connection, level, read, end):
    """Regression: replays delivered events of aborted transactions, and an open one made a healthy job look stalled."""
    topic = f"events.transactions-{uuid.uuid4().hex}"
    topics.ensure(connection, [topic], 1)
    producer = transactions.open_producer(connection, topic)
    transactions.abort_and_commit(producer, topic, b"aborted", b"committed")
    transactions.begin(producer, topic, b"open")
    kafka = connection.model_copy(update={"spark_options": {"isolation.level": SecretStr(level)}})
    try:
        with contextlib.closing(topic_scanner.Scanner(kafka)) as scanner:
            extents = scanner.extents([topic])
            assert [message.value() for message in scanner.messages(extents, "events")] == read
        assert [extent.end for extent in extents] == [end]
        found = lag._ends(kafka_clients.admin(kafka), {topic: {0: 0}}, kafka_clients.isolation_level(kafka))
        assert found == {topic: {0: end}}
    finally:
        producer.abort_transaction(transactions.TIMEOUT_S)
