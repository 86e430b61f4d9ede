"""What was written is read back from Kafka from a moment on, over all partitions."""

import time
import uuid

import pytest
from confluent_kafka import Producer

from delivery import kafka_options, settings
from delivery.stages import journal, topics
from delivery.webhooks import journal as decided
from delivery.webhooks import rows
from delivery.webhooks.results import dead_letter_records, log_records
from delivery.webhooks.results.log_entries import AttemptEntry
from tests import records

pytestmark = pytest.mark.integration


@pytest.fixture
def connection(kafka):
    return settings.Kafka(bootstrap_servers=kafka.bootstrap_servers)


@pytest.fixture
def names(connection):
    """Topics of this test's own. That of the retry lane is not there: an older version has not made it."""
    name = uuid.uuid4().hex[:8]
    made = rows.Topics(attempts=f"a-{name}", dead_letters=f"d-{name}", rejected=f"r-{name}", retries=f"t-{name}")
    topics.ensure(connection, [made.attempts, made.dead_letters], 3)
    return made


def delivered(offset):
    return records.log(records.entry(AttemptEntry, subscription_id="s1", topic="t", partition=0, offset=offset))


def test_it_is_what_was_written_since(connection, names):
    now_ms = int(time.time() * 1000)
    producer = Producer(kafka_options.for_librdkafka(connection))
    for offset in range(100):
        at_ms = now_ms - (10 * journal.SLACK_MS if offset < 30 else 0)
        value = log_records.encode(delivered(offset))
        producer.produce(names.attempts, value, partition=offset % 3, timestamp=at_ms)
    letter = records.dead_letter(subscription_id="s1", topic="t", partition=0, offset=500)
    producer.produce(names.dead_letters, dead_letter_records.encode(letter))
    producer.flush()

    found = journal.read(journal.Journal(client=kafka_options.for_librdkafka(connection), topics=names, since_ms=now_ms))

    expected = {decided.key("s1", decided.Place("t", 0, offset)) for offset in range(30, 100)}
    assert found == expected | {decided.key("s1", decided.Place("t", 0, 500))}


def test_a_kafka_that_is_away_means_that_everything_is_made_again(names, monkeypatch, caplog):
    monkeypatch.setattr(journal, "_ASKED_S", 0.5)
    away = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    assert journal.read(journal.Journal(client=away, topics=names, since_ms=0)) == frozenset()
    assert "is made again" in caplog.text
