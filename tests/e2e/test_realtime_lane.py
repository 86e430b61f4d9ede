"""The real-time lane on real Kafka: delivered while a batch lasts, by a registry that changes, through kills and a stop."""

import os
import signal

import pytest

from tests.e2e.conftest import assert_eventually

pytestmark = pytest.mark.e2e


def settings_of(platform):
    return {
        "source": {"topic_pattern": f"{platform.name}\\..+", "realtime_pattern": f"{platform.name}\\.(order|later)"},
        "spark": {"checkpoint": str(platform.folder / "checkpoint"), "driver_memory": "1g", "master": "local[5,4]"},
        "realtime": {"batch_s": 600},
    }


def start(platform, *arguments, **overrides):
    return platform.start("--lanes", "realtime", *arguments, **{**settings_of(platform), **overrides})


def assert_written(platform):
    """See that all that ep2 has accepted stands in its topic: what does not yet is delivered once more after a kill."""
    accepted = len(set(platform.accepted("ep2")))
    assert_eventually(
        lambda: platform.ledger().delivered, lambda got: sum(one.subscription_id == "s1" for one in got) >= accepted
    )


def assert_stops_amid(platform, job, ids):
    """Stop a job in order when it has delivered more of these, while many are still unread."""
    before = len(platform.received)
    assert_eventually(lambda: len(platform.received), lambda got: got > before, within_s=240)
    assert platform.stop(job) == 0, platform.log()
    assert not set(ids) <= set(platform.accepted("ep2"))


def test_realtime_lane_survives_kills_and_follows_the_registry(platform):
    platform.migrate()
    platform.register([{}, {"endpoint": "ep2"}], endpoints=("ep1", "ep2"))
    ids = platform.publish(20)
    job = start(platform)
    assert_eventually(lambda: set(platform.accepted()), lambda got: got == set(ids), within_s=240)
    platform.assert_deletion_takes_effect()

    ids = platform.publish(20, first=2000)
    assert_eventually(lambda: set(platform.accepted("ep2")), lambda got: set(ids) <= got)
    assert_written(platform)
    for worker in platform.workers_of(job):
        os.kill(worker, signal.SIGKILL)
    ids = platform.publish(20, first=3000)
    assert_eventually(lambda: set(platform.accepted("ep2")), lambda got: set(ids) <= got)

    assert_written(platform)
    platform.kill(job)
    ids = platform.publish(20, first=4000)
    job = start(platform)
    assert_eventually(lambda: set(platform.accepted("ep2")), lambda got: set(ids) <= got, within_s=240)

    ids = platform.publish(30_000, first=10_000)
    assert_stops_amid(platform, job, ids)
    assert_stops_amid(platform, start(platform, "--once"), ids)  # in micro-batches
    assert start(platform, "--once").wait(240) == 0, platform.log()
    got = platform.accepted("ep2")
    assert set(ids) <= set(got)
    assert len(got) == len(set(got))
    platform.assert_adds_up()
