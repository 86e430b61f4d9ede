"""A crash is an input like any other: nothing is lost, and what repeats is what was under way."""

import collections
import os
import signal

import orjson
import pytest
from aiohttp import web

from tests.e2e.conftest import JOB_TIMEOUT_S, assert_eventually
from tests.e2e.jobs import postpone, update
from tests.e2e.test_batch_lane import log
from tests.integration.customers import Customers

pytestmark = pytest.mark.e2e
SMALL = {"source": {"max_events_per_batch": 300}}


@pytest.mark.slow
def test_a_driver_killed_in_the_middle_of_a_batch_loses_nothing(platform):
    platform.register([{}])
    ids = platform.publish(3000)
    platform.receiver.hold_answers_after(700)
    job = platform.start("--lanes", "direct", **SMALL)
    assert_eventually(platform.accepted, lambda got: len(got) > 700)
    platform.kill(job)
    assert len(platform.accepted()) < len(ids)
    platform.receiver.release_answers()

    platform.run_once("--lanes", "direct", **SMALL)

    counts = collections.Counter(platform.accepted())
    assert sorted(counts) == sorted(ids)
    # Only the batch under way at the kill is sent again, and each repeat is recognisable.
    repeated = [event_id for event_id, count in counts.items() if count > 1]
    assert len(repeated) <= SMALL["source"]["max_events_per_batch"]
    assert len({request.webhook_id for request in platform.received}) == len(ids)
    platform.assert_adds_up()


def kill_driver(platform, job):
    platform.kill(job)


def kill_jvm(platform, job):
    os.kill(platform.jvm_of(job), signal.SIGKILL)


def kill_workers(platform, job):
    for worker in platform.workers_of(job):
        os.kill(worker, signal.SIGKILL)


LANES = {"direct": (2_000, 1, {}), "batch": (10_000, 10, {"mode": "batch", "batch": {"max_events": 10}})}
"""Events, events of a request, and the endpoint's fields."""


# In the gate, test_broker_away.py kills the driver within a micro-batch of the direct lane.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kill", "mode"),
    [
        (kill_driver, "batch"),
        (kill_jvm, "direct"),
        (kill_jvm, "batch"),
        (kill_workers, "direct"),
        (kill_workers, "batch"),
    ],
)
def test_what_was_delivered_before_a_kill_is_not_delivered_again(platform, kill, mode):
    """All of the micro-batch that was broken off was, and here that is everything there is.

    Workers that are killed do not finish their open requests, so Spark's next try repeats these, and no others.
    """
    count, at_once, fields = LANES[mode]
    answered = count // 2 // at_once
    platform.register([{}], **fields)
    ids = platform.publish(count)
    one_batch = {"source": {"max_events_per_batch": count}}
    platform.receiver.hold_answers_after(answered)
    job = platform.start("--lanes", mode, **one_batch)
    assert_eventually(platform.accepted_requests, lambda got: len(got) > answered)
    assert len(platform.accepted()) < len(ids)
    if kill is kill_workers:  # a busy machine takes a while to write the results of so many answers
        assert_eventually(lambda: platform.ledger().delivered, lambda got: len(got) >= count // 2, every_s=0.5)
    kill(platform, job)
    platform.receiver.release_answers()  # at once: a worker whose JVM is gone waits for answers for 2.5 s
    if kill is kill_jvm:
        assert job.wait(JOB_TIMEOUT_S) != 0
    if kill is kill_workers:
        assert_eventually(platform.accepted, lambda got: len(set(got)) == len(ids))
        assert platform.stop(job) == 0, platform.log()
    else:
        platform.run_once("--lanes", mode, **one_batch)

    counts = collections.Counter(platform.accepted())
    assert sorted(counts) == sorted(ids)
    repeated = {event_id for event_id, count in counts.items() if count > 1}
    if kill is kill_workers:
        done = {event_id for request in platform.accepted_requests()[:answered] for event_id in request}
        assert repeated & done == set()
    else:
        assert repeated == set(), "the workers finish their open requests"
    platform.assert_adds_up()


class Holding(Customers):
    """Accepts a number of events, and answers nothing to the others until the test releases the answers."""

    def __init__(self, at_once):
        super().__init__()
        self.came = []
        self._at_once = at_once

    async def answer(self, request):
        self.came.append(orjson.loads(await request.read())["id"])
        if len(self.came) > self._at_once:
            await self.ended.wait()
        return web.Response()


@pytest.mark.slow
@pytest.mark.parametrize("kill", [kill_driver, kill_jvm, kill_workers])
def test_deliveries_of_a_lease_before_a_kill_are_not_repeated(platform, kill):
    accepted, held = 50, 30  # turns of 4, 8, 16, 32: some of the fourth
    waits_for_all = {"retry": {"settle_s": 60}}
    platform.register([{}], retry={"timeout_s": 60})
    with Holding(accepted) as customers:
        update(platform, "update endpoints set url = %s", f"{customers.url}/")
        ids = sorted(event.event_id for event in postpone(platform, accepted + held))
        job = platform.start("--lanes", "retry", **waits_for_all)
        assert_eventually(lambda: log(platform), lambda entries: len(entries) == accepted, every_s=0.5)
        assert_eventually(lambda: len(customers.came), lambda count: count > accepted)
        before = list(customers.came)
        kill(platform, job)
        customers.end()
        if kill is kill_jvm:  # the driver notices it after a moment, and holds the checkpoint until then
            assert job.wait(JOB_TIMEOUT_S) != 0
        if kill is not kill_workers:
            job = platform.start("--lanes", "retry", **waits_for_all)
        assert_eventually(lambda: set(customers.came), lambda got: got == set(ids))
        assert_eventually(
            lambda: {entry["webhook_id"] for entry in log(platform)},
            lambda webhook_ids: len(webhook_ids) == len(ids),
            every_s=0.5,
        )
        assert platform.stop(job) == 0, platform.log()
        counts = collections.Counter(customers.came)
    assert [counts[event_id] for event_id in before[:accepted]] == [1] * accepted
    # Requests that were in flight, without a response, may repeat.
    assert all(counts[event_id] <= 2 for event_id in before[accepted:])
