"""The batch lane's first step reports its results. Without Spark."""

from types import SimpleNamespace

import orjson
import pyarrow as pa
import pytest

from delivery.config import plan_builder, settings
from delivery.model import Record
from delivery.registry_model import Batching, DeliveryMode
from delivery.stages.tasks import collect_segments, task_context
from delivery.webhooks.routing import registries
from delivery.webhooks.state import pickling
from tests.support import assignments, builders, sinks

CONFIG = settings.Settings()
SOURCE = registries.BroadcastSource(
    base_id="route", broadcast=SimpleNamespace(value=pickling.packed(builders.snapshot())), delta=None
)
NOT_JSON, OF_NOBODY = b"{", b'{"tenant_id": "t9"}'


@pytest.mark.parametrize(
    ("direct_from", "expected"),
    [
        pytest.param(None, ["not_json", "unknown_tenant"], id="no direct lane"),
        pytest.param({}, ["unknown_tenant"], id="direct lane from the beginning"),
        pytest.param({"events.order": {"0": 0}}, ["unknown_tenant"], id="direct lane from this record"),
        pytest.param({"events.order": {"1": 9}, "events.paid": {"0": 9}}, ["unknown_tenant"], id="of other partitions"),
        pytest.param({"events.order": {"0": 1}}, ["not_json", "unknown_tenant"], id="direct lane read it before"),
    ],
)
def test_each_rejection_is_reported_by_a_lane_of_this_job(direct_from, expected, tmp_path):
    """If the direct lane reads a record too, this lane reports only rejections by its own registry.

    The direct lane may have accepted a record that it read before this job started, because its settings were others.
    """
    seen, folder = [], sinks.Folder(tmp_path)

    def observe(results):
        seen.extend(rejection.reason for rejection in results.rejections)

    tools = task_context.Tools(plan=plan_builder.plan_of(CONFIG), observe=observe, sink=folder)
    records = [Record("events.order", 0, offset, 0, value) for offset, value in enumerate([NOT_JSON, OF_NOBODY])]
    batches = assignments.routing_task(tools, SOURCE, [records], direct_from)
    for_shards = [row for batch in batches for row in batch.to_pylist()]
    assert {(row["shard"], row["value"]) for row in for_shards} == {(1, None), (2, None)}
    written = [orjson.loads(row.value)["reason"] for row in folder.rows() if row.topic == CONFIG.delivery.rejected_topic]
    assert sorted(seen) == sorted(written) == expected


def test_one_task_of_a_micro_batch_makes_the_shards_check_their_due_times(tmp_path):
    tools = task_context.Tools(plan=plan_builder.plan_of(CONFIG), observe=lambda _: None, sink=sinks.Folder(tmp_path))
    rows = [assignments.routing_task(tools, SOURCE, [], direct_from=None, number=number) for number in (0, 1)]
    assert [[batch.column("shard").to_pylist() for batch in of_task] for of_task in rows] == [[[1, 2]], []]


def test_the_segments_do_not_depend_on_how_kafka_cut_the_records(tmp_path):
    """A micro-batch that runs again must put the same events into each batch. More than 2 MiB of full batches leave at once."""
    endpoint = builders.endpoint(mode=DeliveryMode.BATCH, batching=Batching(max_events=100, max_wait_s=60))
    snapshot = builders.snapshot(endpoint, builders.subscription())
    source = registries.BroadcastSource(base_id="cut", broadcast=SimpleNamespace(value=pickling.packed(snapshot)), delta=None)
    tools = task_context.Tools(plan=plan_builder.plan_of(CONFIG), observe=lambda _: None, sink=sinks.Folder(tmp_path))
    value = b'{"tenant_id":"t1","text":"%s"}' % (b"x" * 1000)
    records = [Record("events.order.created", 0, offset, 0, value) for offset in range(4040)]

    def rows(size):
        cut = [records[begin : begin + size] for begin in range(0, len(records), size)]
        return pa.Table.from_batches(assignments.routing_task(tools, source, cut, direct_from=None)).to_pylist()

    expected = rows(500)
    assert len({row["value"] for row in expected}) > 3
    for size in (1, 700, 4040):
        assert rows(size) == expected


def test_what_a_task_routes_leaves_in_arrow_batches_of_bounded_size():
    rows = [collect_segments.RoutedRow(7, value=b"x" * size) for size in (400, 600, 1, 5000, 999)] + [
        collect_segments.RoutedRow(8)
    ]
    batches = list(collect_segments.written(rows, max_bytes=1000))
    assert [[len(value or b"") for value in batch.column("value").to_pylist()] for batch in batches] == [
        [400, 600],
        [1],
        [5000],
        [999, 0],
    ]
    assert pa.Table.from_batches(batches).column("shard").to_pylist() == [7] * 5 + [8]
    assert list(collect_segments.written([])) == []
