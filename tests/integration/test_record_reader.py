"""A task gets exactly the records of its offset ranges from Kafka, or fails and says why."""

import random
import time
import uuid

import pytest
from confluent_kafka import Producer, TopicPartition
from pydantic import SecretStr

from delivery import errors
from delivery.config import kafka_clients, settings
from delivery.model import Record
from delivery.stages import process_state
from delivery.stages.kafka import kafka_outage, record_reader, topics
from delivery.stages.kafka.offset_ranges import RecordRange
from fanout.local import kafka_server
from tests.support import raw_records, transactions

pytestmark = pytest.mark.integration
AT_MS = int(time.time() * 1000)  # an older record would expire within the test


@pytest.fixture(autouse=True)
def _new_process():
    """Each test begins without a consumer, as a new worker does."""
    yield
    process_state.EVENT_CONSUMERS.clear()


@pytest.fixture
def topic(connection):
    """A topic with three partitions."""
    name = f"events.read-{uuid.uuid4().hex[:8]}"
    topics.ensure(connection, [name], 3)
    return name


def reader(connection, *, silence_s=20.0, **options):
    bounds = record_reader.ReadingBounds(silence_s=silence_s, listing_s=silence_s)
    client = tuple(sorted(kafka_clients.for_reading(connection).items()))
    return record_reader.KafkaReader(client=client, bounds=bounds, **options)


@pytest.fixture
def write(connection):
    producer = Producer(kafka_clients.for_librdkafka(connection) | {"enable.idempotence": True, "linger.ms": 0})

    def written(topic, values, partition=0, **options):
        for value in values:
            producer.produce(topic, value, partition=partition, timestamp=AT_MS, **options)
        assert producer.flush(30) == 0

    return written


def read(read_ranges, *ranges):
    return [record for chunk in read_ranges(ranges) for record in chunk]


def offsets(read_ranges, *ranges):
    return [(record.partition, record.offset) for record in read(read_ranges, *ranges)]


def test_a_record_comes_with_all_that_kafka_has_of_it(connection, write, topic):
    write(topic, [b"v", b"", None], key=b"k", headers=[("h", b"1"), ("h", None), ("", b"\xff")])
    headers = (("h", b"1"), ("h", b""), ("", b"\xff"))
    expected = [Record(topic, 0, offset, AT_MS, value, headers, b"k") for offset, value in enumerate([b"v", b"", None])]
    assert read(reader(connection, with_keys=True), RecordRange(topic, 0, 0, 3)) == expected
    without = [record._replace(key=None) for record in expected]
    assert read(reader(connection), RecordRange(topic, 0, 0, 3)) == without


class WatchedOrder(record_reader.RangeOrder):
    """Keeps in `peak` the most bytes that waited."""

    peak = 0

    def release(self, taken, unread):
        ready = super().release(taken, unread)
        WatchedOrder.peak = max(WatchedOrder.peak, self._bytes)
        return ready


def test_records_in_order_come_range_by_range_and_few_wait_in_memory(connection, write, topic, monkeypatch):
    """With a large backlog the reader leaves the later ranges for a while, and takes them up again."""
    monkeypatch.setattr(record_reader, "RangeOrder", WatchedOrder)
    sizes = {0: 4000, 1: 200, 2: 4000}
    for partition, count in sizes.items():
        write(topic, [bytes([partition]) * 5000] * count, partition)
    ranges = [RecordRange(topic, partition, 10, sizes[partition]) for partition in (2, 1, 0)]
    expected = [(partition, offset) for partition in (2, 1, 0) for offset in range(10, sizes[partition])]
    reads = reader(connection, in_order=True)
    assert offsets(reads, *ranges) == expected
    assert offsets(reads, *ranges[::-1]) == sorted(expected)
    one_poll = 5500 * record_reader.RECORDS_AT_ONCE
    assert record_reader.MAX_HELD_BYTES < WatchedOrder.peak < record_reader.MAX_HELD_BYTES + one_poll


def test_tasks_of_one_process_get_each_record_once_beside_a_growing_backlog(connection, write, topic):
    drawn, reads = random.Random(5), reader(connection)
    ends, positions, found = [0] * 3, [0] * 3, []
    for _ in range(25):
        for partition in range(3):
            count = drawn.randint(0, 30)
            write(topic, [b"x" * drawn.randint(1, 2000)] * count, partition)
            ends[partition] += count
        until = [drawn.randint(position, end) for position, end in zip(positions, ends, strict=True)]
        found += offsets(
            reads,
            *(RecordRange(topic, part, positions[part], until[part]) for part in range(3) if positions[part] < until[part]),
        )
        positions = until
    assert sorted(found) == [(part, offset) for part in range(3) for offset in range(positions[part])]
    assert all([o for p, o in found if p == part] == list(range(positions[part])) for part in range(3))


def test_a_record_with_a_header_whose_name_is_not_utf8_loses_its_headers(connection, write, topic):
    """confluent_kafka cannot read the name, and such a record must not fail a task again and again."""
    write(topic, [b"before"] * 100, headers=[("h", b"1")])
    raw_records.produce(connection.bootstrap_servers, topic, b"v", [(b"ok", b"1"), (b"\xff\xfe", b"2")])
    write(topic, [b"after"])
    found = read(reader(connection), RecordRange(topic, 0, 0, 102))
    assert [record.value for record in found] == [b"before"] * 100 + [b"v", b"after"]
    assert [record.headers for record in found] == [(("h", b"1"),)] * 100 + [record_reader.UNREADABLE_HEADERS, ()]


@pytest.mark.parametrize(
    ("count", "given"), [(record_reader.MAX_HEADERS, record_reader.MAX_HEADERS), (record_reader.MAX_HEADERS + 1, 0)]
)
def test_a_record_with_too_many_headers_is_read_without_them(connection, write, topic, count, given):
    write(topic, [b"v"], headers=[("", b"")] * count)
    [record] = read(reader(connection), RecordRange(topic, 0, 0, 1))
    assert len(record.headers) == given


def test_a_record_that_is_larger_than_a_fetch_is_read(connection, write, topic):
    large = b"x" * (3 * record_reader.FIXED_OPTIONS["fetch.message.max.bytes"])
    write(topic, [b"a", large, b"b"])
    assert [record.value for record in read(reader(connection), RecordRange(topic, 0, 0, 3))] == [b"a", large, b"b"]


@pytest.mark.parametrize(("isolation", "read_values"), [(None, [b"1", b"2"]), ("read_committed", [b"2"])])
def test_a_range_may_end_with_the_mark_of_a_transaction(connection, topic, isolation, read_values):
    """As Spark's source, it reads aborted records, unless the operator has set Kafka's isolation level for Spark."""
    transactions.abort_and_commit(transactions.open_producer(connection, topic), topic, b"1", b"2")
    options = {} if isolation is None else {"isolation.level": SecretStr(isolation)}
    connection = connection.model_copy(update={"spark_options": options})
    # Offsets 1 and 3 are the marks.
    assert [record.value for record in read(reader(connection), RecordRange(topic, 0, 0, 4))] == read_values


def test_a_topic_that_is_created_later_is_read_too(connection, write, topic):
    reads = reader(connection)
    write(topic, [b"1"])
    assert offsets(reads, RecordRange(topic, 0, 0, 1)) == [(0, 0)]
    topics.ensure(connection, [f"{topic}-2"], 1)
    write(f"{topic}-2", [b"1"])
    assert offsets(reads, RecordRange(f"{topic}-2", 0, 0, 1)) == [(0, 0)]


def test_records_that_are_deleted_before_they_are_read_fail_the_task(connection, write, topic):
    write(topic, [b"x"] * 10)
    admin = kafka_clients.admin(connection)
    [deleted] = admin.delete_records([TopicPartition(topic, 0, 6)]).values()
    deleted.result(30)
    with pytest.raises(errors.TopicUnreadable, match=rf"^partition 0 of topic {topic} no longer has .* from offset 2 to 7"):
        read(reader(connection), RecordRange(topic, 0, 2, 8))
    assert offsets(reader(connection), RecordRange(topic, 0, 6, 8)) == [(0, 6), (0, 7)]


def test_no_option_of_the_operator_lets_a_task_pass_over_lost_records(connection, write, topic):
    write(topic, [b"x"] * 10)
    admin = kafka_clients.admin(connection)
    [deleted] = admin.delete_records([TopicPartition(topic, 0, 6)]).values()
    deleted.result(30)
    options = {"auto.offset.reset": "earliest", "enable.partition.eof": "false", "message.max.bytes": "16000000"}
    wild = connection.model_copy(update={"librdkafka_options": {name: SecretStr(value) for name, value in options.items()}})
    with pytest.raises(errors.TopicUnreadable, match="no longer has"):
        read(reader(wild), RecordRange(topic, 0, 2, 8))


def test_a_small_batch_of_records_that_are_large_together_is_read(connection, topic):
    """Regression: librdkafka refused a batch in zstd that has more than 100 MB when it is decompressed."""
    producer = Producer(
        kafka_clients.for_librdkafka(connection)
        | {"compression.type": "zstd", "linger.ms": 3000, "batch.size": 200_000_000, "message.max.bytes": 300_000_000}
    )
    for _ in range(1200):
        producer.produce(topic, b"x" * 100_000, partition=0)
    assert producer.flush(30) == 0
    assert sum(len(chunk) for chunk in reader(connection)([RecordRange(topic, 0, 0, 1200)])) == 1200


def test_a_range_behind_the_end_of_a_topic_fails_the_task(connection, write, topic):
    """As after the topic was deleted and created again."""
    write(topic, [b"x"])
    with pytest.raises(errors.TopicUnreadable, match="no longer has the records from offset 5 to 6"):
        read(reader(connection), RecordRange(topic, 0, 5, 7))


def test_a_range_that_kafka_does_not_complete_fails_the_task_as_an_outage(connection, write, topic):
    write(topic, [b"x"])
    with pytest.raises(
        errors.KafkaUnavailable, match=rf"^{record_reader.NO_RECORDS}: partition 0 of .* from offset 1"
    ) as failed:
        read(reader(connection, silence_s=1.0), RecordRange(topic, 0, 0, 2))
    assert kafka_outage.is_kafka_outage(f"delivery.errors.KafkaUnavailable: {failed.value}")


def test_an_absent_kafka_fails_the_task_as_an_outage():
    absent = settings.KafkaSettings(bootstrap_servers=f"127.0.0.1:{kafka_server.free_port()}")
    with pytest.raises(errors.KafkaUnavailable, match=rf"^{record_reader.NO_RECORDS}: .*Local: ") as failed:
        read(reader(absent, silence_s=1.0), RecordRange("events.a", 0, 0, 1))
    assert kafka_outage.is_kafka_outage(f"delivery.errors.KafkaUnavailable: {failed.value}")
