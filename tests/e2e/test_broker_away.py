"""The driver or the broker is killed in the middle of a micro-batch, or the broker is away for long: nothing is lost."""

import collections
import functools

import pytest

from fanout.local import kafka_server as local_kafka
from tests.e2e.conftest import START_S, assert_eventually, metric
from tests.e2e.test_batch_lane import in_batches

pytestmark = pytest.mark.e2e
EACH = 1000
ASKS_SHORTLY = {"request.timeout.ms": "1000", "default.api.timeout.ms": "1000"}
"""By default Spark asks for minutes how far the topics go."""
READS_SHORTLY = {"spark.network.timeout": "10s"} | dict.fromkeys(
    ("spark.executor.heartbeatInterval", "spark.network.timeoutInterval"), "2s"
)
"""A task that Kafka leaves in the middle waits for a record as long as the first of these, by default 120 s, in each of its
four attempts: a lane that has one when Kafka goes gives up with it."""
ONE_BATCH = {"source": {"max_events_per_batch": EACH}}


def test_a_killed_driver_or_broker_and_a_restarted_one_lose_and_repeat_nothing(platform, own_kafka):
    """Two jobs, one story, because their start takes most of the time. Each fault comes in the middle of a micro-batch.

    1. The driver is killed, and a job is started again.
    2. The broker is killed: the job waits, and goes on.
    3. The broker is restarted gracefully. More events follow, and the job stops.
    """
    platform._kafka = own_kafka
    platform.register([{}])
    ids = []

    def taken(count):
        return assert_eventually(platform.accepted, lambda got: len(got) >= count)

    def publish_and_hold(answers):
        """Publish so many events as a micro-batch has; the endpoint answers the first of them, and holds the others."""
        platform.receiver.hold_answers_after(answers)
        ids.extend(platform.publish(EACH, first=len(ids)))

    def assert_amid(answers):
        """Wait until these are answered and others are in flight."""
        assert len(taken(len(ids) - EACH + answers)) < len(ids)
        assert_eventually(platform.receiver.is_holding, bool)

    publish_and_hold(EACH // 2)  # before the job starts, so that they are one micro-batch
    job = platform.start("--lanes", "direct", **ONE_BATCH)
    assert_amid(EACH // 2)
    platform.kill(job)
    platform.receiver.release_answers()  # at once: a worker whose JVM is gone waits for answers for 2.5 s
    job = platform.start("--lanes", "direct", **ONE_BATCH)
    taken(len(ids))

    for end in (own_kafka.kill, own_kafka.stop):
        publish_and_hold(100)
        assert_amid(100)
        end()
        platform.receiver.release_answers()
        own_kafka.start()
        taken(len(ids))

    ids += platform.publish(10, first=len(ids))
    taken(len(ids))
    assert platform.stop(job) == 0, platform.log()
    assert collections.Counter(platform.accepted()) == collections.Counter(ids)
    assert platform.ledger().pending() == 0
    platform.assert_adds_up()


@pytest.mark.slow
def test_one_process_survives_an_absence_of_kafka_longer_than_sparks_wait(platform, own_kafka):
    """The endpoints take events, batches, and nothing until Kafka is back."""
    platform._kafka = own_kafka
    platform.register([{}, {"endpoint": "ep2"}], endpoints=("ep1", "ep2"), retry={"schedule_s": [45] * 20})
    platform.register([{"id": "b", "endpoint": "ep3"}], endpoints=("ep3",), **in_batches(max_wait_s=2))
    platform.statuses["ep2"] = 500
    port = local_kafka.free_port()
    job = platform.start(
        metrics={"port": port},
        kafka={"spark_options": ASKS_SHORTLY},
        retry={"max_probe_interval_s": 5},
        spark={"conf": READS_SHORTLY},
    )
    ids = platform.publish(20)

    def assert_all_arrive(*endpoints):
        for endpoint in endpoints:
            taken = functools.partial(platform.accepted, endpoint)
            assert_eventually(taken, lambda got: set(got) == set(ids))

    assert_all_arrive("ep1", "ep3")
    assert_eventually(
        lambda: metric(port, 'pending_events{lane="retry"}'), lambda waiting: waiting == len(ids), within_s=START_S
    )
    own_kafka.kill()
    for given_up in ("lane direct waits for Kafka", "lane batch waits for Kafka", "lane retry waits for Kafka"):
        assert_eventually(lambda: platform.log(whole=True), lambda log, given_up=given_up: given_up in log)
    assert job.poll() is None
    platform.statuses["ep2"] = 200
    own_kafka.start()
    ids += platform.publish(20, first=len(ids))
    assert_all_arrive("ep1", "ep2", "ep3")
    assert platform.stop(job) == 0, platform.log()
    for endpoint in ("ep1", "ep2", "ep3"):
        assert collections.Counter(platform.accepted(endpoint)) == collections.Counter(ids)
    platform.assert_adds_up()
