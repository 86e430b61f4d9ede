"""The retry lane as the only lane of a job: its endpoints fail and hang, and the job is stopped and killed.

The tests share a job, as its start takes most of the time: one test stops it and starts the next, another one kills that. Each
test has endpoints of its own, and needs no test before it. The last one compares all requests of the others with the log.
"""

import collections
import contextlib
import itertools
import signal
import socket
import subprocess
import uuid

import orjson
import pytest

from delivery.webhooks.http import exchange_deadlines
from delivery.webhooks.policy import retry_reasons
from delivery.webhooks.sending import payload
from tests.e2e.conftest import JOB_TIMEOUT_S, START_S, Platform, assert_eventually
from tests.e2e.test_one_job import register
from tests.e2e.test_retry_lane import OFTEN, Job, postpone, update
from tests.support import databases

pytestmark = pytest.mark.e2e


class Lane:
    """The job that runs the retry lane now."""

    def __init__(self, platform):
        self._platform = platform
        self.start()

    def start(self):
        # `stop_within_s`: a test holds an answer for 10 s while the job stops.
        self.job = Job(self._platform, delivery={"stop_within_s": 20})
        assert_eventually(lambda: self.job.metric('ready{lane="retry"}'), lambda ready: ready == 1, within_s=START_S)

    def stop(self):
        return self._platform.stop(self.job.process)

    def kill(self):
        self._platform.kill(self.job.process)


@pytest.fixture(scope="module")
def shared(kafka, postgres, tmp_path_factory):
    """The platform, and its running lane."""
    database = databases.create_migrated(postgres, f"test_{uuid.uuid4().hex[:12]}")
    platform = Platform(kafka, database, tmp_path_factory.mktemp("retry-lane"))
    with platform.receiving():
        yield platform, Lane(platform)
        platform.close()


@pytest.fixture
def platform(shared):
    return shared[0]


@pytest.fixture
def lane(shared):
    return shared[1]


def to(endpoint):
    """Return a subscription of this endpoint, for `register`."""
    return {"id": f"to-{endpoint}", "endpoint": endpoint}


def postponed(platform, endpoint, count, **fields):
    """Hand events for this endpoint over to the retry lane; return them in their order."""
    return postpone(platform, count, endpoint=endpoint, through=f"to-{endpoint}", **fields)


def requests(platform, endpoint):
    return [request for request in platform.received if request.path == f"/{endpoint}"]


def attempts(platform, *endpoints):
    """Return the attempts at these endpoints, in the order of the log."""
    rows = map(orjson.loads, platform.read(platform.config.delivery.attempts_topic))
    entries = itertools.chain.from_iterable(row["entries"] for row in rows if row.get("endpoint_id") in endpoints)
    return [entry for entry in entries if entry["kind"] == "attempt"]


def test_an_endpoint_that_fails_and_recovers_gets_everything_once(platform, lane):
    register(platform, lane.job, [to("fails")], endpoints=("fails",), retry=OFTEN)
    platform.statuses["fails"] = 500
    events = postponed(platform, "fails", 30)
    assert_eventually(lambda: len(requests(platform, "fails")), lambda count: count >= 5, within_s=START_S)
    assert_eventually(lambda: lane.job.metric("held_endpoints"), lambda held: held == 1, within_s=30)
    platform.statuses["fails"] = 200
    assert_eventually(lambda: platform.accepted("fails"), lambda got: len(got) == 30, within_s=90)
    assert_eventually(lane.job.pending, lambda waits: waits == 0, within_s=30)

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
        assert_eventually(lambda: platform.accepted("beside"), lambda got: len(got) == 50, within_s=START_S)
        assert sorted(platform.accepted("beside")) == sorted(event.event_id for event in events)
        entries = assert_eventually(
            lambda: attempts(platform, "hangs", "beside"), lambda entries: len(entries) >= 53, within_s=60, every_s=0.5
        )
    of_hung = {payload.webhook_id(event, "to-hangs") for event in hung}
    assert [entry["webhook_id"] in of_hung for entry in entries] == [False] * 50 + [True] * 3
    # The worker adds its own delay to the timeout. An attempt is `local` only after the longest extension. The deadline is by
    # the event loop's clock and the duration by the wall clock, which the machine corrects by some ms meanwhile.
    latest_ms = (timeout_s + exchange_deadlines.MAX_EXTENSION_S) * 1000
    assert all(timeout_s * 1000 <= entry["duration_ms"] < latest_ms + 3_000 for entry in entries[50:])
    assert all(entry["error_class"] == "timeout" for entry in entries[50:] if entry["duration_ms"] < latest_ms - 50)
    assert {entry["error_class"] for entry in entries[50:]} <= {"timeout", "local"}


def test_a_stopping_job_ends_attempts_of_the_retry_lane_and_requeues_others(platform, lane):
    fields = {"max_in_flight": 1, "retry": {"schedule_s": [], "timeout_s": 60}}
    register(platform, lane.job, [to("stops")], endpoints=("stops",), **fields)
    platform.receiver.hold_answers_after(0)
    ids = [event.event_id for event in postponed(platform, "stops", 2)]
    assert_eventually(lambda: requests(platform, "stops"), bool, within_s=START_S)
    stopping = lane.job.process
    stopping.send_signal(signal.SIGTERM)
    assert_eventually(platform.log, lambda text: "stopping: no lane begins another micro-batch" in text)
    # Meanwhile the lane ends and each worker hears of the stop. Before that, an answer lets the other attempt begin.
    with pytest.raises(subprocess.TimeoutExpired):
        stopping.wait(10)
    platform.receiver.release_answers()
    assert stopping.wait(JOB_TIMEOUT_S) == 0, platform.log()
    assert len(requests(platform, "stops")) == 1

    lane.start()
    assert_eventually(lambda: len(requests(platform, "stops")), lambda count: count >= 2, within_s=START_S)
    assert_eventually(lane.job.pending, lambda waits: waits == 0, within_s=60)
    assert sorted(platform.accepted("stops")) == sorted(ids)


def test_retry_entries_survive_a_kill_and_leave_in_order_after_recovery(platform, lane):
    # One in flight, so that the order in which they leave is that in which they come.
    platform.register([], endpoints=("survives",), max_in_flight=1)
    update(platform, "update endpoints set status = 'paused' where endpoint_id = 'survives'")
    register(platform, lane.job, [to("survives")], endpoints=())
    events = postponed(platform, "survives", 20, reason=retry_reasons.ENDPOINT_PAUSED, attempts=0)
    assert_eventually(lane.job.pending, lambda waits: waits == 20, within_s=START_S)
    lane.kill()
    update(platform, "create table kept as select * from secrets")
    update(platform, "delete from secrets")
    update(platform, "update endpoints set status = 'active' where endpoint_id = 'survives'")
    events += postponed(platform, "survives", 5, reason=retry_reasons.ENDPOINT_QUARANTINED, attempts=0)

    lane.start()
    assert_eventually(lane.job.pending, lambda waits: waits == 25, within_s=START_S)
    assert requests(platform, "survives") == []
    update(platform, "insert into secrets select * from kept")
    assert_eventually(lambda: platform.accepted("survives"), lambda got: len(got) >= 25, within_s=60)
    assert_eventually(lane.job.pending, lambda waits: waits == 0, within_s=30)
    assert platform.accepted("survives") == [event.event_id for event in events]


def test_in_the_end_each_delivery_was_accepted_once_and_each_request_logged(platform, lane):
    assert lane.stop() == 0, platform.log()
    sent = collections.Counter(request.webhook_id for request in platform.received)
    accepted = [request.webhook_id for request in platform.received if request.status == 200]
    assert sorted(accepted) == sorted(sent)
    endpoints = {request.path.strip("/") for request in platform.received}
    assert collections.Counter(entry["webhook_id"] for entry in attempts(platform, *endpoints)) == sent
