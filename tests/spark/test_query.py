"""When a lane says that it is ready, and how it ends."""

import threading
import time

import pytest

from delivery import errors
from delivery.config import kafka_clients, settings
from delivery.observability import health
from delivery.stages.kafka import topic_source, topics
from delivery.stages.lanes import session, streaming_lane
from tests.e2e.conftest import assert_eventually
from tests.spark.test_checkpoints import Topic

pytestmark = pytest.mark.spark


class Watch(health.Watch):
    """Tells when the lane has entered a phase."""

    def __init__(self, stop):
        super().__init__(pause_reason=lambda: None, stop=stop)
        self.has_entered = threading.Event()

    def enter(self, phase):
        super().enter(phase)
        self.has_entered.set()


def records_of(topic, spark):
    wanted = settings.SourceSettings(topic_pattern=topic.name, starting_offsets="earliest")
    return topic_source.read(spark, topic.kafka, wanted, at_most=1_000)


def test_a_lane_that_is_woken_is_ready_when_its_first_micro_batch_is_committed(spark, kafka, tmp_path):
    topic, stop, phases = Topic(spark, kafka, tmp_path), threading.Event(), []
    watch = Watch(stop)

    def handle(*_):
        phases.append((watch.facts().phase, watch.has_entered.wait(1)))
        return streaming_lane.Result.COMMITTED

    lane = streaming_lane.StreamingLane(
        "batch", acquire=lambda: (), handle=handle, stop=stop, watch=watch, is_kafka_back=pytest.fail, is_woken=True
    )
    topic.publish(b"tick")
    config = settings.SparkSettings(checkpoint=str(tmp_path))
    run = threading.Thread(target=lane.run, args=(lambda: records_of(topic, spark), config, 0.1), kwargs={"once": False})
    run.start()
    assert watch.has_entered.wait(30)
    stop.set()
    run.join()
    assert phases == [(health.QueryPhase.STARTING, False)]


def test_a_lane_without_topics_says_so_until_it_has_one(spark, kafka, tmp_path):
    """The number of executors depends on it: a lane without topics needs none."""
    topic, stop = Topic(spark, kafka, tmp_path), threading.Event()
    topic.delete()
    watch = Watch(stop)
    lane = streaming_lane.StreamingLane(
        "direct",
        acquire=lambda: (),
        handle=lambda *_: streaming_lane.Result.COMMITTED,
        stop=stop,
        watch=watch,
        is_kafka_back=pytest.fail,
    )
    config = settings.SparkSettings(checkpoint=str(tmp_path))
    run = threading.Thread(target=lane.run, args=(lambda: records_of(topic, spark), config, 0.1), kwargs={"once": False})
    run.start()
    try:
        assert_eventually(lambda: watch.has_no_topics, bool)
        topics.ensure(topic.kafka, [topic.name], 1)
        topic.publish(b"one")
        assert_eventually(lambda: watch.has_no_topics, lambda has_none: not has_none)
    finally:
        stop.set()
        run.join()


@pytest.mark.parametrize("known", ["a new checkpoint", "a checkpoint with a commit", "no topic"])
def test_a_query_without_records_reports_progress_at_once(spark, kafka, tmp_path, known):
    """Otherwise an idle lane would count as stalled, and its process would restart."""
    topic, stop = Topic(spark, kafka, tmp_path), threading.Event()
    if known == "a checkpoint with a commit":
        topic.publish(b"one")
        topic.run("checkpoint")
    if known == "no topic":
        topic.delete()
    watch = Watch(stop)
    lane = streaming_lane.StreamingLane(
        "direct",
        acquire=lambda: (),
        handle=lambda *_: streaming_lane.Result.COMMITTED,
        stop=stop,
        watch=watch,
        is_kafka_back=pytest.fail,
    )
    config = settings.SparkSettings(checkpoint=str(tmp_path / "checkpoint"))
    run = threading.Thread(target=lane.run, args=(lambda: records_of(topic, spark), config, 0.1), kwargs={"once": False})
    run.start()
    try:
        assert watch.has_entered.wait(30)
        assert_eventually(lambda: watch.awaits_report, lambda awaits: not awaits)
    finally:
        stop.set()
        run.join()


def sleep_for_ever(_):
    while True:
        time.sleep(1)


def test_a_micro_batch_that_hangs_does_not_keep_the_job_from_ending(spark, kafka, tmp_path):
    topic, stop = Topic(spark, kafka, tmp_path), threading.Event()

    def handle(batch, _):
        stop.set()
        batch.foreach(sleep_for_ever)
        return streaming_lane.Result.COMMITTED

    lane = streaming_lane.StreamingLane(
        "batch", acquire=lambda: (), handle=handle, stop=stop, watch=Watch(stop), is_kafka_back=pytest.fail, stalled_after_s=0.5
    )
    topic.publish(b"tick")
    config = settings.SparkSettings(checkpoint=str(tmp_path))
    with pytest.raises(errors.LaneFailed, match=r"lane batch was asked to stop 0 s ago.* is interrupted"):
        lane.run(lambda: records_of(topic, spark), config, 0.1, once=False)
    # The tracker learns of the end from Spark's event queue, after the job has ended.
    assert_eventually(spark.sparkContext.statusTracker().getActiveJobsIds, lambda jobs: jobs == [])


def test_a_lane_whose_driver_hangs_ends_and_leaves_its_query_behind(spark, kafka, tmp_path, caplog):
    topic, stop, released = Topic(spark, kafka, tmp_path), threading.Event(), threading.Event()

    def handle(*_):
        stop.set()
        released.wait()
        return streaming_lane.Result.STOP

    lane = streaming_lane.StreamingLane(
        "batch", acquire=lambda: (), handle=handle, stop=stop, watch=Watch(stop), is_kafka_back=pytest.fail, stalled_after_s=0.5
    )
    topic.publish(b"tick")
    spark.conf.set("spark.sql.streaming.stopTimeout", "1s")
    try:
        with pytest.raises(errors.LaneFailed, match="is interrupted"):
            lane.run(lambda: records_of(topic, spark), settings.SparkSettings(checkpoint=str(tmp_path)), 0.1, once=False)
    finally:
        spark.conf.set("spark.sql.streaming.stopTimeout", session.STOP_TIMEOUT)
        released.set()
    assert "the query of lane batch did not end within" in caplog.text
    assert_eventually(lambda: spark.streams.active, lambda queries: not queries)  # Spark refuses a second query of this name


def test_a_lane_that_kafkas_client_refuses_names_the_file_at_fault(spark, tmp_path):
    """Regression: a wrong keystore ended the job with `Failed to create new KafkaAdminClient`, and nothing said why."""
    keystore = tmp_path / "client.pem"
    keystore.write_text("no PEM")
    kafka = settings.KafkaSettings(bootstrap_servers="127.0.0.1:1", security_protocol="SSL", ssl_keystore_file=str(keystore))
    stop = threading.Event()
    lane = streaming_lane.StreamingLane(
        "batch", acquire=lambda: (), handle=pytest.fail, stop=stop, watch=Watch(stop), is_kafka_back=pytest.fail
    )
    config = settings.SparkSettings(checkpoint=str(tmp_path))
    # The lanes' own source tries for minutes.
    options = kafka_clients.for_spark(kafka) | {"subscribe": "any", "fetchOffset.numRetries": "1"}
    with pytest.raises(errors.LaneFailed, match=f"Failed to create new KafkaAdminClient: .*{keystore}"):
        lane.run(spark.readStream.format("kafka").options(**options).load, config, 0.1, once=True)
