"""Batches by count and by time, from Kafka to the receiver, and what of them survives."""

import os
import re
import signal

import orjson
import pytest

from tests.e2e.conftest import JOB_TIMEOUT_S, assert_eventually
from tests.e2e.jobs import Job, update

pytestmark = pytest.mark.e2e


def in_batches(**bounds):
    return {"mode": "batch", "batch": bounds}


def log(platform):
    """The entries of the delivery log about batches."""
    rows = map(orjson.loads, platform.read(platform.config.delivery.attempts_topic))
    return [entry for row in rows for entry in row.get("entries", ())]


@pytest.mark.slow
def test_what_waits_survives_a_kill_and_leaves_once(platform):
    platform.register([{}], **in_batches(max_events=5, max_wait_s=600))
    ids = platform.publish(3)
    job = Job(platform, "batch")
    assert_eventually(lambda: job.pending("batch"), lambda waits: waits == 3)
    assert platform.accepted_requests() == []
    os.kill(platform.jvm_of(job.process), signal.SIGKILL)  # test_crashes.py kills the driver, test_one_job.py has a stop
    assert job.process.wait(JOB_TIMEOUT_S) != 0

    ids += platform.publish(2, first=3)
    platform.run_once("--lanes", "batch")
    assert [sorted(batch) for batch in platform.accepted_requests()] == [sorted(ids)]
    platform.assert_adds_up()


@pytest.mark.slow
def test_both_lanes_read_the_same_topics_across_a_new_broadcast_of_the_registry(platform):
    platform.register([{}])
    platform.register([{"id": "b0", "endpoint": "ep2"}], endpoints=("ep2",), **in_batches(max_events=10, max_wait_s=1))
    job = platform.start(source={"max_events_per_batch": 6}, batch={"max_events_per_micro_batch": 12})
    platform.publish_raw("order", b"not JSON")
    ids = platform.publish(20)
    assert_eventually(platform.accepted, lambda got: len(got) == 20)
    assert_eventually(lambda: platform.accepted("ep2"), lambda got: len(got) == 20)

    # More rows than a delta may have.
    for name in ("a", "b"):
        update(platform, "insert into tenants (tenant_id) select %s || n from generate_series(1, 2100) n", name)
    assert_eventually(lambda: platform.log(whole=True), lambda text: text.count(" tenants, ") >= 2)
    ids += platform.publish(20, first=20)

    assert_eventually(platform.accepted, lambda got: len(got) == 40)
    assert_eventually(lambda: platform.accepted("ep2"), lambda got: len(got) == 40)
    assert sorted(platform.accepted()) == sorted(platform.accepted("ep2")) == sorted(ids)
    assert "lane batch restarts with a new plan" in platform.log(whole=True)
    assert platform.stop(job) == 0, platform.log()
    # It looked like a crash: py4j logged a traceback where a lane handed a micro-batch back. A traceback is right only of the
    # process of a plan, if Spark did not wait for it.
    log = platform.log(whole=True)
    crash_like = re.findall("Traceback| ERROR |AQE is not supported|has not been configured", log)
    assert not crash_like or "could not be planned" in log
    committed = re.findall(r"micro-batch committed lane=(\w+) batch=\d+ records=(\d+)", platform.log(whole=True))
    most = {lane: max(int(records) for of, records in committed if of == lane) for lane in ("direct", "batch")}
    assert most["direct"] <= 8 < most["batch"] <= 14  # Spark rounds each partition's share
    assert len(platform.ledger().rejected) == 1
    platform.assert_adds_up()
