"""Many endpoints of one job with all lanes. The tests share its start, which takes most of the time.

Each test has endpoints and event types of its own. The last one stops the job, starts the next, and proves that everything
adds up.
"""

import collections
import contextlib
import itertools
import signal
import time
import uuid

import orjson
import pytest
import standardwebhooks
from aiohttp import web

from fanout.admin import registry_commands
from fanout.local import stack
from subscriptions_db.postgres import connect
from tests.e2e.conftest import JOB_TIMEOUT_S, Platform, assert_eventually
from tests.e2e.jobs import OFTEN, SOON, Job, register, update
from tests.e2e.test_batch_lane import in_batches
from tests.integration.customers import Customers
from tests.support import databases

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def shared(kafka, postgres, tmp_path_factory):
    """The platform, and its running job."""
    database = databases.create_migrated(postgres, f"test_{uuid.uuid4().hex[:12]}")
    platform = Platform(kafka, database, tmp_path_factory.mktemp("one-job"))
    # A test stops the job within one of many micro-batches. Micro-batches of a busy machine take seconds: an endpoint that
    # fails meanwhile must not be disabled.
    small = {"source": {"max_events_per_batch": 300}}
    with platform.receiving(), contextlib.closing(platform):
        for event_type in ("quiet", "counted", "followed", "failing", "refused", "collected", "stopped"):
            platform.create_topic(event_type)
        job = Job(platform, "direct", "batch", "retry", retry=SOON | {"disable_after_s": 10}, **small)
        job.assert_ready()
        yield platform, job


@pytest.fixture
def platform(shared):
    return shared[0]


@pytest.fixture
def job(shared):
    return shared[1]


def test_all_lanes_run_together_and_the_retry_lane_is_quiet_when_nothing_waits(platform, job):
    quiet = {"id": "quiet", "endpoint": "quiet", "event_type": "quiet"}
    register(platform, job, [quiet], endpoints=("quiet",), retry=OFTEN)
    ids = platform.publish(5, event_type="quiet")
    assert_eventually(lambda: platform.accepted("quiet"), lambda got: len(got) == 5)
    platform.statuses["quiet"] = 500
    retried = platform.publish(1, event_type="quiet", first=5)
    # One failure, and not a wait for the metric: an endpoint that fails for some seconds is disabled.
    assert_eventually(lambda: [request for request in list(platform.received) if request.path == "/quiet"][5:], bool)
    platform.statuses["quiet"] = 200
    assert_eventually(lambda: platform.accepted("quiet"), lambda got: got[5:] == retried)
    assert sorted(platform.accepted("quiet")[:5]) == sorted(ids)
    assert_eventually(job.pending, lambda waits: waits == 0)

    def read_so_far():
        return assert_eventually(lambda: job.metric('records_total{lane="retry"}'), lambda count: count is not None)

    def came_in_10_s():
        before = read_so_far()
        time.sleep(10)
        return read_so_far() - before

    # The report is read, the tick that was on its way as well, and then no further micro-batch comes, but one each 45 s.
    assert_eventually(came_in_10_s, lambda count: count == 0)


def batch_entries(platform, endpoint):
    """Return the entries of the attempts topic about the batches of an endpoint."""
    rows = map(orjson.loads, platform.read(platform.config.delivery.attempts_topic))
    return [entry for row in rows if row.get("endpoint_id") == endpoint for entry in row["entries"]]


def test_a_batch_leaves_by_count_and_the_rest_by_time_with_no_new_input(platform, job):
    register(
        platform,
        job,
        [{"id": "counted", "endpoint": "counted", "event_type": "counted"}],
        endpoints=("counted",),
        **in_batches(max_events=5, max_wait_s=8),
    )
    ids = platform.publish(9, event_type="counted")
    assert_eventually(lambda: platform.accepted("counted"), lambda got: len(got) == 9)
    assert [len(batch) for batch in platform.accepted_requests("counted")] == [5, 4]
    assert sorted(platform.accepted("counted")) == sorted(ids)
    assert all(request.is_verified for request in platform.received if request.path == "/counted")
    entries = assert_eventually(lambda: batch_entries(platform, "counted"), lambda entries: len(entries) == 2)
    assert [(entry["kind"], entry["count"]) for entry in entries] == [("batch_attempt", 5), ("batch_attempt", 4)]


def test_what_waits_leaves_by_what_the_registry_says_when_it_leaves(platform, job):
    names = ("stays", "moved", "resigned", "paused", "deleted")
    subscriptions = [{"id": f"to-{name}", "endpoint": name, "event_type": "followed"} for name in names]
    fields = in_batches(max_events=100, max_wait_s=40)
    register(platform, job, subscriptions, endpoints=names, **fields)
    ids = platform.publish(3, event_type="followed")
    assert_eventually(lambda: job.pending("batch"), lambda waits: waits == 3 * len(names))

    another = "whsec_YW5vdGhlcnNlY3JldGFub3RoZXJzZWNyZXRhbm90aGVy"
    platform.register([], endpoints=("resigned",), signing_secrets=[another], **fields)
    update(platform, "update endpoints set url = %s where endpoint_id = 'moved'", f"{platform.receiver.url}/elsewhere")
    update(platform, "update endpoints set status = 'paused' where endpoint_id = 'paused'")
    update(platform, "delete from subscriptions where endpoint_id = 'deleted'")
    update(platform, "delete from endpoints where endpoint_id = 'deleted'")

    assert_eventually(lambda: job.pending("batch"), lambda waits: waits == 0)
    ours = {*names, "elsewhere"}
    took = {request.path.strip("/"): request for request in platform.received if request.path.strip("/") in ours}
    assert sorted(took) == ["elsewhere", "resigned", "stays"]
    assert all(sorted(platform.accepted(name)) == ids for name in took)
    assert took["stays"].is_verified
    assert not took["resigned"].is_verified
    standardwebhooks.Webhook(another).verify(took["resigned"].body, took["resigned"].headers)
    [postponed], [skipped] = (
        assert_eventually(lambda name=name: batch_entries(platform, name), bool) for name in ("paused", "deleted")
    )
    assert (postponed["kind"], postponed["reason"], postponed["count"]) == ("batch_postponed", "endpoint_paused", 3)
    assert (skipped["kind"], skipped["reason"], skipped["count"]) == ("batch_skipped", "endpoint_deleted", 3)


def statuses(platform, names):
    with connect.connect(platform.config.database) as connection:
        rows = connection.execute(
            "select endpoint_id, status, disabled_reason from endpoints where endpoint_id = any(%s) order by endpoint_id",
            [list(names)],
        )
        return [(row["endpoint_id"], row["status"], row["disabled_reason"]) for row in rows]


def test_only_an_endpoint_whose_attempts_all_fail_is_disabled(platform, job):
    names = ("fails", "works")
    platform.statuses["fails"] = 500
    subscriptions = [{"id": f"to-{name}", "endpoint": name, "event_type": "failing"} for name in names]
    register(platform, job, subscriptions, endpoints=names, retry=OFTEN)
    first = platform.publish(3, event_type="failing")

    expected = [("fails", "disabled", "failing"), ("works", "active", None)]
    assert_eventually(lambda: statuses(platform, names), lambda got: got == expected)
    assert sorted(platform.accepted("works")) == sorted(first)

    platform.statuses["fails"] = 200
    update(platform, "update endpoints set status = 'active' where endpoint_id = 'fails'")
    assert_eventually(lambda: platform.accepted("fails"), lambda got: sorted(got) == sorted(first))


class Refusing(Customers):
    """Refuses one event for ever, and takes all others."""

    def __init__(self, event_id):
        super().__init__()
        self.refused = 0
        self._event_id = event_id

    async def answer(self, request):
        if orjson.loads(await request.read())["data"]["id"] != self._event_id:
            return web.Response()
        self.refused += 1
        return web.Response(status=422)


def test_an_endpoint_is_disabled_only_if_it_accepts_no_event(platform, job):
    names = ("accepts", "refuses", "unscheduled")
    platform.statuses |= {"refuses": 404, "unscheduled": 500}
    with Refusing("e0") as customers:
        for name in names:
            platform.register([], endpoints=(name,), retry={"schedule_s": [] if name == "unscheduled" else [1] * 50})
        update(platform, "update endpoints set url = %s where endpoint_id = 'accepts'", f"{customers.url}/")
        subscriptions = [{"id": f"to-{name}", "endpoint": name, "event_type": "refused"} for name in names]
        register(platform, job, subscriptions, endpoints=())
        numbers = itertools.count()

        def time_goes_on():
            platform.publish(1, event_type="refused", first=next(numbers))
            active, *others = statuses(platform, names)
            assert active == ("accepts", "active", None)
            return others

        disabled = [("refuses", "disabled", "failing"), ("unscheduled", "disabled", "failing")]
        assert_eventually(time_goes_on, lambda others: others == disabled, every_s=0.5)
        refused = customers.refused
        assert_eventually(lambda: time_goes_on() and customers.refused, lambda got: got >= refused + 6, every_s=0.5)


def test_a_job_asked_to_stop_finishes_what_is_under_way_and_repeats_nothing(platform, job):
    """It stops within a micro-batch of the direct lane, and while events wait for their batch.

    All secrets are sealed with another key then, and the next job does without the old one.
    """
    collects = {"id": "collects", "endpoint": "collects", "event_type": "collected"}
    register(platform, job, [collects], endpoints=("collects",), **in_batches(max_events=5, max_wait_s=600))
    register(platform, job, [{"id": "stops", "endpoint": "stops", "event_type": "stopped"}], endpoints=("stops",))
    collected = platform.publish(3, event_type="collected")
    assert_eventually(lambda: job.pending("batch"), lambda waits: waits == 3)
    with platform.receiver.holding_answers_after(700):
        ids = platform.publish(3000, event_type="stopped")
        assert_eventually(lambda: platform.accepted("stops"), lambda got: len(got) > 700)
        job.process.send_signal(signal.SIGINT)  # as Ctrl-C; other tests send SIGTERM
        assert_eventually(platform.log, lambda text: "stopping: no lane begins another micro-batch" in text)
    assert job.process.wait(JOB_TIMEOUT_S) == 0, platform.log()
    assert len(platform.accepted("stops")) < 3000
    assert platform.accepted_requests("collects") == []

    collected += platform.publish(2, event_type="collected", first=3)
    platform.keys["ring"]["new"] = stack.new_key()
    platform.keys["active"] = "new"
    assert registry_commands.rotate_keys(platform.config) > 0
    del platform.keys["ring"]["test"]
    platform.run_once("--lanes", "direct,batch")
    assert collections.Counter(platform.accepted("stops")) == collections.Counter(ids)
    assert [sorted(batch) for batch in platform.accepted_requests("collects")] == [sorted(collected)]
    assert all(request.is_verified for request in platform.received if request.path in {"/stops", "/collects"})
    platform.assert_adds_up()
