"""The state of the batch lane in a real Spark: one key a partition, and decisions that outlast a restart."""

import collections
import time

import psutil
import pytest
from pyspark.errors import StreamingQueryException

from delivery import errors
from delivery.config import plan_builder, settings
from delivery.model import LeaveReason
from delivery.registry_model import Batching, DeliveryMode
from delivery.stages.checkpoint import shards
from delivery.stages.kafka import offset_ranges, topic_source
from delivery.stages.kafka.offset_ranges import RecordRange
from delivery.stages.lanes import streaming_lane, telemetry
from delivery.stages.registry import broadcasts, task_delta
from delivery.stages.tasks import batch_shard, collect_segments, observer, shard_state, task_context
from delivery.webhooks.batching import segment
from delivery.webhooks.routing import published_registry
from delivery.webhooks.state.backlog import ShardBacklog
from tests.support import assignments, builders, sinks

pytestmark = [
    pytest.mark.spark,
    # py4j leaves its sockets for the garbage collector to close.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SHARDS = settings.BatchSettings().shards
TASKS = 2
PER_PARTITION = 5
"""Records of each of the two partitions in a micro-batch."""


def lane(spark, source, waits, folder, **bounds):
    """The plan of the lane over ten records a micro-batch; and how a micro-batch with a number is begun."""
    endpoints = [builders.endpoint(f"ep{n}", mode=DeliveryMode.BATCH, batching=Batching(**bounds)) for n in range(3)]
    subscriptions = [builders.subscription(f"s{n}", endpoint_id=f"ep{n}") for n in range(3)]
    published = published_registry.Published(
        base_id=source, base=builders.snapshot(*endpoints, *subscriptions), changes=None, confirmed_at=0.0
    )
    known = broadcasts.Broadcaster(spark.sparkContext).source(published, "batch")
    delta = task_delta.TaskDelta(spark.sparkContext, known)
    own = shards.session(spark, SHARDS)
    for name, value in topic_source.PRUNED_SOURCE.items():
        own.conf.set(name, value)
    offsets = own.readStream.format("rate-micro-batch").options(rowsPerBatch=10, numPartitions=2).load()
    tools = task_context.Tools(
        plan=plan_builder.plan_of(settings.Settings()),
        observe=telemetry.Telemetry(spark.sparkContext, "batch", settings.LogsSettings()).observer,
        sink=folder,
    )
    routed = collect_segments.route(
        topic_source.task_numbers(offsets, TASKS),
        tools,
        delta.source,
        assignments.MadeRecords((b'{"tenant_id":"t1"}',), round(time.time() * 1000)),
        shard_keys=shards.keys(spark, SHARDS),
        immediate_flush_s=0,
        direct_from=None,
    )

    def begin(number):
        delta.publish(known)
        span = (number * PER_PARTITION, (number + 1) * PER_PARTITION)
        ranges = [RecordRange("events.order.created", partition, *span) for partition in (0, 1)]
        offset_ranges.send(spark.sparkContext, offset_ranges.divided(ranges, TASKS))

    return batch_shard.batch(routed, 500, waits, tools), begin


def run(frame, begin, folder, micro_batches, waits):
    """Return what left in each micro-batch, and what waited after it.

    A query that a busy machine could not plan starts again, as in a lane.
    """
    left = []

    def handle(rows, number):
        begin(number)
        batches = [segment.decoded_batch(item) for row in rows.collect() for item in shard_state.items_in_row(row.value)]
        left.append((batches, waits.value))
        waits.value = ShardBacklog()

    writer = frame.writeStream.option("checkpointLocation", str(folder)).foreachBatch(handle)
    started = writer.start()
    try:
        while len(left) < micro_batches and started.isActive:
            try:
                started.awaitTermination(0.1)
            except StreamingQueryException as failure:
                if left or not streaming_lane.is_unplanned(str(failure)):
                    raise
                started = writer.start()
    finally:
        started.stop()
    assert {progress["numInputRows"] for progress in started.recentProgress} == {0}, "Spark read the records as well"
    assert len(left) >= micro_batches, started.exception()
    return left


def test_batches_leave_over_micro_batches_and_a_restart_in_the_order_of_arrival(spark, tmp_path):
    waits = spark.sparkContext.accumulator(ShardBacklog(), observer.PendingParam())
    (tmp_path / "rows").mkdir()
    frame, begin = lane(spark, "full", waits, sinks.Folder(tmp_path / "rows"), max_events=15, max_wait_s=3600)
    first = run(frame, begin, tmp_path / "checkpoint", 3, waits)
    assert [pending.events for _, pending in first[:3]] == [30, 15, 0]
    assert {pending.shards for _, pending in first} == {SHARDS}
    again = run(frame, begin, tmp_path / "checkpoint", 3, waits)
    taken = collections.defaultdict(list)
    for batches, _ in [*first[:3], *again]:
        for batch in batches:
            assert (len(batch.packed), batch.reason) == (15, LeaveReason.COUNT)
            for event in map(segment.unpacked, batch.packed):
                taken[batch.endpoint_id, event.partition].append(event.offset)
    assert {endpoint_id for endpoint_id, _ in taken} == {"ep0", "ep1", "ep2"}
    for (_, partition), offsets in taken.items():
        assert (partition in (0, 1), offsets[:15]) == (True, list(range(15)))


def test_the_jvm_closes_the_connection_of_each_task_with_state(spark, tmp_path):
    """Regression: the JVM lost a socket in each such task, 10,000 in an hour."""
    jvm = psutil.Process(spark._jvm.java.lang.ProcessHandle.current().pid())
    waits = spark.sparkContext.accumulator(ShardBacklog(), observer.PendingParam())
    (tmp_path / "rows").mkdir()
    frame, begin = lane(spark, "sockets", waits, sinks.Folder(tmp_path / "rows"), max_events=15, max_wait_s=3600)
    run(frame, begin, tmp_path / "checkpoint", 2, waits)
    before = len(jvm.net_connections("unix"))
    run(frame, begin, tmp_path / "checkpoint", 6, waits)
    assert len(jvm.net_connections("unix")) < before + 6 * SHARDS / 2


def test_what_is_no_batch_is_written_before_its_micro_batch_leaves_the_shards(spark, tmp_path):
    waits = spark.sparkContext.accumulator(ShardBacklog(), observer.PendingParam())
    folder = sinks.Folder(tmp_path / "rows")
    folder.path.mkdir()
    frame, begin = lane(spark, "receipts", waits, folder, max_events=1000, max_wait_s=3600)
    [(batches, pending), *_] = run(frame, begin, tmp_path / "checkpoint", 1, waits)
    assert not batches
    assert {row.topic for row in folder.rows()} == {settings.Settings().delivery.attempts_topic}
    assert pending.events == 30
    waits_ms = [segment.bounds_of(f"ep{n}", Batching(max_events=1000, max_wait_s=3600)).max_wait_ms for n in range(3)]
    assert pending.due_ms == pending.oldest_ms + min(waits_ms)


def test_no_code_is_compiled_for_a_micro_batch(spark, tmp_path):
    """But for the state, once: it is served by threads that know no settings."""
    waits = spark.sparkContext.accumulator(ShardBacklog(), observer.PendingParam())
    (tmp_path / "rows").mkdir()
    frame, begin = lane(spark, "compiled", waits, sinks.Folder(tmp_path / "rows"), max_events=1000, max_wait_s=3600)
    compilations, counted = spark._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME(), []

    def begin_counted(number):
        counted.append(compilations.getCount())
        begin(number)

    run(frame, begin_counted, tmp_path / "checkpoint", 4, waits)
    assert counted[0] > 0  # else this counts nothing
    assert counted[2] == counted[3]


@pytest.mark.parametrize("count", [1, 4, 16])
def test_each_shard_has_a_partition_of_its_own(spark, count):
    keys = shards.keys(spark, count)
    placed = spark.createDataFrame([(key,) for key in keys], "key int").selectExpr(f"pmod(hash(key), {count}) AS partition")
    assert [row.partition for row in placed.collect()] == list(range(count))


def test_another_number_of_shards_is_refused_with_the_one_to_set(spark, tmp_path):
    shards.require_kept(spark, str(tmp_path), "new", 7)
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    written = (
        rows.writeStream.option("checkpointLocation", str(tmp_path / "retry"))
        .foreachBatch(lambda *_: None)
        .trigger(once=True)
        .start()
    )
    written.awaitTermination()
    shards.require_kept(spark, str(tmp_path), "retry", SHARDS)
    with pytest.raises(errors.SettingsError, match=f"set retry.shards to {SHARDS}"):
        shards.require_kept(spark, str(tmp_path), "retry", SHARDS + 1)
