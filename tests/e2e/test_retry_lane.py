"""The retry lane beside the direct lane: endpoints fail, hang and are slow, and the job is stopped and killed.

The tests share a job, as its start takes most of the time: one test stops it and starts the next, another one kills that. Each
test has endpoints and event types of its own, and needs no test before it. The last one compares all requests of the others
with the log, and proves that everything adds up.
"""

import asyncio
import collections
import contextlib
import itertools
import signal
import socket
import subprocess
import uuid

import orjson
import pytest
from aiohttp import web

from delivery.webhooks.http import exchange_deadlines
from delivery.webhooks.policy import retry_reasons
from delivery.webhooks.sending import payload
from fanout.reconcile import proving
from tests.e2e.conftest import JOB_TIMEOUT_S, Platform, assert_eventually
from tests.e2e.jobs import OFTEN, Job, postpone, register, update
from tests.integration.customers import Customers
from tests.support import databases

pytestmark = pytest.mark.e2e
SETTINGS = {
    # Below the time of a slow answer also where the worker's clock runs at its slowest speed, an eighth.
    "patience_s": 0.1,
    # A test holds an answer for 10 s while the job stops.
    "stop_within_s": 20,
}


class Lane:
    """The job that runs both lanes now."""

    def __init__(self, platform):
        self._platform = platform
        self.start()

    def start(self):
        self.job = Job(self._platform, "direct", "retry", delivery=SETTINGS)
        self.job.assert_ready()

    def stop(self):
        return self._platform.stop(self.job.process)

    def kill(self):
        self._platform.kill(self.job.process)


@pytest.fixture(scope="module")
def shared(kafka, postgres, tmp_path_factory):
    """The platform, and its running lanes."""
    database = databases.create_migrated(postgres, f"test_{uuid.uuid4().hex[:12]}")
    platform = Platform(kafka, database, tmp_path_factory.mktemp("retry-lane"))
    with platform.receiving(), contextlib.closing(platform):
        for event_type in ("slowly", "ending"):
            platform.create_topic(event_type)
        platform.create_topic("ordered", partitions=1)  # in which the events have one order
        yield platform, Lane(platform)


@pytest.fixture
def platform(shared):
    return shared[0]


@pytest.fixture
def lane(shared):
    return shared[1]


def to(endpoint, **fields):
    """Return a subscription of this endpoint, for `register`. No event is published of the default type."""
    return {"id": f"to-{endpoint}", "endpoint": endpoint, **fields}


def postponed(platform, endpoint, count, **fields):
    """Hand events for this endpoint over to the retry lane; return them in their order."""
    return postpone(platform, count, endpoint=endpoint, through=f"to-{endpoint}", **fields)


def requests(platform, endpoint):
    return [request for request in platform.received if request.path == f"/{endpoint}"]


def entries_about(platform, kind, *endpoints):
    """Return the entries of a kind about these endpoints, in the order of the log."""
    rows = map(orjson.loads, platform.read(platform.config.delivery.attempts_topic))
    entries = itertools.chain.from_iterable(row["entries"] for row in rows if row.get("endpoint_id") in endpoints)
    return [entry for entry in entries if entry["kind"] == kind]


def attempts(platform, *endpoints):
    return entries_about(platform, "attempt", *endpoints)


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


def test_a_slow_endpoint_gets_each_event_once_and_delays_no_micro_batch(platform, lane):
    with Slow() as customers:
        platform.register([], endpoints=("slow", "quick"), retry={})
        update(platform, "update endpoints set url = %s where endpoint_id = 'slow'", f"{customers.url}/")
        register(platform, lane.job, [to(name, event_type="slowly") for name in ("slow", "quick")], endpoints=())
        ids = []
        for first in range(0, 30, 3):
            ids += platform.publish(3, event_type="slowly", first=first)
            assert_eventually(lambda: platform.accepted("quick"), set(ids).issubset)
        assert_eventually(lambda: set(customers.came), lambda got: got == set(ids))
        for name in ("slow", "quick"):
            entries = assert_eventually(
                lambda name=name: attempts(platform, name), lambda entries: len(entries) >= len(ids), every_s=0.5
            )
            assert [entry["error_class"] for entry in entries] == [None] * len(ids)
        assert_eventually(lane.job.pending, lambda waits: waits == 0)
    assert (sorted(platform.accepted("quick")), sorted(customers.came)) == (sorted(ids), sorted(ids))
    reasons = {entry["reason"] for entry in entries_about(platform, "postponed", "slow", "quick")}
    assert retry_reasons.UNDER_WAY in reasons <= {retry_reasons.UNDER_WAY, retry_reasons.SLOW}


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


def test_in_order_only_the_key_that_fails_waits_and_each_key_keeps_its_order(platform, lane):
    sent = [(key, number) for number in range(6) for key in ("a", "b", "c")]
    events = [{"id": f"{key}{number}", "tenant_id": "t1", "key": key, "number": number} for key, number in sent]
    with Picky("a", times=8) as customers:
        platform.register([], endpoints=("ordered",), retry=OFTEN, order_by="key")
        update(platform, "update endpoints set url = %s where endpoint_id = 'ordered'", f"{customers.url}/")
        update(platform, "update endpoints set status = 'paused' where endpoint_id = 'ordered'")
        register(platform, lane.job, [to("ordered", event_type="ordered")], endpoints=())
        # All wait before the first may leave: if "a0" came alone and failed, the whole endpoint would be held.
        platform.publish_raw("ordered", *map(orjson.dumps, events))
        assert_eventually(lane.job.pending, lambda waits: waits == len(sent))
        update(platform, "update endpoints set status = 'active' where endpoint_id = 'ordered'")
        assert_eventually(lambda: customers.taken, lambda got: len(got) == len(sent))
        assert_eventually(lane.job.pending, lambda waits: waits == 0)
    for key in ("a", "b", "c"):
        assert [request for request in customers.taken if request[0] == key] == [
            request for request in sent if request[0] == key
        ]
    assert {key for key, _ in customers.taken[:12]} == {"b", "c"}  # "a" came last, and kept nobody waiting


def test_an_endpoint_that_fails_and_recovers_gets_everything_once(platform, lane):
    register(platform, lane.job, [to("fails")], endpoints=("fails",), retry=OFTEN)
    platform.statuses["fails"] = 500
    events = postponed(platform, "fails", 30)
    assert_eventually(lambda: len(requests(platform, "fails")), lambda count: count >= 5)
    assert_eventually(lambda: lane.job.metric("held_endpoints"), lambda held: held == 1)
    platform.statuses["fails"] = 200
    assert_eventually(lambda: platform.accepted("fails"), lambda got: len(got) == 30)
    assert_eventually(lane.job.pending, lambda waits: waits == 0)

    assert sorted(platform.accepted("fails")) == sorted(event.event_id for event in events)
    received = requests(platform, "fails")
    assert all(request.is_verified for request in received)
    ids = {event.event_id: payload.webhook_id(event, "to-fails") for event in events}
    assert all(request.webhook_id == ids[orjson.loads(request.body)["id"]] for request in received)
    entries_by_id = collections.defaultdict(list)
    for entry in attempts(platform, "fails"):
        entries_by_id[entry["webhook_id"]].append(entry)
    assert set(entries_by_id) == set(ids.values())
    for entries in entries_by_id.values():
        assert [entry["attempt"] for entry in entries] == list(range(2, 2 + len(entries)))
        assert [entry["error_class"] for entry in entries] == ["server_error"] * (len(entries) - 1) + [None]
    assert sum(map(len, entries_by_id.values())) == len(received)


@contextlib.contextmanager
def hanging():
    """Serve, and never answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"


def test_an_endpoint_that_hangs_delays_no_other_and_its_attempt_is_logged_late(platform, lane):
    timeout_s = 8
    platform.register([], endpoints=("hangs",), retry={"schedule_s": [], "timeout_s": timeout_s})
    with hanging() as url:
        update(platform, "update endpoints set url = %s where endpoint_id = 'hangs'", url)
        register(platform, lane.job, [to("hangs"), to("beside")], endpoints=("beside",))
        events = postponed(platform, "beside", 50)  # more than two micro-batches take
        hung = postponed(platform, "hangs", 3)
        assert_eventually(lambda: platform.accepted("beside"), lambda got: len(got) == 50)
        assert sorted(platform.accepted("beside")) == sorted(event.event_id for event in events)
        entries = assert_eventually(
            lambda: attempts(platform, "hangs", "beside"), lambda entries: len(entries) >= 53, every_s=0.5
        )
    of_hung = {payload.webhook_id(event, "to-hangs") for event in hung}
    assert [entry["webhook_id"] in of_hung for entry in entries] == [False] * 50 + [True] * 3
    # The worker adds its own delay to the timeout. An attempt is `local` only after the longest extension. The deadline is by
    # the event loop's clock and the duration by the wall clock, which the machine corrects by some ms meanwhile.
    latest_ms = (timeout_s + exchange_deadlines.MAX_EXTENSION_S) * 1000
    assert all(timeout_s * 1000 <= entry["duration_ms"] < latest_ms + 3_000 for entry in entries[50:])
    assert all(entry["error_class"] == "timeout" for entry in entries[50:] if entry["duration_ms"] < latest_ms - 50)
    assert {entry["error_class"] for entry in entries[50:]} <= {"timeout", "local"}


def test_a_stopping_job_ends_attempts_of_both_lanes_and_requeues_others(platform, lane):
    platform.register([], endpoints=("ends",), retry={})
    fields = {"max_in_flight": 1, "retry": {"schedule_s": [], "timeout_s": 60}}
    with Slow() as customers:
        update(platform, "update endpoints set url = %s where endpoint_id = 'ends'", f"{customers.url}/")
        register(platform, lane.job, [to("stops"), to("ends", event_type="ending")], endpoints=("stops",), **fields)
        with platform.receiver.holding_answers_after(0):
            ids = [event.event_id for event in postponed(platform, "stops", 2)]
            assert_eventually(lambda: requests(platform, "stops"), bool)
            published = platform.publish(3, event_type="ending")  # attempts of the direct lane, outside its micro-batches
            assert_eventually(lambda: len(customers.came), lambda count: count == 3)
            stopping = lane.job.process
            stopping.send_signal(signal.SIGTERM)
            assert_eventually(platform.log, lambda text: "stopping: no lane begins another micro-batch" in text)
            # Meanwhile the lanes end and each worker hears of the stop. Before that, an answer lets the other attempt begin.
            with pytest.raises(subprocess.TimeoutExpired):
                stopping.wait(10)
        assert stopping.wait(JOB_TIMEOUT_S) == 0, platform.log()
        assert len(requests(platform, "stops")) == 1
        assert [entry["error_class"] for entry in attempts(platform, "ends")] == [None] * 3

        lane.start()
        assert_eventually(lambda: len(requests(platform, "stops")), lambda count: count >= 2)
        assert_eventually(lane.job.pending, lambda waits: waits == 0)
        assert sorted(platform.accepted("stops")) == sorted(ids)
        assert sorted(customers.came) == sorted(published)


def test_retry_entries_survive_a_kill_and_leave_in_order_after_recovery(platform, lane):
    # One in flight, so that the order in which they leave is that in which they come.
    platform.register([], endpoints=("survives",), max_in_flight=1)
    update(platform, "update endpoints set status = 'paused' where endpoint_id = 'survives'")
    register(platform, lane.job, [to("survives")], endpoints=())
    events = postponed(platform, "survives", 20, reason=retry_reasons.ENDPOINT_PAUSED, attempts=0)
    assert_eventually(lane.job.pending, lambda waits: waits == 20)
    lane.kill()
    update(platform, "create table kept as select * from secrets")
    update(platform, "delete from secrets")
    update(platform, "update endpoints set status = 'active' where endpoint_id = 'survives'")
    events += postponed(platform, "survives", 5, reason=retry_reasons.ENDPOINT_QUARANTINED, attempts=0)

    lane.start()
    assert_eventually(lane.job.pending, lambda waits: waits == 25)
    assert requests(platform, "survives") == []
    update(platform, "insert into secrets select * from kept")
    assert_eventually(lambda: platform.accepted("survives"), lambda got: len(got) >= 25)
    assert_eventually(lane.job.pending, lambda waits: waits == 0)
    assert platform.accepted("survives") == [event.event_id for event in events]


def test_in_the_end_each_delivery_was_accepted_once_and_each_request_logged(platform, lane):
    assert lane.stop() == 0, platform.log()
    sent = collections.Counter(request.webhook_id for request in platform.received)
    accepted = [request.webhook_id for request in platform.received if request.status == 200]
    assert sorted(accepted) == sorted(sent)
    endpoints = {request.path.strip("/") for request in platform.received}
    assert collections.Counter(entry["webhook_id"] for entry in attempts(platform, *endpoints)) == sent
    account = proving.reconcile(platform.config, settle_s=0).account
    assert not any(of_lane.counts.pending for of_lane in account.lanes.values())
    # A postponed event is in no topic of the platform: the account takes it for one of an interrupted micro-batch.
    found = [finding for finding in account.findings.kept if finding.place.topic.startswith(f"{platform.name}.")]
    assert not found, [finding.text() for finding in found]
