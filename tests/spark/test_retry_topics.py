"""The retry lane keeps the names of its topics: a job with another name does not start, and starts with the earlier one."""

import threading
import uuid

import pytest
from confluent_kafka import Producer

from delivery import errors
from delivery.config import kafka_clients, settings
from delivery.observability import health
from delivery.stages.checkpoint import offset_log, retry_topics
from delivery.stages.kafka import topic_source, topics
from delivery.stages.lanes import streaming_lane
from tests.spark.test_realtime import committed, contents

pytestmark = [
    pytest.mark.spark,
    # py4j leaves its sockets for the garbage collector to close.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def config_with(folder, *, retries="r", ticks="t", servers="127.0.0.1:1"):
    return settings.Settings(
        kafka=settings.KafkaSettings(bootstrap_servers=servers),
        delivery=settings.DeliverySettings(retries_topic=retries),
        retry=settings.RetrySettings(ticks_topic=ticks),
        spark=settings.SparkSettings(checkpoint=str(folder)),
    )


@pytest.mark.parametrize(
    ("positions", "cure"),
    [
        ('{"old":{"0":7,"1":2},"t":{"0":3}}', "positions in old: set delivery.retries_topic to old"),
        ('{"r":{"0":7},"old":{"0":3}}', "positions in old: set retry.ticks_topic to old"),
        ('{"old":{"0":7}}', "positions in old: set delivery.retries_topic to old"),
        (
            '{"old":{"0":7},"older":{"0":3}}',
            "positions in old, older: set delivery.retries_topic and retry.ticks_topic to the earlier names",
        ),
    ],
    ids=["retries", "ticks", "of before there was a ticks topic", "both"],
)
def test_a_renamed_topic_of_the_retry_lane_is_refused(spark, tmp_path, positions, cure):
    """Regression: the lane stopped at each start, and deliveries that the other lanes postponed meanwhile were lost."""
    committed(tmp_path / "retry", positions)
    before = contents(tmp_path)
    with pytest.raises(errors.SettingsError, match=cure):
        retry_topics.require_same(spark, config_with(tmp_path))
    assert contents(tmp_path) == before


@pytest.mark.parametrize("positions", [None, '{"r":{"0":7}}', '{"r":{"0":7},"t":{"0":3}}', '{"t":{"0":3}}'])
def test_a_new_checkpoint_and_one_without_a_topic_are_taken_as_they_are(spark, tmp_path, positions):
    if positions is not None:
        committed(tmp_path / "retry", positions)
    before = contents(tmp_path)
    retry_topics.require_same(spark, config_with(tmp_path))
    assert contents(tmp_path) == before


class Lane:
    """The reading of the retry lane, from topics of its own."""

    def __init__(self, spark, kafka, folder):
        self._spark, self._folder = spark, folder
        self.config = config_with(folder, retries=uuid.uuid4().hex, ticks=uuid.uuid4().hex, servers=kafka.bootstrap_servers)
        self.taken = []

    def publish(self, config, value):
        topics.ensure(config.kafka, [config.delivery.retries_topic, config.retry.ticks_topic], 1)
        producer = Producer(kafka_clients.for_librdkafka(config.kafka))
        producer.produce(config.delivery.retries_topic, value)
        assert producer.flush(10) == 0

    def run(self, config):
        stop = threading.Event()
        lane = streaming_lane.StreamingLane(
            "retry", acquire=lambda: (), handle=self._take, stop=stop, is_kafka_back=pytest.fail,
            watch=health.Watch(pause_reason=lambda: None, stop=stop),
        )  # fmt: skip
        lane.run(lambda: topic_source.read_retries(self._spark, config), config.spark, 0, once=True)

    def _take(self, batch, _):
        self.taken += [bytes(row.value) for row in batch.collect()]
        return streaming_lane.Result.COMMITTED


def test_a_lane_that_a_renamed_topic_stopped_continues_with_the_old_name(spark, kafka, tmp_path, caplog):
    """Regression: the lane stopped also after the name had been changed back."""
    lane = Lane(spark, kafka, tmp_path)
    lane.publish(lane.config, b"a")
    lane.run(lane.config)
    renamed = config_with(
        tmp_path, retries=uuid.uuid4().hex, ticks=lane.config.retry.ticks_topic, servers=kafka.bootstrap_servers
    )
    lane.publish(renamed, b"elsewhere")
    with pytest.raises(errors.LaneFailed, match="have been deleted"):  # as versions before 2026-11-28 did
        lane.run(renamed)
    lane.publish(lane.config, b"b")
    retry_topics.require_same(spark, lane.config)
    lane.run(lane.config)
    assert lane.taken == [b"a", b"b"]
    assert f"names the topics {renamed.delivery.retries_topic}" in caplog.text
    assert offset_log.committed(spark, f"{tmp_path}/retry").keys() == {
        lane.config.delivery.retries_topic, lane.config.retry.ticks_topic,
    }  # fmt: skip
