"""The retry lane beside other lanes, and a job of its own for a test.

`test_retry_lane_alone.py` has the tests with one job.
"""

import asyncio
import itertools
import time

import orjson
import pytest
from aiohttp import web
from confluent_kafka import Producer
from psycopg import conninfo

from delivery.config import kafka_clients
from delivery.registry_model import CustomerId, EndpointId
from delivery.stages.kafka import topics
from delivery.webhooks.policy import retry_reasons
from delivery.webhooks.retries import retry_messages, retry_records
from fanout.local import kafka as local_kafka
from subscriptions_db.postgres import connect
from tests.e2e.conftest import START_S, assert_eventually, metric
from tests.e2e.test_batch_lane import log
from tests.integration.customers import Customers
from tests.support import builders
from tests.support.leases import waiting
from tests.support.relay import Relay

pytestmark = pytest.mark.e2e
OFTEN = {"schedule_s": [1] * 20}
SOON = {"probe_interval_s": 1, "max_probe_interval_s": 1}
_numbers = itertools.count()


def update(platform, statement, *values):
    with connect.connect(platform.config.database) as connection:
        connection.execute(statement, values)


def postpone(platform, count, *, endpoint="ep1", through="s0", **fields):
    """Hand events over to the retry lane, as a fast lane does after one attempt; return them in their order."""
    now_ms = int(time.time() * 1000)
    numbers = [next(_numbers) for _ in range(count)]
    events = [builders.event(event_id=f"e{n}", event_type="order", record=builders.record(offset=n)) for n in numbers]
    defaults = {"again_at_ms": now_ms, "since_ms": now_ms, "expires_ms": now_ms + 3_600_000, "attempts": 1}
    parcels = [waiting(event, through=(through,), **defaults | fields) for event in events]
    config = platform.config
    topics.ensure_all(config)
    producer = Producer(kafka_clients.for_librdkafka(config.kafka))
    written = retry_messages.encoded(retry_messages.Postponed(EndpointId(endpoint), CustomerId("c1"), parcels))
    for key, value, _ in retry_records.records(endpoint.encode(), written):
        producer.produce(config.delivery.retries_topic, key=key, value=value)
    assert producer.flush(10) == 0
    return events


class Job:
    """The retry lane, and how much waits in it."""

    def __init__(self, platform, *lanes, **overrides):
        self.port = local_kafka.free_port()
        chosen = ("--lanes", ",".join(lanes or ("retry",)))
        self.process = platform.start(*chosen, metrics={"port": self.port}, **{"retry": SOON} | overrides)

    def metric(self, name):
        return metric(self.port, name)

    def pending(self):
        return self.metric('pending_events{lane="retry"}')


class Slow(Customers):
    """Takes its time for each answer; more than a micro-batch waits, and less than an attempt may take."""

    TAKES_S = 1.2

    def __init__(self):
        super().__init__()
        self.came = []

    async def answer(self, request):
        self.came.append(orjson.loads(await request.read())["id"])
        await asyncio.sleep(self.TAKES_S)
        return web.Response()


def test_a_slow_endpoint_gets_each_event_once_and_delays_no_micro_batch(platform):
    platform.register([{}, {"endpoint": "slow"}], endpoints=("ep1", "slow"), retry={})
    with Slow() as customers:
        update(platform, "update endpoints set url = %s where endpoint_id = 'slow'", f"{customers.url}/")
        # Below the time of an answer also where the worker's clock runs at its slowest speed, an eighth.
        job = Job(platform, "direct", "retry", delivery={"patience_s": 0.1})
        ids = []
        for first in range(0, 30, 3):
            ids += platform.publish(3, first=first)
            assert_eventually(platform.accepted, set(ids).issubset, within_s=START_S)
        assert_eventually(lambda: set(customers.came), lambda got: got == set(ids), within_s=60)
        # A stop waits for the attempts in flight outside micro-batches, and logs them.
        assert platform.stop(job.process) == 0, platform.log()
    assert platform.ledger().pending() == 0
    assert (sorted(platform.accepted()), sorted(customers.came)) == (sorted(ids), sorted(ids))
    platform.assert_adds_up()
    reasons = {entry["reason"] for entry in log(platform) if entry["kind"] == "postponed"}
    assert retry_reasons.UNDER_WAY in reasons <= {retry_reasons.UNDER_WAY, retry_reasons.SLOW}


@pytest.mark.slow
def test_what_a_retry_lane_of_its_own_does_not_know_yet_waits_until_it_does(platform, database):
    platform.register([{}], retry=OFTEN)
    with connect.connect(platform.config.database) as connection:
        between = Relay(f"{connection.info.host}/.s.PGSQL.{connection.info.port}")
    job = Job(platform, "retry", database={"url": conninfo.make_conninfo(database, host="127.0.0.1", port=between.port)})
    assert_eventually(job.pending, lambda waits: waits == 0, within_s=START_S)
    between.close()

    platform.register([{}, {"endpoint": "ep2"}], endpoints=("ep1", "ep2"), retry=OFTEN)
    platform.statuses["ep2"] = 500
    [event_id] = platform.publish(1)
    platform.run_once("--lanes", "direct")
    assert platform.accepted() == [event_id]

    def came_back():
        messages = retry_records.messages(*platform.read(platform.config.delivery.retries_topic))
        return [back.reason for report in messages if isinstance(report, retry_messages.Report) for back in report.requeued]

    assert_eventually(came_back, lambda reasons: retry_reasons.REGISTRY_BEHIND in reasons, within_s=60)
    assert platform.stop(job.process) == 0, platform.log()

    platform.statuses["ep2"] = 200
    job = Job(platform, "retry")
    assert_eventually(lambda: platform.accepted("ep2"), lambda got: got == [event_id], within_s=START_S)
    assert_eventually(job.pending, lambda waits: waits == 0, within_s=60)
    assert platform.stop(job.process) == 0, platform.log()
    platform.assert_adds_up()


class Picky(Customers):
    """Refuses the events of one key, so many times, and takes all others."""

    def __init__(self, key, times):
        super().__init__()
        self.taken = []
        self._key, self._times = key, times

    async def answer(self, request):
        event = orjson.loads(await request.read())["data"]
        if event["key"] == self._key and self._times:
            self._times -= 1
            return web.Response(status=500)
        self.taken.append((event["key"], event["number"]))
        return web.Response()


def test_in_order_only_the_key_that_fails_waits_and_each_key_keeps_its_order(platform):
    platform.create_topic("order", partitions=1)  # in which the events have one order
    platform.register([{}], retry=OFTEN, order_by="key")
    with Picky("a", times=8) as customers:
        update(platform, "update endpoints set url = %s", f"{customers.url}/")
        sent = [(key, number) for number in range(6) for key in ("a", "b", "c")]
        events = [{"id": f"{key}{number}", "tenant_id": "t1", "key": key, "number": number} for key, number in sent]
        platform.publish_raw("order", *map(orjson.dumps, events))
        job = platform.start("--lanes", "direct,retry", retry=SOON)
        assert_eventually(lambda: customers.taken, lambda got: len(got) == len(sent), within_s=START_S)
        assert platform.stop(job) == 0, platform.log()
    for key in ("a", "b", "c"):
        assert [request for request in customers.taken if request[0] == key] == [
            request for request in sent if request[0] == key
        ]
    assert {key for key, _ in customers.taken[:12]} == {"b", "c"}  # "a" came last, and kept nobody waiting
    platform.assert_adds_up()
