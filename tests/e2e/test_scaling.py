"""Executors come and go with what waits, on Spark's standalone cluster on this machine. No event is lost or repeated."""

import collections
import contextlib
import socket

import psutil
import pytest

from tests.e2e.conftest import assert_eventually, metric
from tests.e2e.test_executors import cluster  # noqa: F401  # a fixture

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]
EVENTS = 8_000


@pytest.fixture
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def executors(job):
    """Its executors by process id; whether each has Python workers, and so has had tasks."""
    jvms, with_workers = [], set()
    for child in psutil.Process(job.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            words = " ".join(child.cmdline())
            if "CoarseGrainedExecutorBackend" in words:
                jvms.append(child.pid)
            elif "delivery.stages.worker_daemon" in words:
                with_workers.add(child.ppid())
    return {jvm: jvm in with_workers for jvm in jvms}


def test_executors_come_and_go_with_the_load_and_lose_and_repeat_nothing(platform, cluster, port):  # noqa: F811
    platform.register([{}])
    platform.register(
        [{"id": "s1", "endpoint": "ep2"}], endpoints=["ep2"], mode="batch", batch={"max_events": 100, "max_wait_s": 1}
    )
    platform.create_topic("order", partitions=4)
    job = platform.start(
        "--lanes",
        "direct,batch",
        spark={"master": "local-cluster[2,2,1024]", "conf": {**cluster["conf"], "spark.executor.cores": "2"}},
        source={"max_events_per_batch": 300},
        batch={"max_events_per_micro_batch": 300},
        scaling={"max_executors": 2, "interval_s": 1, "drain_within_s": 5, "scale_in_after_s": 5},
        metrics={"port": port},
    )
    assert_eventually(lambda: metric(port, 'ready{lane="direct"}'), lambda got: got == 1)
    assert_eventually(lambda: metric(port, "executors"), lambda got: got == 1)

    ids = platform.publish(EVENTS)
    assert_eventually(lambda: executors(job), lambda got: list(got.values()) == [True, True])
    assert len(platform.accepted()) < EVENTS

    assert_eventually(lambda: len(platform.accepted()), lambda got: got >= EVENTS)
    assert_eventually(lambda: executors(job), lambda got: len(got) == 1)
    ids += platform.publish(100, first=EVENTS)
    assert_eventually(lambda: len(platform.accepted()), lambda got: got >= EVENTS + 100)
    assert platform.stop(job) == 0, platform.log()

    assert collections.Counter(platform.accepted()) == collections.Counter(ids)
    platform.assert_adds_up()
    log = platform.log(whole=True)
    assert "executors wanted: 2 in place of 1, because the lag would not drain within 5 s" in log
    assert "executors wanted: 1 in place of 2, because fewer would have sufficed for 5 s" in log
    assert "an executor has ended" not in log
