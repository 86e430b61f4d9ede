"""The partition function in a real Spark: few tasks, every record accounted for, a registry that changes between batches."""

import sys

import orjson
import pyarrow as pa
import pytest

from delivery import plan, settings
from delivery.model import Revision, SubscriptionStatus
from delivery.stages import deliver, snapshot, telemetry
from delivery.webhooks.snapshot import SnapshotChanges
from tests import builders

pytestmark = [
    pytest.mark.spark,
    # py4j leaves its sockets for the garbage collector to close.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
TOLD = plan.of(settings.Settings())
TOPICS = settings.Settings().delivery


@pytest.fixture
def observer(spark):
    return telemetry.Telemetry(spark.sparkContext, "direct", settings.Logs()).observer


def published(*rows, changes=None, base_id="base"):
    base = builders.snapshot(builders.endpoint(), *rows)
    return snapshot.Published(base_id=base_id, base=base, changes=changes, confirmed_at=0.0)


def source_rows(spark, count, partitions, value='{"tenant_id":"t1"}'):
    return spark.range(0, count, 1, partitions).selectExpr(
        "'events.order.created' AS topic",
        "CAST(id % 7 AS INT) AS partition",
        "id AS offset",
        "id AS appended_at_ms",
        f"CAST('{value}' AS BINARY) AS value",
        "CAST(NULL AS STRING) AS headers",
    )


def written(frame):
    return [(row["topic"], orjson.loads(bytes(row["value"]))) for row in frame.collect()]


def test_five_hundred_input_partitions_are_no_more_tasks_than_can_run_at_once(spark, observer):
    of = snapshot.Broadcaster(spark.sparkContext).source(published(), "direct")
    assert deliver.deliver(source_rows(spark, 500, 500), TOLD, of, 2, observer).rdd.getNumPartitions() == 2


def test_every_record_is_covered_by_a_receipt_and_what_is_no_event_goes_to_the_operator(spark, observer):
    of = snapshot.Broadcaster(spark.sparkContext).source(published(), "direct")
    rows = written(deliver.deliver(source_rows(spark, 1000, 20, value="not JSON"), TOLD, of, 2, observer))
    assert sum(entry["records"] for topic, entry in rows if topic == TOPICS.attempts_topic) == 1000
    assert sum(topic == TOPICS.rejected_topic for topic, _ in rows) == 1000


def test_a_change_reaches_workers_that_have_the_broadcast_already(spark, observer):
    """The subscription is paused, so that what is due shows without a request."""
    broadcaster = snapshot.Broadcaster(spark.sparkContext)
    paused = builders.subscription(status=SubscriptionStatus.PAUSED)
    added = builders.subscription("s2", status=SubscriptionStatus.PAUSED)

    def due(changes):
        of = broadcaster.source(published(paused, changes=changes, base_id="changing"), "direct")
        rows = written(deliver.deliver(source_rows(spark, 100, 4), TOLD, of, 2, observer))
        return {entry["subscription_id"] for _, row in rows for entry in row.get("entries", ()) if entry["kind"] == "skipped"}

    assert due(None) == {"s1"}
    first = SnapshotChanges(since=Revision(1), revision=Revision(2), subscriptions={"s2": added})
    assert due(first) == {"s1", "s2"}
    second = SnapshotChanges(since=Revision(2), revision=Revision(3), subscriptions={"s1": None})
    assert due(first.followed_by(second)) == {"s2"}


def test_a_new_broadcast_takes_the_place_of_the_old_one(spark):
    broadcaster = snapshot.Broadcaster(spark.sparkContext)
    first = broadcaster.source(published(base_id="a"), "direct")
    assert broadcaster.source(published(base_id="a"), "direct").broadcast is first.broadcast
    assert broadcaster.source(published(base_id="b"), "direct").broadcast is not first.broadcast


def test_workers_can_be_made_ready_without_any_record(spark, observer):
    of = snapshot.Broadcaster(spark.sparkContext).source(published(), "direct")
    assert written(deliver.deliver(deliver.no_records(spark, 2), TOLD, of, 2, observer)) == []


def test_workers_have_returned_rows_and_loaded_neither_pandas_nor_what_is_the_driver_s(spark, observer):
    """They are as many as there are cores, and these modules took 60 MB of each."""
    of = snapshot.Broadcaster(spark.sparkContext).source(published(), "direct")
    partition = deliver.DeliverPartition(plan=TOLD, source=of, observe=observer)

    def loaded(batches):
        assert sum(batch.num_rows for batch in partition(batches)) == 2007  # seven receipts
        names = [name for name in ("pandas", "pydantic", "psycopg") if name in sys.modules]
        yield pa.RecordBatch.from_pylist([{"module": name} for name in names], pa.schema([("module", pa.string())]))

    assert source_rows(spark, 2000, 1, value="not JSON").coalesce(1).mapInArrow(loaded, "module string").collect() == []
