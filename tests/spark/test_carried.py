"""The registry delta of a micro-batch reaches all its tasks, whose closure is older."""

import contextlib

import pyarrow as pa
import pytest
from cryptography.exceptions import InvalidTag

from delivery.observability import metrics
from delivery.registry_model import Revision, SubscriptionStatus
from delivery.stages.registry import broadcasts, task_delta
from delivery.stages.tasks import arrow
from delivery.webhooks.routing import published_registry
from delivery.webhooks.routing.registry_snapshot import SnapshotChanges
from delivery.webhooks.state import pickling
from tests.support import builders

pytestmark = [
    pytest.mark.spark,
    # py4j leaves its sockets for the garbage collector to close.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def published(revision=None, base_id="carried"):
    base = builders.snapshot(builders.endpoint(), builders.subscription())
    changed = builders.subscription(status=SubscriptionStatus.PAUSED)
    changes = (
        None
        if revision is None
        else SnapshotChanges(since=Revision(1), revision=Revision(revision), subscriptions={"s1": changed})
    )
    return published_registry.Published(base_id=base_id, base=base, changes=changes, confirmed_at=0.0)


def test_each_micro_batch_routes_by_the_registry_that_it_began_with(spark, tmp_path):
    broadcaster = broadcasts.Broadcaster(spark.sparkContext)
    delta = task_delta.TaskDelta(spark.sparkContext, broadcaster.source(published(), "batch"))
    source = delta.source
    begun = []

    # Pickled by value: a class of this module would bring its imports, the driver's, into workers that other tests look into.
    def seen(batches):
        for _ in batches:
            revision = int(source.registry(None).revision)
            yield pa.RecordBatch.from_arrays([arrow.numbers([revision])], ["revision"])

    def handle(rows, number):
        delta.publish(broadcaster.source(published(number + 2), "batch"))
        begun.append((number + 2, {row["revision"] for row in rows.collect()}))

    records = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=4, numPartitions=2).load()
    query = (
        records.mapInArrow(seen, "revision int")
        .writeStream.option("checkpointLocation", str(tmp_path))
        .foreachBatch(handle)
        .start()
    )
    with contextlib.closing(_Stopping(query)):
        while len(begun) < 3 and query.isActive:
            query.awaitTermination(0.1)
    assert [(by, seen) for by, seen in begun[:3]] == [(2, {2}), (3, {3}), (4, {4})]


class _Stopping:
    def __init__(self, query):
        self.close = query.stop


def test_a_new_base_cannot_be_carried(spark):
    broadcaster = broadcasts.Broadcaster(spark.sparkContext)
    delta = task_delta.TaskDelta(spark.sparkContext, broadcaster.source(published(), "batch"))
    assert delta.fits(broadcaster.source(published(2), "batch"))
    assert not delta.fits(broadcaster.source(published(base_id="another"), "batch"))


def test_the_driver_shows_the_size_of_the_newest_broadcast(spark):
    broadcaster = broadcasts.Broadcaster(spark.sparkContext)
    broadcaster.source(published(), "batch")
    assert metrics.REGISTRY_BROADCAST_BYTES._value.get() == len(pickling.packed(published().base))


def test_what_is_carried_can_be_read_by_the_tasks_alone(spark):
    """Spark writes local properties into its event logs as they are."""
    broadcaster = broadcasts.Broadcaster(spark.sparkContext)
    delta = task_delta.TaskDelta(spark.sparkContext, broadcaster.source(published(), "batch"))
    changes = SnapshotChanges(since=Revision(1), revision=Revision(2), endpoints={"ep1": builders.endpoint()})
    news = published_registry.Published(base_id="carried", base=published().base, changes=changes, confirmed_at=0.0)
    delta.publish(broadcaster.source(news, "batch"))
    written = spark.sparkContext.getLocalProperty(task_delta.PROPERTY)
    assert task_delta._opened(delta.source.key, written) == changes
    assert repr(delta.source.key) not in repr(delta.source)
    another = task_delta.TaskDelta(spark.sparkContext, broadcaster.source(news, "batch"))
    with pytest.raises(InvalidTag):
        task_delta._opened(another.source.key, written)


def test_a_base_stays_as_long_as_one_lane_uses_it(spark):
    broadcaster = broadcasts.Broadcaster(spark.sparkContext)
    old = broadcaster.source(published(), "batch").broadcast
    broadcaster.source(published(base_id="new"), "direct")
    assert spark.range(1).rdd.map(lambda _: pickling.unpacked(old.value).revision).collect() == [1]
    assert broadcaster.source(published(base_id="new"), "batch").broadcast is not old
    with pytest.raises(Exception, match="destroyed"):
        spark.range(1).rdd.map(lambda _: pickling.unpacked(old.value).revision).collect()
