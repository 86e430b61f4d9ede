"""What Spark does for the real-time lane: a filler behind each record, nothing below the floors, positions that move."""

import pytest

from delivery import settings
from delivery.stages import losses
from delivery.stages.realtime import floors, moving, records
from tests.spark.test_checkpoints import Topic

pytestmark = pytest.mark.spark


def config_of(topic, **source):
    return settings.Settings(
        kafka=topic.kafka, source=settings.Source(topic_pattern=topic.name, realtime_pattern=topic.name, **source)
    )


@pytest.mark.parametrize(("trigger", "fillers"), [("realtime", 2), ("micro-batches", 0)])
def test_records_below_the_floor_are_left_out(spark, kafka, tmp_path, trigger, fillers):
    topic = Topic(spark, kafka, tmp_path)
    topic.publish(b"a", b"b", b"c")
    made = records.one_by_one if trigger == "realtime" else records.in_micro_batches
    rows = made(spark, config_of(topic), {(topic.name, 0): 1})
    query = (
        rows.writeStream.format("memory")
        .queryName(f"rows_{trigger.replace('-', '_')}")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = spark.table(f"rows_{trigger.replace('-', '_')}").collect()
    assert sorted(bytes(row.value) for row in found if row.topic is not None) == [b"b", b"c"]
    assert sum(row.topic is None for row in found) == fillers


def committed(folder, positions):
    """Write a lane's checkpoint that has committed one micro-batch up to these positions."""
    for part, text in {"offsets": f'v1\n{{"batchWatermarkMs":0}}\n{positions}', "commits": "v1\n{}"}.items():
        (folder / part).mkdir(parents=True)
        (folder / part / "0").write_text(text)


def moved(spark, tmp_path, pattern):
    config = settings.Settings(
        kafka=settings.Kafka(bootstrap_servers="127.0.0.1:1", librdkafka_options={"socket.timeout.ms": "100"}),
        source=settings.Source(topic_pattern=".+", realtime_pattern=pattern),
        spark=settings.Spark(checkpoint=str(tmp_path)),
    )
    moving.move(spark, config)


def test_a_topic_that_becomes_real_time_goes_on_where_the_direct_lane_was(spark, tmp_path):
    committed(tmp_path / "direct", '{"slow":{"0":7},"fast":{"0":5}}')
    moved(spark, tmp_path, "fast")
    assert losses.Checkpoint(spark, f"{tmp_path}/direct").positions == {"slow": {"0": 7}}
    begin = floors.read(spark, settings.Settings(), f"{tmp_path}/realtime")
    assert (begin.next_offsets, begin.is_first) == ({("fast", 0): 5}, True)


def test_a_lane_that_has_committed_takes_the_topic_into_its_checkpoint(spark, tmp_path):
    committed(tmp_path / "direct", '{"slow":{"0":7},"fast":{"0":5}}')
    committed(tmp_path / "realtime", '{"other":{"0":3}}')
    moved(spark, tmp_path, "fast|other")
    assert losses.Checkpoint(spark, f"{tmp_path}/realtime").positions == {"other": {"0": 3}, "fast": {"0": 5}}


def test_without_a_pattern_a_checkpoint_stays_as_it_is(spark, tmp_path):
    committed(tmp_path / "direct", '{"slow":{"0":7}}')
    moved(spark, tmp_path, "")
    assert losses.Checkpoint(spark, f"{tmp_path}/direct").positions == {"slow": {"0": 7}}
