"""The direct lane's tasks in a real Spark: every record accounted for, a registry that changes between micro-batches."""

import os
import sys

import orjson
import pyarrow as pa
import pytest
from confluent_kafka import Producer

from delivery.config import kafka_clients, plan_builder, settings
from delivery.registry_model import Revision, SubscriptionStatus
from delivery.stages.kafka import record_reader, sink, topics
from delivery.stages.kafka.offset_ranges import RecordRange
from delivery.stages.lanes import telemetry
from delivery.stages.registry import broadcasts
from delivery.stages.tasks import deliver_events, task_context
from delivery.webhooks.routing import published_registry
from delivery.webhooks.routing.registry_snapshot import SnapshotChanges
from tests.support import assignments, builders, sinks

pytestmark = [
    pytest.mark.spark,
    # py4j leaves its sockets for the garbage collector to close.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
PLAN = plan_builder.plan_of(settings.Settings())
TOPICS = settings.Settings().delivery


@pytest.fixture
def observer(spark):
    return telemetry.Telemetry(spark.sparkContext, "direct", settings.LogsSettings()).observer


def published(*rows, changes=None, base_id="base"):
    base = builders.snapshot(builders.endpoint(), *rows)
    return published_registry.Published(base_id=base_id, base=base, changes=changes, confirmed_at=0.0)


EVENT = b'{"tenant_id":"t1"}'


@pytest.fixture
def tools(tmp_path, observer):
    return task_context.Tools(plan=PLAN, observe=observer, sink=sinks.Folder(tmp_path))


def written(tools, of):
    return [(row.topic, orjson.loads(row.value)) for row in tools.sink.take(of)]


def test_every_record_has_a_receipt_and_an_invalid_record_becomes_a_rejection(spark, tools):
    of = broadcasts.Broadcaster(spark.sparkContext).source(published(), "direct")
    rows = written(tools, assignments.made(spark, 1000, tools, of, b"not JSON"))
    assert sum(entry["records"] for topic, entry in rows if topic == TOPICS.attempts_topic) == 1000
    assert sum(topic == TOPICS.rejected_topic for topic, _ in rows) == 1000


def test_a_change_reaches_workers_that_have_the_broadcast_already(spark, tools):
    """The subscription is paused, so that what is due shows without a request."""
    broadcaster = broadcasts.Broadcaster(spark.sparkContext)
    paused = builders.subscription(status=SubscriptionStatus.PAUSED)
    added = builders.subscription("s2", status=SubscriptionStatus.PAUSED)

    def due(changes):
        of = broadcaster.source(published(paused, changes=changes, base_id="changing"), "direct")
        rows = written(tools, assignments.made(spark, 100, tools, of, EVENT))
        return {entry["subscription_id"] for _, row in rows for entry in row.get("entries", ()) if entry["kind"] == "skipped"}

    assert due(None) == {"s1"}
    first = SnapshotChanges(since=Revision(1), revision=Revision(2), subscriptions={"s2": added})
    assert due(first) == {"s1", "s2"}
    second = SnapshotChanges(since=Revision(2), revision=Revision(3), subscriptions={"s1": None})
    assert due(first.followed_by(second)) == {"s2"}


def test_a_new_broadcast_takes_the_place_of_the_old_one(spark):
    broadcaster = broadcasts.Broadcaster(spark.sparkContext)
    first = broadcaster.source(published(base_id="a"), "direct")
    assert broadcaster.source(published(base_id="a"), "direct").broadcast is first.broadcast
    assert broadcaster.source(published(base_id="b"), "direct").broadcast is not first.broadcast


def test_workers_can_be_made_ready_without_any_record(spark, tools):
    of = broadcasts.Broadcaster(spark.sparkContext).source(published(), "direct")
    assert written(tools, deliver_events.deliver(spark.sparkContext, [(), ()], tools, of, assignments.MadeRecords(()))) == []


def test_the_direct_lane_uses_the_worker_processes_of_the_other_lanes(spark):
    """Spark sets an environment variable for the tasks of frames alone, and would start further processes for the others."""

    def of_frame(batches):
        list(batches)
        yield pa.RecordBatch.from_pylist([{"daemon": os.getppid()}])

    def of_number(_):
        return iter([(os.getpid(), os.getppid())])

    [row] = spark.range(0, 1, 1, 1).mapInArrow(of_frame, "daemon long").collect()
    found = [task_context.numbered(spark.sparkContext, of_number, 1).collect()[0] for _ in range(30)]
    assert {daemon for _, daemon in found} == {row.daemon}
    assert len({worker for worker, _ in found}) < 30  # Spark uses a process again


def test_workers_load_neither_pandas_nor_modules_of_the_driver(spark, observer, kafka):
    """There are as many workers as cores, and these modules took 60 MB of each worker."""
    config = settings.KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)
    topics.ensure(config, topics.of_results(TOPICS), 1)
    of = broadcasts.Broadcaster(spark.sparkContext).source(published(), "direct")
    producer = Producer(kafka_clients.for_librdkafka(config))
    for _ in range(2000):
        producer.produce(TOPICS.rejected_topic, b"not JSON", partition=0)
    producer.flush()
    tools = task_context.Tools(plan=PLAN, observe=observer, sink=sink.to(kafka_clients.for_librdkafka(config)))
    deliver = deliver_events.DeliverAssignment(
        assignments=[[RecordRange(TOPICS.rejected_topic, 0, 0, 2000)]],
        tools=tools,
        source=of,
        read=record_reader.to(kafka_clients.for_reading(config), with_keys=False),
    )

    def loaded(number):
        assert list(deliver(number)) == []
        assert "confluent_kafka" in sys.modules
        return iter([name for name in ("pandas", "pydantic", "psycopg") if name in sys.modules])

    assert task_context.numbered(spark.sparkContext, loaded, 1).collect() == []
