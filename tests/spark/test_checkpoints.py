"""A lane that cannot go on from where it was says what is gone, and guesses nothing."""

import contextlib
import re
import shutil
import threading
import uuid

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException

from delivery import errors
from delivery.config import kafka_clients, settings
from delivery.observability import health
from delivery.stages.checkpoint import left_out_topics, losses, offset_log, shards
from delivery.stages.kafka import offset_ranges, record_reader, topic_source, topics
from delivery.stages.lanes import streaming_lane
from fanout.kafka import topic_scanner
from tests.spark.test_retry import Lane, postponed

pytestmark = [
    pytest.mark.spark,
    # py4j leaves its sockets for the garbage collector to close.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def cause_of_refusal(lane):
    with pytest.raises(StreamingQueryException) as failure:
        lane.run()
    return streaming_lane.cause_of(str(failure.value))


def test_missing_state_is_refused_and_restored_state_keeps_its_events(spark, tmp_path):
    lane = Lane(spark, tmp_path)
    for name in ("a", "b"):
        lane.write(postponed(name))
        lane.run()
    state = tmp_path / "checkpoint" / "retry" / "state"
    lane.write(postponed("c"))

    kept = state.rename(state.with_name("kept"))
    assert "restore the missing state files" in cause_of_refusal(lane)
    shutil.rmtree(state, ignore_errors=True)
    kept.rename(state)

    [changed] = [path for path in state.rglob("2.changelog") if path.stat().st_size > 100]  # of the shard that ep1 is in
    kept = changed.rename(changed.with_name("kept"))
    assert str(changed) in cause_of_refusal(lane)
    kept.rename(changed)

    _, waits = lane.run()
    assert waits.events == 3


def session_of(spark, lane):
    """A session in which a lane plans as this lane does: the plan of the batch lane takes Spark's source out."""
    own = shards.session(spark, 2)
    own.is_pruned = lane == "batch"
    for name, value in topic_source.PRUNED_SOURCE.items() if own.is_pruned else ():
        own.conf.set(name, value)
    return own


class Topic:
    """A topic of its own, and a lane that reads it into `taken`, as the direct lane or the batch lane does."""

    def __init__(self, spark, kafka, folder):
        self.spark, self._folder = spark, folder
        self._is_pruned = getattr(spark, "is_pruned", False)
        self._planned_offsets = offset_ranges.PlannedOffsets(spark, "direct")
        self.kafka = settings.KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)
        self.name = f"{uuid.uuid4().hex[:8]}.order"
        topics.ensure(self.kafka, [self.name], 1)
        self._client = kafka_clients.for_librdkafka(self.kafka)
        self.taken = []

    def publish(self, *values):
        producer = Producer(self._client)
        for value in values:
            producer.produce(self.name, value)
        assert producer.flush(10) == 0

    def expire(self, before):
        admin = AdminClient(self._client)
        [gone] = admin.delete_records([TopicPartition(self.name, 0, before)]).values()
        gone.result(10)

    def delete(self):
        admin = AdminClient(self._client)
        [gone] = admin.delete_topics([self.name]).values()
        gone.result(10)
        while self.name in admin.list_topics(timeout=10).topics:
            pass

    def run(self, checkpoint, beside=None, *, aligns=True):
        """Run the lane once on this topic, and on the topic `beside`. Without `aligns`, as versions before 2026-11-27 did."""
        stop = threading.Event()
        watch = health.Watch(pause_reason=lambda: None, stop=stop)
        pattern = "|".join(re.escape(topic.name) for topic in (self, beside) if topic is not None)
        config = settings.SourceSettings(topic_pattern=pattern, starting_offsets="earliest")
        lane = streaming_lane.StreamingLane(
            "direct", acquire=lambda: (), handle=self._take, stop=stop, watch=watch, is_kafka_back=pytest.fail
        )
        spark = settings.SparkSettings(checkpoint=str(self._folder / checkpoint))
        if aligns:
            left_out_topics.align(self.spark, settings.Settings(source=config, spark=spark), ["direct"])

        def planned():
            offsets = topic_source.read(self.spark, self.kafka, config, at_most=1_000)
            return topic_source.task_numbers(offsets, 2) if self._is_pruned else offsets

        lane.run(planned, spark, 0, once=True)

    def break_off(self, checkpoint):
        """End the lane in a micro-batch, of which the offsets are written by then."""
        before = list(self.taken)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(self, "_take", lambda *_: 1 / 0)
            with pytest.raises(errors.LaneFailed):
                self.run(checkpoint)
        assert self.taken == before

    def accept_loss(self, checkpoint):
        found = offset_log.Checkpoint(self.spark, str(self._folder / checkpoint / "direct"))
        with contextlib.closing(topic_scanner.Scanner(self.kafka)) as scanner:
            held = {extent.place: losses.OffsetRange(extent.low, extent.end) for extent in scanner.extents(found.positions)}
        positions, lost = losses.moved(found.positions, held)
        found.move(positions, lambda ends: losses.clamped(ends, held))
        return lost

    def _take(self, batch, _):
        ranges = self._planned_offsets.ranges()
        if self._is_pruned:
            assert sorted(row.id for row in batch.collect()) == [0, 1]
        for records in record_reader.to(kafka_clients.for_reading(self.kafka))(ranges):
            self.taken += [record.value for record in records]
        return streaming_lane.Result.COMMITTED


def test_records_that_expired_unread_end_the_lane_and_name_the_partition(spark, kafka, tmp_path):
    topic = Topic(spark, kafka, tmp_path)
    topic.publish(b"0", b"1")
    topic.run("checkpoint")
    topic.publish(b"2", b"3", b"4")
    topic.expire(4)
    with pytest.raises(errors.LaneFailed) as failure:
        topic.run("checkpoint")
    assert f"partition 0 of topic {topic.name} no longer has the records from offset 2 to 4" in str(failure.value)
    assert topic.taken == [b"0", b"1"]

    topic.run("another")
    assert topic.taken == [b"0", b"1", b"4"]


@pytest.mark.parametrize("is_first", [True, False], ids=["this version", "a version that stopped"])
def test_a_topic_that_the_pattern_leaves_out_waits_at_its_position(spark, kafka, tmp_path, caplog, is_first):
    """Regression: the job stopped at each start, also after the pattern had been changed back."""
    topic, other = Topic(spark, kafka, tmp_path), Topic(spark, kafka, tmp_path)
    topic.publish(b"0")
    other.publish(b"a")
    topic.run("checkpoint", beside=other)
    topic.publish(b"1")
    other.publish(b"b")
    if is_first:
        topic.run("checkpoint")
        assert (sorted(topic.taken), f"no longer reads the topics {other.name}" in caplog.text) == ([b"0", b"1", b"a"], True)
    else:
        with pytest.raises(errors.LaneFailed, match="have been deleted"):
            topic.run("checkpoint", aligns=False)
    topic.run("checkpoint", beside=other)
    assert sorted(topic.taken) == [b"0", b"1", b"a", b"b"]
    assert not (tmp_path / "checkpoint" / "direct" / left_out_topics.FILE).exists()


@pytest.mark.parametrize("lane", ["direct", "batch"])
def test_a_wider_pattern_that_cannot_be_read_can_be_changed_back(spark, kafka, tmp_path, lane):
    """Regression: `Cannot find initial offsets` stopped the job at each start."""
    spark = session_of(spark, lane)
    topic, older = Topic(spark, kafka, tmp_path), Topic(spark, kafka, tmp_path)
    older.publish(b"a", b"b", b"c")
    older.expire(2)
    topic.publish(b"0")
    topic.run("checkpoint")
    with pytest.raises(errors.LaneFailed, match=r"starts from 2 instead of 0|no longer has the records from offset 0 to 2"):
        topic.run("checkpoint", beside=older)
    topic.publish(b"1")
    topic.run("checkpoint")
    assert topic.taken == [b"0", b"1"]


def test_a_lane_whose_loss_is_accepted_goes_on_behind_it_and_takes_the_rest(spark, kafka, tmp_path):
    topic = Topic(spark, kafka, tmp_path)
    topic.publish(b"0", b"1")
    topic.run("checkpoint")
    topic.publish(b"2", b"3", b"4")
    topic.expire(4)
    assert topic.accept_loss("checkpoint") == [losses.Loss(topic.name, 0, losses.LossReason.EXPIRED, 2, 3)]
    assert topic.accept_loss("checkpoint") == []
    topic.run("checkpoint")
    topic.publish(b"5")
    topic.run("checkpoint")
    assert topic.taken == [b"0", b"1", b"4", b"5"]


@pytest.mark.parametrize(("lane", "first"), [("direct", 3), ("batch", 3), ("batch", 4)])
def test_an_interrupted_micro_batch_that_lost_records_runs_with_the_others(spark, kafka, tmp_path, lane, first):
    """Also if there are no others: its offsets end where they start."""
    topic = Topic(session_of(spark, lane), kafka, tmp_path)
    topic.publish(b"0")
    topic.run("checkpoint")
    topic.publish(b"1", b"2", b"3")
    topic.break_off("checkpoint")
    topic.publish(b"4")
    topic.expire(first)
    assert topic.accept_loss("checkpoint") == [losses.Loss(topic.name, 0, losses.LossReason.EXPIRED, 1, first - 1)]
    topic.run("checkpoint")
    assert topic.taken == [b"0", *([b"3"] if first == 3 else []), b"4"]


@pytest.mark.parametrize(("lane", "is_made_anew"), [("direct", False), ("direct", True), ("batch", True)])
def test_a_deleted_topic_ends_the_lane_and_is_named(spark, kafka, tmp_path, lane, is_made_anew):
    spark = session_of(spark, lane)
    topic, other = Topic(spark, kafka, tmp_path), Topic(spark, kafka, tmp_path)
    topic.publish(b"0", b"1")
    topic.run("checkpoint", beside=other)
    topic.delete()
    if is_made_anew:
        topics.ensure(topic.kafka, [topic.name], 1)
    other.publish(b"2")
    with pytest.raises(errors.LaneFailed) as failure:
        topic.run("checkpoint", beside=other)
    assert re.search(
        rf"{topic.name}-0|partition 0 of topic {topic.name} (no longer exists|ends at offset 0)", str(failure.value)
    )
    assert topic.taken == [b"0", b"1"]

    topic.run("another", beside=other)
    assert topic.taken == [b"0", b"1", b"2"]


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_after_accept_loss_a_lane_skips_a_lost_topic_and_reads_a_new_one(spark, kafka, tmp_path, is_made_anew):
    topic, other = Topic(spark, kafka, tmp_path), Topic(spark, kafka, tmp_path)
    topic.publish(b"0", b"1")
    topic.run("checkpoint", beside=other)
    topic.delete()
    if is_made_anew:
        topics.ensure(topic.kafka, [topic.name], 1)
        topic.publish(b"anew")
    other.publish(b"2")
    why = losses.LossReason.ENDS_BEFORE if is_made_anew else losses.LossReason.DELETED
    assert topic.accept_loss("checkpoint") == [losses.Loss(topic.name, 0, why, 2, None)]
    topic.run("checkpoint", beside=other)
    assert sorted(topic.taken[2:]) == ([b"2", b"anew"] if is_made_anew else [b"2"])


def test_missing_offsets_end_the_lane_before_an_old_micro_batch_is_resent(spark, kafka, tmp_path):
    topic = Topic(spark, kafka, tmp_path)
    for value in (b"0", b"1"):
        topic.publish(value)
        topic.run("checkpoint")
    newest = tmp_path / "checkpoint" / "direct" / "offsets" / "1"
    kept = newest.rename(tmp_path / "kept")
    with pytest.raises(errors.LaneFailed, match=r"direct is damaged: offsets/1 is gone, .* restore a backup"):
        topic.run("checkpoint")
    assert topic.taken == [b"0", b"1"]
    started = newest.with_name("2")
    started.write_bytes(kept.read_bytes())
    with pytest.raises(errors.LaneFailed, match="direct is damaged: offsets/1 is gone"):
        topic.run("checkpoint")

    started.unlink()
    kept.rename(newest)
    topic.publish(b"2")
    topic.run("checkpoint")
    assert topic.taken == [b"0", b"1", b"2"]
