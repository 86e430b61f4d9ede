"""Events of a batch record are in Kafka in their order, beside the key, or Kafka refuses them and no other record suffers."""

import base64
import random
import uuid

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from delivery import errors
from delivery.config import kafka_clients, settings
from delivery.stages.kafka import event_writer, topics
from delivery.webhooks.events import batch_records
from fanout.local import kafka_server as local_kafka
from tests.support import builders, logins, topic_records

pytestmark = pytest.mark.integration
HEADERS = (("trace", b"a"), ("content-type", b"application/cloudevents+json"))


def writer(connection):
    return event_writer.to(kafka_clients.for_librdkafka(connection))


def new_topic(connection, **config):
    name = f"events-{uuid.uuid4().hex[:8]}"
    topics.ensure(connection, [name], 3, config)
    return name


def batch(topic, *events, **fields):
    value = b"[%s]" % b",".join(events)
    record = builders.record(**{"topic": topic, "partition": 2, "key": b"k", "headers": HEADERS[:1], "value": value} | fields)
    return batch_records.BatchRecord(record, len(events), len(value))


def written(connection, topic):
    """The partition, key, value and headers of each record."""
    found = topic_records.records(connection, topic)
    return [(record.partition, key, record.value, record.headers) for record, key in found]


@pytest.mark.parametrize("key", [b"k", None, b""])
def test_the_events_are_in_the_partition_of_their_batch_and_in_order(connection, key):
    topic = new_topic(connection)
    values = [b"%d" % number for number in range(1000)]
    results = event_writer.take_apart(
        [batch(topic, *values[:999], key=key), batch(topic, values[999], key=key)], writer(connection)
    )
    assert [found.events for found in results.batch_records] == [999, 1]
    assert written(connection, topic) == [(2, key, value, HEADERS) for value in values]


def test_a_topic_that_refuses_an_event_rejects_its_batch_and_takes_the_others(connection):
    """Again and again: an answer of a producer that has been refused is not to be trusted."""
    narrow, other = new_topic(connection, **{"max.message.bytes": "100000"}), new_topic(connection)
    write = writer(connection)
    for _ in range(10):
        batches = [batch(narrow, b"0", text(150_000)), batch(other, b"1", b"2")]
        results = event_writer.take_apart(batches, write)
        assert [found.record.topic for found in results.batch_records] == [other]
        [rejection] = results.rejections
        assert (rejection.record.topic, rejection.reason) == (narrow, "not_written")
    assert [value for _, _, value, _ in written(connection, other)] == [b"1", b"2"] * 10


def test_many_small_events_fit_into_a_topic_of_small_requests(connection):
    """Kafka refuses a request of several records whole. A topic that took the batch takes its events."""
    topic = new_topic(connection, **{"max.message.bytes": "100000"})
    results = event_writer.take_apart([batch(topic, *[text(900) for _ in range(300)])], writer(connection))
    assert results.rejections == []
    assert len(written(connection, topic)) == 300


def test_without_kafka_the_task_fails():
    options = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "delivery.timeout.ms": 200, "linger.ms": 0}
    with pytest.raises(errors.KafkaUnavailable, match="topic events did not take an event of a batch record"):
        event_writer.take_apart([batch("events", b"1")], event_writer.to(options))


def test_without_the_right_to_write_a_batch_is_rejected(jars, tmp_path):
    """The login may write other topics, as the job's may."""
    broker = local_kafka.EmbeddedKafka(tmp_path / "guarded", libraries=jars, sasl_users={"job": "word"}, is_guarded=True)
    broker.start()
    try:
        operator = settings.KafkaSettings(**broker.client_settings())
        topic, results_topic = new_topic(operator), new_topic(operator)
        admin = AdminClient(kafka_clients.for_librdkafka(operator))
        for made in admin.create_acls([right(topic, "READ"), right(topic, "DESCRIBE"), right(results_topic, "WRITE")]).values():
            made.result(10)
        write = writer(settings.KafkaSettings(**logins.login(broker, "job", "word")))
        results = event_writer.take_apart([batch(topic, b"1", b"2"), batch(results_topic, b"3")], write)
        assert [found.record.topic for found in results.batch_records] == [results_topic]
        assert "authorization" in results.rejections[0].detail
        assert written(operator, topic) == []
    finally:
        broker.kill()


def text(size):
    """JSON that does not compress to less than three quarters."""
    return b'"%s"' % base64.b64encode(random.randbytes(size * 3 // 4))


def right(topic, operation):
    kind, way, allowed = ResourceType.TOPIC, ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    return AclBinding(kind, topic, way, "User:job", "*", AclOperation[operation], allowed)
