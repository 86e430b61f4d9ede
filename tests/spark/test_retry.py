"""The state of the retry lane in a real Spark: what waits outlasts a restart, and only a report ends it."""

import time

import pytest
from pyspark.errors import StreamingQueryException

from delivery.model import Attempt, NextAttempt
from delivery.registry_model import CustomerId, EndpointId
from delivery.stages.checkpoint import shards
from delivery.stages.tasks import observer, retry_shard, shard_state
from delivery.webhooks.retries import retry_messages, retry_records, window
from delivery.webhooks.state.backlog import ShardBacklog
from tests.support import builders
from tests.support.leases import waiting

pytestmark = [
    pytest.mark.spark,
    # py4j leaves its sockets for the garbage collector to close.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SHARDS = 2
HOUR_MS = 3_600_000


class Tools:
    """Notes of tasks that began and ended, a byte each, in a file."""

    def __init__(self, path):
        self._path = path

    def begin(self):
        self._note(b"(")
        return self

    def finish(self):
        self._note(b")")

    def _note(self, byte):
        with self._path.open("ab") as notes:
            notes.write(byte)


class Lane:
    """The retry lane up to its turns, over records that the test writes: a file is a micro-batch."""

    def __init__(self, spark, folder):
        self._spark, self._folder = shards.session(spark, SHARDS), folder
        self._pending = spark.sparkContext.accumulator(ShardBacklog(), observer.PendingParam())
        self._offset = 0
        self.breaks = False
        self.tasks = folder / "tasks"
        (folder / "records").mkdir()

    def write(self, *messages):
        """Write records, the last one first, as a shuffle may bring them."""
        written = []
        for message in messages:
            encoded = retry_messages.encoded(message)
            for key, value, _ in retry_records.records(message.endpoint_id.encode(), encoded):
                written.append((0, self._offset, int(time.time() * 1000), key, value))
                self._offset += 1
        schema = "partition int, offset long, appended_at_ms long, key binary, value binary"
        frame = self._spark.createDataFrame(written[::-1] or [(0, self._offset, int(time.time() * 1000), None, None)], schema)
        frame.coalesce(1).write.mode("append").parquet(str(self._folder / "records"))

    def run(self):
        """Handle what was written since, in a query of its own on the same checkpoint; return the turns, and what waits.

        A query that a busy machine could not plan starts again, as in a lane.
        """
        left = []

        def handle(frame, _):
            self._pending.value = ShardBacklog()
            left.extend(turn for row in frame.collect() for turn in shard_state.items_in_row(row.value))
            if self.breaks:
                raise RuntimeError("killed before the commit")

        schema = "partition int, offset long, appended_at_ms long, key binary, value binary"
        records = self._spark.readStream.schema(schema).parquet(str(self._folder / "records"))
        keys, tools = shards.keys(self._spark, SHARDS), Tools(self.tasks)
        kept = retry_shard.take_leases(
            records, window.ShardPolicy(), 500, self._pending, tools, topic="retries", parallelism=2, shard_keys=keys
        )
        checkpoint = str(self._folder / "checkpoint" / "retry")
        writer = kept.writeStream.option("checkpointLocation", checkpoint).foreachBatch(handle).trigger(availableNow=True)
        if self.breaks:
            with pytest.raises(Exception, match="killed before the commit"):
                _run_planned(writer)
        else:
            _run_planned(writer)
        return left, self._pending.value


def _run_planned(writer):
    from delivery.stages.lanes import streaming_lane  # noqa: PLC0415  # workers import this module, and not the driver's

    while True:
        try:
            writer.start().awaitTermination()
        except StreamingQueryException as failure:
            if not streaming_lane.is_unplanned(str(failure)):
                raise
        else:
            return


def postponed(*names, endpoint="ep1", data=b"{}"):
    now_ms = int(time.time() * 1000)
    parcels = [
        waiting(builders.event(event_id=name, data=data), again_at_ms=now_ms, since_ms=now_ms, expires_ms=now_ms + HOUR_MS)
        for name in names
    ]
    return retry_messages.Postponed(EndpointId(endpoint), CustomerId("c1"), parcels)


def reported(turn, *back):
    return retry_messages.Report(
        turn.endpoint_id, turn.customer_id, None, turn.number, len(turn.entries) - len(back), 0, None, None, [*back]
    )


def ids(turn):
    return [event_id for waits in turn.entries for event_id in [waits.packed[0]]]


def test_what_waits_outlasts_a_restart_and_a_report_ends_it(spark, tmp_path):
    lane = Lane(spark, tmp_path)
    first, second, other = postponed("a", "b"), postponed("c"), postponed("x", endpoint="ep2")
    lane.write(first, second, other)
    left, waits = lane.run()
    turns = {turn.endpoint_id: turn for turn in map(retry_messages.lease, left)}
    assert ids(turns["ep1"]) == [waits.packed[0] for of in (first, second) for waits in of.entries]
    assert ids(turns["ep2"]) == [other.entries[0].packed[0]]
    assert (waits.shards, waits.events) == (SHARDS, 4)
    assert waits.due_ms is not None  # the turns are away: their reports are waited for

    at_ms = int(time.time() * 1000) + HOUR_MS // 2
    again = retry_messages.Requeue(1, NextAttempt(at_ms, 2), "server_error", (Attempt(1, 0, 1.0, 500, "server_error"),))
    lane.write(reported(turns["ep1"], again), reported(turns["ep2"]))
    left, waits = lane.run()
    assert (left, waits.events) == ([], 1)
    assert waits.due_ms > at_ms - 60_000

    lane.write(reported(turns["ep1"]))  # once more: it is no news
    left, waits = lane.run()
    assert (left, waits.events) == ([], 1)
    shards.require_kept(spark, str(tmp_path / "checkpoint"), "retry", SHARDS)


def test_a_large_record_that_counts_as_many_is_taken_once(spark, tmp_path):
    lane = Lane(spark, tmp_path)
    large = postponed("a", data=b'"%s"' % (b"x" * 3 * retry_records.PADDED_BYTES))
    lane.write(large, postponed("b"))
    [left], waits = lane.run()
    assert ids(retry_messages.lease(left))[0] == large.entries[0].packed[0]
    assert waits.events == 2


def test_a_micro_batch_that_runs_again_lets_the_same_turns_leave(spark, tmp_path):
    lane = Lane(spark, tmp_path)
    lane.write(postponed("a", "b"))
    lane.breaks = True
    before, _ = lane.run()
    lane.breaks = False
    after, waits = lane.run()
    assert before == after
    assert len(before) == 1
    assert waits.events == 2


def test_a_micro_batch_removed_from_a_checkpoint_runs_again_once(spark, tmp_path):
    lane = Lane(spark, tmp_path)
    lane.write(postponed("a"))
    lane.run()
    lane.write(postponed("x", endpoint="ep2"))
    before, _ = lane.run()
    for part in ("offsets", "commits"):  # as the operations document says
        folder = tmp_path / "checkpoint" / "retry" / part
        for name in ("1", ".1.crc"):
            (folder / name).unlink(missing_ok=True)
    after, waits = lane.run()
    assert list(map(ids, map(retry_messages.lease, before))) == list(map(ids, map(retry_messages.lease, after)))
    assert (len(after), waits.events) == (1, 2)


def test_every_task_begins_and_ends_in_its_worker(spark, tmp_path):
    lane = Lane(spark, tmp_path)
    lane.write()  # as when nothing but a tick comes
    lane.run()
    notes = lane.tasks.read_bytes()
    assert notes.count(b"(") == notes.count(b")") >= 1 + SHARDS  # the one that spreads, and one for each part of the state
