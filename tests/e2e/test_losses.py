"""Records that are gone before a lane has read them: the job refuses to go on, until somebody has said so."""

import operator

import orjson
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from delivery.config import kafka_clients
from delivery.webhooks.results import log_records
from subscriptions_db.postgres import connect
from tests.e2e.conftest import JOB_TIMEOUT_S, assert_eventually
from tests.e2e.test_batch_lane import in_batches
from tests.e2e.test_by_hand import fanout
from tests.e2e.test_realtime_lane import start

pytestmark = pytest.mark.e2e
PARTITIONS = 2


def expire(platform, topic):
    """Have Kafka drop all that a topic holds now."""
    behind_all = [TopicPartition(topic, number, -1) for number in range(PARTITIONS)]
    admin = AdminClient(kafka_clients.for_librdkafka(platform.config.kafka))
    for dropped in admin.delete_records(behind_all).values():
        dropped.result(10)


@pytest.mark.slow
def test_a_loss_is_shown_and_accepted_by_the_command_and_what_waits_is_kept(platform):
    platform.register([{}], **in_batches(max_events=5, max_wait_s=600))
    platform.create_topic("order", PARTITIONS)
    waits = platform.publish(3)
    platform.run_once()
    platform.publish(4, first=10)
    topic = f"{platform.name}.order"
    expire(platform, topic)
    came = platform.publish(2, first=20)

    shown, accepted = (
        orjson.loads(fanout(platform.folder, "accept-loss", "--json", *words).stdout) for words in ((), ["--yes"])
    )
    assert (shown["accepted"], accepted["accepted"]) == (False, True)
    assert shown["lost"] == accepted["lost"]
    for lane in ("direct", "batch"):
        assert sum(loss["records"] for loss in shown["lost"] if loss["lane"] == lane) == 4
    assert {(loss["topic"], loss["why"]) for loss in shown["lost"]} == {(topic, "expired")}

    with connect.connect(platform.config.database) as connection:
        noted = connection.execute("select entity_id, after from audit_log where action = 'accept-loss'").fetchall()
    place = operator.itemgetter("lane", "partition")
    assert sorted((row["after"] for row in noted), key=place) == sorted(shown["lost"], key=place)
    assert {row["entity_id"] for row in noted} == {f"{topic}:{loss['partition']}" for loss in shown["lost"]}

    platform.run_once()
    assert list(map(sorted, platform.accepted_requests())) == [sorted(waits + came)]


def handled(platform):
    """Return the number of records that offset receipts cover."""
    found = map(log_records.decode, platform.read(platform.config.delivery.attempts_topic))
    receipts = (record for record in found if isinstance(record, log_records.OffsetReceipt))
    runs = {(receipt.partition, receipt.first_offset, receipt.last_offset) for receipt in receipts}
    return sum(last - first + 1 for _, first, last in runs)


@pytest.mark.slow
def test_the_real_time_lane_continues_after_losses_of_handled_records(platform):
    """Spark had not committed these records, so its query cannot start without them, and they are listed as lost."""
    platform.register([{}])
    platform.publish(5)
    assert start(platform, "--once").wait(JOB_TIMEOUT_S) == 0, platform.log()
    before = handled(platform)

    job = start(platform)
    ids = platform.publish(20, first=100)
    assert_eventually(lambda: handled(platform), lambda count: count >= before + len(ids), every_s=0.5)
    platform.kill(job)
    expire(platform, f"{platform.name}.order")
    assert start(platform, "--once").wait(JOB_TIMEOUT_S) == 1
    fanout(platform.folder, "accept-loss", "--yes", "--lanes", "realtime")

    later = platform.publish(3, first=200)
    assert start(platform, "--once").wait(JOB_TIMEOUT_S) == 0, platform.log()
    assert sorted(platform.accepted()) == sorted([f"e{n}" for n in range(5)] + ids + later)
