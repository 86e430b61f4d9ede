"""Entries of the retries topic reach the receiver, also after kills and restarts."""

import asyncio
import collections
import contextlib
import itertools
import socket
import time

import orjson
import pytest
from aiohttp import web
from confluent_kafka import Producer
from psycopg import conninfo

from delivery.config import kafka_clients
from delivery.registry_model import CustomerId, EndpointId
from delivery.stages.kafka import topics
from delivery.webhooks.http import exchange_deadlines
from delivery.webhooks.policy import retry_reasons
from delivery.webhooks.retries import retry_messages, retry_records
from delivery.webhooks.sending import payload
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


def attempts(platform):
    """The numbers and error classes of the attempts at each delivery, as the log has them."""
    numbers = collections.defaultdict(list)
    for entry in log(platform):
        if entry["kind"] == "attempt":
            numbers[entry["webhook_id"]].append((entry["attempt"], entry["error_class"]))
    return numbers


def test_an_endpoint_that_fails_and_recovers_gets_everything_once(platform):
    platform.migrate()
    platform.register([{}], retry=OFTEN)
    platform.statuses["ep1"] = 500
    events = postpone(platform, 30)
    job = Job(platform)
    assert_eventually(lambda: len(platform.received), lambda count: count >= 5, within_s=START_S)
    assert_eventually(lambda: job.metric("held_endpoints"), lambda held: held == 1, within_s=30)
    platform.statuses["ep1"] = 200
    assert_eventually(platform.accepted, lambda got: len(got) == 30, within_s=90)
    assert_eventually(job.pending, lambda waits: waits == 0, within_s=30)
    assert platform.stop(job.process) == 0, platform.log()

    assert sorted(platform.accepted()) == sorted(event.event_id for event in events)
    assert all(request.is_verified for request in platform.received)
    ids = {event.event_id: payload.webhook_id(event, "s0") for event in events}
    assert all(request.webhook_id == ids[orjson.loads(request.body)["id"]] for request in platform.received)
    numbers_by_id = attempts(platform)
    assert set(numbers_by_id) == set(ids.values())
    for numbers in numbers_by_id.values():
        assert [number for number, _ in numbers] == list(range(2, 2 + len(numbers)))
        assert [error_class for _, error_class in numbers] == ["server_error"] * (len(numbers) - 1) + [None]
    assert sum(map(len, numbers_by_id.values())) == len(platform.received)


@contextlib.contextmanager
def hanging():
    """Serve, and never answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"


def test_an_endpoint_that_hangs_delays_no_other_and_its_attempt_is_logged_late(platform):
    platform.migrate()
    platform.register([{}, {"endpoint": "hangs"}], endpoints=("ep1", "hangs"))
    with hanging() as url:
        update(platform, "update endpoints set url = %s where endpoint_id = 'hangs'", url)
        hung = postpone(platform, 3, endpoint="hangs", through="s1")
        events = postpone(platform, 50)
        job = Job(platform)
        assert_eventually(platform.accepted, lambda got: len(got) == 50, within_s=START_S)
        assert sorted(platform.accepted()) == sorted(event.event_id for event in events)
        entries = assert_eventually(lambda: log(platform), lambda entries: len(entries) >= 53, within_s=60)
        assert platform.stop(job.process) == 0, platform.log()
    of_hung = {payload.webhook_id(event, "s1") for event in hung}
    assert [entry["webhook_id"] in of_hung for entry in entries] == [False] * 50 + [True] * 3
    # The worker adds its own delay to the 15 s. An attempt is `local` only after the longest extension. The deadline is by
    # the event loop's clock and the duration by the wall clock, which the machine corrects by some ms meanwhile.
    latest_ms = 15_000 + exchange_deadlines.MAX_EXTENSION_S * 1000
    assert all(15_000 <= entry["duration_ms"] < latest_ms + 3_000 for entry in entries[50:])
    assert all(entry["error_class"] == "timeout" for entry in entries[50:] if entry["duration_ms"] < latest_ms - 50)
    assert {entry["error_class"] for entry in entries[50:]} <= {"timeout", "local"}


class Slow(Customers):
    """Takes its time for each answer; more than a micro-batch waits, and less than an attempt may take."""

    def __init__(self, takes_s=1.2):
        super().__init__()
        self.came = []
        self._takes_s = takes_s

    async def answer(self, request):
        self.came.append(orjson.loads(await request.read())["id"])
        await asyncio.sleep(self._takes_s)
        return web.Response()


def test_a_slow_endpoint_gets_each_event_once_and_delays_no_micro_batch(platform):
    platform.migrate()
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


def test_a_stopping_job_ends_attempts_of_the_retry_lane_and_requeues_others(platform):
    platform.migrate()
    platform.register([{}], max_in_flight=1)
    with Slow(takes_s=6) as customers:
        update(platform, "update endpoints set url = %s", f"{customers.url}/")
        ids = [event.event_id for event in postpone(platform, 2)]
        first = Job(platform, delivery={"stop_within_s": 20})
        assert_eventually(lambda: customers.came, bool, within_s=START_S)
        assert platform.stop(first.process) == 0, platform.log()
        assert len(customers.came) == 1
        second = Job(platform)
        assert_eventually(lambda: len(customers.came), lambda count: count >= 2, within_s=START_S)
        assert_eventually(second.pending, lambda waits: waits == 0, within_s=60)
        assert platform.stop(second.process) == 0, platform.log()
    assert sorted(customers.came) == sorted(ids)


def test_retry_entries_survive_a_kill_and_leave_in_order_after_recovery(platform):
    platform.migrate()
    platform.register([{}], max_in_flight=1)  # so that the order in which they leave is that in which they come
    update(platform, "update endpoints set status = 'paused' where endpoint_id = 'ep1'")
    events = postpone(platform, 20, reason=retry_reasons.ENDPOINT_PAUSED, attempts=0)
    first = Job(platform)
    assert_eventually(first.pending, lambda waits: waits == 20, within_s=START_S)
    platform.kill(first.process)
    update(platform, "create table kept as select * from secrets")
    update(platform, "delete from secrets")
    update(platform, "update endpoints set status = 'active' where endpoint_id = 'ep1'")
    events += postpone(platform, 5, reason=retry_reasons.ENDPOINT_QUARANTINED, attempts=0)

    second = Job(platform)
    assert_eventually(second.pending, lambda waits: waits == 25, within_s=START_S)
    assert platform.received == []
    update(platform, "insert into secrets select * from kept")
    assert_eventually(platform.accepted, lambda got: len(got) >= 25, within_s=60)
    assert_eventually(second.pending, lambda waits: waits == 0, within_s=30)
    assert platform.stop(second.process) == 0, platform.log()
    assert platform.accepted() == [event.event_id for event in events]


@pytest.mark.slow
def test_what_a_retry_lane_of_its_own_does_not_know_yet_waits_until_it_does(platform, database):
    platform.migrate()
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
    platform.migrate()
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
