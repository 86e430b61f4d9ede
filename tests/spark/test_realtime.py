"""Spark's part in the real-time lane: fillers around each record, nothing below the start offsets, positions that move."""

import json
import os
import time
import uuid

import pyarrow as pa
import pytest

from delivery import errors
from delivery.config import settings
from delivery.stages.checkpoint import left_out_topics, offset_log
from delivery.stages.kafka import completed_reader
from delivery.stages.realtime import (
    realtime_source,
    start_offsets,
    topic_moves,
)
from tests.spark.test_checkpoints import Topic

pytestmark = pytest.mark.spark


def config_of(topic, **source):
    return settings.Settings(
        kafka=topic.kafka, source=settings.SourceSettings(topic_pattern=topic.name, realtime_pattern=topic.name, **source)
    )


def read_to_the_end(rows, tmp_path):
    """Run a stream in its session up to the end of its topics, and return its rows."""
    name = f"rows_{uuid.uuid4().hex}"
    query = (
        rows.writeStream.format("memory")
        .queryName(name)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return rows.sparkSession.table(name).collect()


@pytest.mark.parametrize(("trigger", "fillers"), [("realtime", 3), ("micro-batches", 0)])
def test_records_below_the_floor_are_left_out(spark, kafka, tmp_path, trigger, fillers):
    topic = Topic(spark, kafka, tmp_path)
    topic.publish(b"a", b"b", b"c")
    one_by_one, in_batches = realtime_source.sessions(spark)
    if trigger == "realtime":
        rows = realtime_source.read_one_by_one(one_by_one, config_of(topic), {(topic.name, 0): 1})
    else:
        rows = realtime_source.read_in_micro_batches(in_batches, config_of(topic), {(topic.name, 0): 1})
    found = read_to_the_end(rows, tmp_path)
    assert sorted(bytes(row.value) for row in found if row.topic is not None) == [b"b", b"c"]
    assert sum(row.topic is None for row in found) == fillers


def test_a_record_ends_its_arrow_batch_and_a_filler_follows_it(spark, kafka, tmp_path):
    """So Spark passes the batch on once the filler exists. A batch that began with the record would wait for the next one."""

    def shapes(batches):
        for batch in batches:
            values = batch.column("value").to_pylist()
            yield pa.RecordBatch.from_pydict({"shape": [" ".join("filler" if v is None else v.decode() for v in values)]})

    topic = Topic(spark, kafka, tmp_path)
    topic.publish(b"a", b"b", b"c")
    one_by_one, _ = realtime_source.sessions(spark)
    rows = realtime_source.read_one_by_one(one_by_one, config_of(topic), {}).mapInArrow(shapes, "shape string")
    assert [row.shape for row in read_to_the_end(rows, tmp_path)] == ["filler a", "filler b", "filler c", "filler"]


def committed(folder, positions):
    """Write a lane's checkpoint that has committed one micro-batch up to these positions."""
    metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": round(time.time() * 1000)})
    for part, text in {"offsets": f"v1\n{metadata}\n{positions}", "commits": "v1\n{}"}.items():
        (folder / part).mkdir(parents=True)
        (folder / part / "0").write_text(text)


def config_with(tmp_path, pattern, topic_pattern=".+"):
    return settings.Settings(
        kafka=settings.KafkaSettings(bootstrap_servers="127.0.0.1:1", librdkafka_options={"socket.timeout.ms": "100"}),
        source=settings.SourceSettings(topic_pattern=topic_pattern, realtime_pattern=pattern),
        spark=settings.SparkSettings(checkpoint=str(tmp_path)),
    )


def moved(spark, tmp_path, pattern, names=("direct", "realtime"), *, topic_pattern=".+", existing=()):
    """Move topics as a job with these lanes and patterns does, where Kafka has the `existing` topics."""
    topic_moves.move_topics(spark, config_with(tmp_path, pattern, topic_pattern), names, existing=lambda _: existing)


def test_the_lane_shares_no_python_process_with_other_lanes(spark):
    """Regression: Spark ends the process of a stopped task, and in micro-batches it was that of another lane's tasks too."""

    def parent(_):
        yield pa.RecordBatch.from_pydict({"pid": [os.getppid()]})

    sessions = [spark, *realtime_source.sessions(spark)]
    daemons = {session.range(1).mapInArrow(parent, "pid long").first().pid for session in sessions}
    assert len(daemons) == 3


def test_a_topic_that_becomes_real_time_goes_on_where_the_direct_lane_was(spark, tmp_path):
    committed(tmp_path / "direct", '{"slow":{"0":7},"fast":{"0":5}}')
    moved(spark, tmp_path, "fast")
    assert offset_log.Checkpoint(spark, f"{tmp_path}/direct").positions == {"slow": {"0": 7}}
    start = start_offsets.read(spark, settings.Settings(), f"{tmp_path}/realtime")
    assert (start.next_offsets, start.is_first) == ({("fast", 0): 5}, True)


def test_a_lane_that_has_committed_takes_the_topic_into_its_checkpoint(spark, tmp_path):
    committed(tmp_path / "direct", '{"slow":{"0":7},"fast":{"0":5}}')
    committed(tmp_path / "realtime", '{"other":{"0":3}}')
    moved(spark, tmp_path, "fast|other")
    assert offset_log.Checkpoint(spark, f"{tmp_path}/realtime").positions == {"other": {"0": 3}, "fast": {"0": 5}}


def test_a_lane_with_paused_partitions_commits_what_its_receipts_say(spark, tmp_path):
    """An interrupted micro-batch is made empty: it would hold back later records of all other partitions."""
    folder = tmp_path / "realtime"
    committed(folder, '{"a":{"0":3,"1":4}}')
    (folder / "offsets" / "1").write_text((folder / "offsets" / "0").read_text().replace(":3,", ":30,"))
    start_offsets.save(
        spark, str(folder), start_offsets.StartOffsets({("a", 0): 9, ("a", 1): 4, ("b", 0): 2}, frozenset(), since_ms=17)
    )
    for number in ("0", "1"):
        _, metadata, positions = (folder / "offsets" / number).read_text().splitlines()
        assert json.loads(positions) == {"a": {"0": 9, "1": 4}, "b": {"0": 2}}
        assert json.loads(metadata)["batchTimestampMs"] == 17


def test_a_lane_that_has_committed_nothing_saves_nothing(spark, tmp_path):
    start_offsets.save(spark, str(tmp_path / "realtime"), start_offsets.StartOffsets({("a", 0): 9}, frozenset(), since_ms=17))
    assert not (tmp_path / "realtime").exists()


@pytest.fixture
def started(tmp_path, monkeypatch):
    """A real-time lane that read `fast` from offset 3 and handled 3 and 4, by its receipts, and has committed nothing."""
    first = tmp_path / "realtime" / "sources" / "0" / "0"
    first.parent.mkdir(parents=True)
    first.write_text('\0v1\n{"fast":{"0":3}}')
    receipts = {("fast", 0): [start_offsets.HandledRange(3, 4)]}
    monkeypatch.setattr(start_offsets, "_receipts_patiently", lambda _, of, __: (receipts if of("fast") else {}, 1))
    monkeypatch.setattr(completed_reader, "read", lambda *_: frozenset())


def test_a_real_time_topic_that_the_job_leaves_out_waits_at_its_position(spark, tmp_path, monkeypatch):
    """Regression: the direct lane got its position, did not read it, and stopped the job."""
    committed(tmp_path / "direct", '{"slow":{"0":7}}')
    committed(tmp_path / "realtime", '{"fast":{"0":5},"other":{"0":3}}')
    monkeypatch.setattr(start_offsets, "_receipts_patiently", lambda *_: ({}, 1))
    monkeypatch.setattr(completed_reader, "read", lambda *_: frozenset())
    moved(spark, tmp_path, "fast|other", topic_pattern="slow|other")
    assert offset_log.Checkpoint(spark, f"{tmp_path}/direct").positions == {"slow": {"0": 7}}
    assert offset_log.Checkpoint(spark, f"{tmp_path}/realtime").positions == {"other": {"0": 3}}
    assert json.loads((tmp_path / "direct" / left_out_topics.FILE).read_text()) == {"fast": {"0": 5}}


@pytest.mark.usefixtures("started")
def test_topics_join_a_lane_that_has_committed_nothing(spark, tmp_path):
    """Spark knows the first offsets of `fast` only, and would read `late` from its first record."""
    committed(tmp_path / "direct", '{"slow":{"0":7},"late":{"0":9}}')
    moved(spark, tmp_path, "fast|late")
    start = start_offsets.read(spark, settings.Settings(), f"{tmp_path}/realtime")
    assert (start.next_offsets, start.is_first) == ({("fast", 0): 5, ("late", 0): 9}, True)
    assert offset_log.Checkpoint(spark, f"{tmp_path}/direct").positions == {"slow": {"0": 7}}


@pytest.mark.usefixtures("started")
def test_a_topic_leaves_a_lane_that_has_committed_nothing(spark, tmp_path):
    committed(tmp_path / "direct", '{"slow":{"0":7}}')
    moved(spark, tmp_path, "")
    assert offset_log.Checkpoint(spark, f"{tmp_path}/direct").positions == {"slow": {"0": 7}, "fast": {"0": 5}}
    assert start_offsets.read(spark, settings.Settings(), f"{tmp_path}/realtime").next_offsets == {}


@pytest.fixture
def topic(spark, kafka, tmp_path):
    """A topic with five records."""
    made = Topic(spark, kafka, tmp_path)
    made.publish(*[b"{}"] * 5)
    return made


@pytest.mark.parametrize("offsets", [(3, 0, 0), (3, 2, 4), (3, 4, 4), (9, 2, 2)])
def test_a_topic_newer_than_the_last_commit_starts_at_its_first_record(topic, tmp_path, monkeypatch, offsets):
    """Regression: the lane looked for receipts from offset 0, and repeated all deliveries if older records were deleted.

    Receipts of more records than the topic has are of a deleted topic of this name. Its records were skipped, and so were
    records with the offsets of its completed deliveries.
    """
    last, kept_from, start_at = offsets
    topic.expire(kept_from)
    committed(tmp_path / "realtime", '{"other":{"0":3}}')
    receipts = {(topic.name, 0): [start_offsets.HandledRange(2, last)], ("deleted", 0): [start_offsets.HandledRange(0, 6)]}
    monkeypatch.setattr(start_offsets, "_receipts_patiently", lambda *_: (receipts, 1))
    monkeypatch.setattr(completed_reader, "read", lambda *_: frozenset({b"completed"}))
    start = start_offsets.read(topic.spark, config_of(topic), f"{tmp_path}/realtime")
    assert start.next_offsets == {("other", 0): 3, (topic.name, 0): start_at}
    assert bool(start.ended) is (last < 5)


def test_a_topic_whose_first_record_is_not_known_starts_no_lane(spark, tmp_path, monkeypatch):
    committed(tmp_path / "realtime", '{"other":{"0":3}}')
    receipts = {("new", 0): [start_offsets.HandledRange(2, 3)]}
    monkeypatch.setattr(start_offsets, "_receipts_patiently", lambda *_: (receipts, 1))
    config = settings.Settings(kafka=settings.KafkaSettings(bootstrap_servers="127.0.0.1:1"))
    quick = start_offsets.ReceiptBounds(reads=completed_reader.ReadBounds(asked_s=0.1))
    with pytest.raises(errors.KafkaUnavailable, match="the first offset of partition 0 of topic new could not be read"):
        start_offsets.read(spark, config, f"{tmp_path}/realtime", bounds=quick)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("pattern", "names"), [("fast|other", ["realtime"]), ("none", ["direct", "retry"])])
def test_a_job_without_both_lanes_moves_nothing(spark, tmp_path, pattern, names):
    """Another application may be running the other one."""
    committed(tmp_path / "direct", '{"slow":{"0":7},"fast":{"0":5}}')
    committed(tmp_path / "realtime", '{"other":{"0":3}}')
    before = contents(tmp_path)
    with pytest.raises(errors.SettingsError, match="name both lanes in one job once"):
        moved(spark, tmp_path, pattern, names)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(("pattern", "names"), [("other", ["realtime"]), ("other", ["direct"]), ("fast", ["batch"])])
def test_a_job_that_has_nothing_to_move_starts(spark, tmp_path, pattern, names):
    committed(tmp_path / "direct", '{"slow":{"0":7},"fast":{"0":5}}')
    committed(tmp_path / "realtime", '{"other":{"0":3}}')
    moved(spark, tmp_path, pattern, names)


def test_a_direct_lane_without_a_commit_takes_no_topic(spark, tmp_path):
    committed(tmp_path / "realtime", '{"other":{"0":3}}')
    with pytest.raises(errors.SettingsError, match="leaves out other, and lane direct has committed nothing"):
        moved(spark, tmp_path, "")


def test_without_a_pattern_a_checkpoint_stays_as_it_is(spark, tmp_path):
    committed(tmp_path / "direct", '{"slow":{"0":7}}')
    moved(spark, tmp_path, "")
    assert offset_log.Checkpoint(spark, f"{tmp_path}/direct").positions == {"slow": {"0": 7}}
