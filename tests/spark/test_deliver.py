"""The partition function in a real Spark: few tasks, every record accounted for, a registry that changes between batches."""

import sys

import orjson
import pyarrow as pa
import pytest

from delivery.config import kafka_clients, plan_builder, settings
from delivery.registry_model import Revision, SubscriptionStatus
from delivery.stages.kafka import sink, topics
from delivery.stages.lanes import telemetry
from delivery.stages.registry import broadcasts
from delivery.stages.tasks import deliver_events, task_context
from delivery.webhooks.routing import published_registry
from delivery.webhooks.routing.registry_snapshot import SnapshotChanges
from tests.support import builders, sinks

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


def source_rows(spark, count, partitions, value='{"tenant_id":"t1"}'):
    return spark.range(0, count, 1, partitions).selectExpr(
        "'events.order.created' AS topic",
        "CAST(id % 7 AS INT) AS partition",
        "id AS offset",
        "id AS appended_at_ms",
        f"CAST('{value}' AS BINARY) AS value",
        "CAST(NULL AS STRING) AS headers",
    )


@pytest.fixture
def tools(tmp_path, observer):
    return task_context.Tools(plan=PLAN, observe=observer, sink=sinks.Folder(tmp_path))


def written(tools, of):
    return [(row.topic, orjson.loads(row.value)) for row in tools.sink.take(of)]


def test_five_hundred_input_partitions_are_no_more_tasks_than_can_run_at_once(spark, tools):
    of = broadcasts.Broadcaster(spark.sparkContext).source(published(), "direct")
    assert deliver_events.deliver(source_rows(spark, 500, 500), tools, of, 2).rdd.getNumPartitions() == 2


def test_every_record_has_a_receipt_and_an_invalid_record_becomes_a_rejection(spark, tools):
    of = broadcasts.Broadcaster(spark.sparkContext).source(published(), "direct")
    rows = written(tools, deliver_events.deliver(source_rows(spark, 1000, 20, value="not JSON"), tools, of, 2))
    assert sum(entry["records"] for topic, entry in rows if topic == TOPICS.attempts_topic) == 1000
    assert sum(topic == TOPICS.rejected_topic for topic, _ in rows) == 1000


def test_a_change_reaches_workers_that_have_the_broadcast_already(spark, tools):
    """The subscription is paused, so that what is due shows without a request."""
    broadcaster = broadcasts.Broadcaster(spark.sparkContext)
    paused = builders.subscription(status=SubscriptionStatus.PAUSED)
    added = builders.subscription("s2", status=SubscriptionStatus.PAUSED)

    def due(changes):
        of = broadcaster.source(published(paused, changes=changes, base_id="changing"), "direct")
        rows = written(tools, deliver_events.deliver(source_rows(spark, 100, 4), tools, of, 2))
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
    assert written(tools, deliver_events.deliver(deliver_events.no_records(spark, 2), tools, of, 2)) == []


def test_workers_load_neither_pandas_nor_modules_of_the_driver(spark, observer, kafka):
    """There are as many workers as cores, and these modules took 60 MB of each worker."""
    config = settings.KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)
    topics.ensure(config, topics.of_results(TOPICS), 1)
    of = broadcasts.Broadcaster(spark.sparkContext).source(published(), "direct")
    writing = sink.to(kafka_clients.for_librdkafka(config))
    partition = deliver_events.DeliverPartition(tools=task_context.Tools(plan=PLAN, observe=observer, sink=writing), source=of)

    def loaded(batches):
        assert list(partition(batches)) == []
        assert "confluent_kafka" in sys.modules
        names = [name for name in ("pandas", "pydantic", "psycopg") if name in sys.modules]
        yield pa.RecordBatch.from_pylist([{"module": name} for name in names], pa.schema([("module", pa.string())]))

    assert source_rows(spark, 2000, 1, value="not JSON").coalesce(1).mapInArrow(loaded, "module string").collect() == []
