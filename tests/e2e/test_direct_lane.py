"""From a Kafka record to a verified request, an attempt row, a dead letter."""

import base64
import collections
import subprocess
import sys

import orjson
import pytest

from delivery.stages.kafka import topics
from delivery.webhooks.retries import retry_records
from fanout.local import kafka as local_kafka
from fanout.local import stack
from subscriptions_db.postgres import connect
from tests.e2e.conftest import JOB_TIMEOUT_S, assert_eventually, metric

pytestmark = pytest.mark.e2e


def test_every_event_ends_as_delivered_dead_lettered_skipped_or_rejected(platform):
    platform.statuses |= {"ep2": 500, "ep3": 500}
    platform.register(
        [
            {"tenants": ["t1"], "everything": False},
            # An event each: the failures of two would open an endpoint's circuit, and the second would be postponed.
            {"endpoint": "ep2", "filter": {"data": {"amount": [{"numeric": [">=", 9]}]}}},
            {"endpoint": "ep3", "filter": {"data": {"amount": [8]}}},
            {"status": "paused"},
        ],
        endpoints=("ep1", "ep2", "ep3"),
    )
    ids = [platform.publish(1, first=n, amount=n)[0] for n in range(10)]
    platform.publish(5, first=10, tenant_id="t2", amount=0)
    platform.publish_raw("order", b"not JSON", None, b'{"tenant_id":"nobody"}', b'{"id":"x"}')
    attributes = {"ce_specversion": "1.0", "ce_id": "ce1", "ce_type": "order", "ce_source": "/shop", "ce_tenantid": "t1"}
    further = {"subject": "order/4711", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    headers = tuple((name, value.encode()) for name, value in (attributes | {f"ce_{n}": v for n, v in further.items()}).items())
    platform.publish_raw("shop", b'{ "amount" : 1 }', headers=headers)

    platform.run_once(batch={"shards": 4}, retry={"shards": 4})

    assert sorted(platform.accepted("ep1")) == sorted([*ids, "ce1"])
    assert all(request.is_verified for request in platform.received)
    [whole] = [request.body for request in platform.received if request.body.endswith(b'"data":{ "amount" : 1 }}')]
    assert orjson.loads(whole)["attributes"] == further
    ledger = platform.ledger()
    assert collections.Counter(ledger.skipped.values()) == {"subscription_paused": 16}
    assert sorted(row.reason for row in ledger.rejected.values()) == [
        "missing_attribute",
        "not_json",
        "tombstone",
        "unknown_tenant",
    ]
    assert sorted(ledger.dead_letters) == [("e8", "s2"), ("e9", "s1")]
    letter = ledger.dead_letters["e9", "s1"]
    assert [(attempt.attempt, attempt.status, attempt.error_class) for attempt in letter.attempts] == [
        (n, 500, "server_error") for n in (1, 2, 3)
    ]
    assert base64.b64decode(letter.payload_base64) == b'{"id":"e9","tenant_id":"t1","amount":9}'
    # All attempts of one delivery carry one id.
    assert len({request.webhook_id for request in platform.received if request.path in {"/ep2", "/ep3"}}) == 2
    # 11 delivered, 2 dead letters of 3 attempts each.
    assert (ledger.attempts, len(ledger.delivered)) == (11 + 6, 11)
    platform.assert_adds_up()


def test_what_fails_or_must_wait_is_handed_over_to_the_retry_lane(platform):
    platform.statuses["failing"] = 500
    platform.statuses["gone"] = 410
    names = ("ep1", "failing", "gone", "paused", "ordered", "unsigned")
    own = {"failing": {"retry": {"schedule_s": [5]}}, "paused": {"status": "paused"}, "ordered": {"order_by": "amount"}}
    for name in names:
        platform.register([], endpoints=(name,), **{"retry": {}} | own.get(name, {}))
    platform.register([{"endpoint": name} for name in names], endpoints=())
    with connect.connect(platform.config.database) as connection:
        connection.execute("delete from secrets where endpoint_id = 'unsigned'")
    ids = [platform.publish(1, first=n, amount=n % 2)[0] for n in range(4)]

    assert platform.start("--once", "--lanes", "direct").wait(JOB_TIMEOUT_S) == 0, platform.log()

    assert sorted(platform.accepted()) == sorted(ids)
    assert not platform.ledger().dead_letters
    waits = collections.defaultdict(collections.Counter)
    for message in retry_records.messages(*platform.read(platform.config.delivery.retries_topic)):
        waits[message.endpoint_id].update((entry.reason, entry.order_key) for entry in message.entries)
    # Two of them have failed three times before the circuit opens, or five once.
    assert (waits["failing"].total(), {key for _, key in waits["failing"]}) == (4, {None})
    assert {reason for reason, _ in waits["failing"]} <= {"server_error", "circuit_open"}
    assert {name: dict(waits[name]) for name in ("gone", "paused", "ordered", "unsigned")} == {
        "gone": {("gone", None): 4},
        "paused": {("endpoint_paused", None): 4},
        "ordered": {("ordered", "0"): 2, ("ordered", "1"): 2},
        "unsigned": {("endpoint_quarantined", None): 4},
    }
    with connect.connect(platform.config.database) as connection:
        row = connection.execute("select status, disabled_reason from endpoints where endpoint_id = 'gone'").fetchone()
    assert row == {"status": "disabled", "disabled_reason": "gone"}


def test_what_cannot_be_recorded_is_not_committed_and_is_delivered_again(platform):
    """The dead-letter topic refuses the record: the batch fails, and no failure is forgotten."""
    platform.statuses["ep1"] = 500
    platform.register([{}])
    [event_id] = platform.publish(1)
    dead_letters = platform.config.delivery.dead_letter_topic
    topics.ensure(platform.config.kafka, [dead_letters], 1, {"max.message.bytes": "300"})
    assert platform.start("--once", "--lanes", "direct", spark={"master": "local[2]"}).wait(JOB_TIMEOUT_S) != 0
    assert not platform.ledger().dead_letters
    assert platform.log().rstrip().splitlines()[-1].startswith("fanout: lane direct ended, and all lanes stop: ")

    platform.set_topic(dead_letters, "max.message.bytes", "1048576")
    platform.run_once("--lanes", "direct")

    assert list(platform.ledger().dead_letters) == [(event_id, "s0")]
    platform.assert_adds_up()


def test_a_job_with_the_wrong_key_ring_ends_and_delivers_nothing(platform):
    """One job, one story, because its start takes most of the time.

    1. The registry lacks the newest migration: the job says so, stays unready, and waits.
    2. The migration is there, and the ring opens nothing: the job says so, and ends.
    3. The next job has the right ring: everything is delivered once.
    """
    platform.register([{}])
    platform.publish(1)
    with connect.connect(platform.config.database) as connection:
        [newest] = connection.execute("delete from migrations where name = (select max(name) from migrations) returning *")
        metrics = {"port": local_kafka.free_port()}
        job = platform.start("--lanes", "direct", keys={"ring": {"test": stack.new_key()}}, metrics=metrics)
        lacks = f"trying again: the registry lacks the migrations {newest['name']}, and nothing was changed"
        assert_eventually(platform.log, lambda log: lacks in log, within_s=90)
        assert metric(metrics["port"], 'ready{lane="direct"}') == 0
        connection.execute("insert into migrations (name, sha256) values (%(name)s, %(sha256)s)", newest)
    assert job.wait(JOB_TIMEOUT_S) == 2
    assert platform.log().rstrip().splitlines()[-1].startswith("fanout: setting keys.ring does not fit the registry: ")
    assert not platform.received
    platform.run_once("--lanes", "direct")
    assert len(platform.accepted()) == 1


def test_the_command_says_in_one_line_what_is_wrong(tmp_path):
    environ = {"FANOUT_KAFKA_BOOTSTRAP_SERVER": "x"}
    done = subprocess.run(
        [sys.executable, "-m", "fanout.cli.main", "run"], env=environ, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "did you mean kafka.bootstrap_servers?" in done.stderr
