"""The real-time lane on real Kafka: delivered while a batch lasts, by a registry that changes, through kills and a stop."""

import itertools
import os
import signal

import pytest

from delivery.webhooks.batching import segment
from delivery.webhooks.retries import retry_records
from tests.e2e.conftest import JOB_TIMEOUT_S, assert_eventually

pytestmark = pytest.mark.e2e
STOPPING = "stopping: no lane begins another micro-batch"


def settings_of(platform):
    return {
        "source": {"topic_pattern": f"{platform.name}\\..+", "realtime_pattern": f"{platform.name}\\.(order|later)"},
        "spark": {"checkpoint": str(platform.folder / "checkpoint"), "driver_memory": "1g", "master": "local[5,4]"},
        "realtime": {"batch_s": 600},
        # A task that stops delivers what it has begun: thousands of events, which take a busy machine more than the 13 s of 3.
        "delivery": {"stop_within_s": 60},
    }


def start(platform, *arguments, **overrides):
    return platform.start("--lanes", "realtime", *arguments, **{**settings_of(platform), **overrides})


def assert_written(platform):
    """See that all that ep2 has accepted stands in its topic: what does not yet is delivered once more after a kill."""
    accepted = len(set(platform.accepted("ep2")))
    assert_eventually(
        lambda: platform.ledger().delivered,
        lambda got: sum(delivery.subscription_id == "s1" for delivery in got) >= accepted,
        every_s=0.5,
    )


def deferred(platform):
    """The ids of the events that wait for the retry lane, which does not run. A machine that is far too busy has some."""
    messages = retry_records.messages(*platform.read(platform.config.delivery.retries_topic))
    return {segment.unpacked(event).event_id for message in messages for entry in message.entries for event in entry.packed}


def begin_to_stop(platform, job):
    """Ask a job to stop while the receiver holds answers to its requests."""
    assert_eventually(lambda: platform.receiver.is_holding() and platform.workers_of(job), bool)
    stops = platform.log(whole=True).count(STOPPING)
    job.send_signal(signal.SIGTERM)
    assert_eventually(lambda: platform.log(whole=True).count(STOPPING), lambda count: count > stops)


def assert_stops_amid(platform, job, ids):
    """Stop a job gracefully when it has delivered 100 of these events."""
    begin_to_stop(platform, job)
    platform.receiver.release_answers()
    assert job.wait(JOB_TIMEOUT_S) == 0, platform.log()
    assert not set(ids) <= set(platform.accepted("ep2"))


def stopped_while_events_come(platform, job):
    """Stop a job gracefully when it has delivered 100 of 1,000 events, while more keep coming; return the ids of all.

    The tasks learn of the stop some time after the job. Meanwhile the receiver lets a few answers go at a time: an idle task
    on a busy machine would deliver the rest before it learns.
    """
    platform.receiver.hold_answers_after(100)
    ids = platform.publish(1000, first=10_000)
    published_before = set(ids)
    begin_to_stop(platform, job)
    numbers = itertools.count(20_000, 10)

    def ended():
        platform.receiver.release_held_answers()
        ids.extend(platform.publish(10, first=next(numbers)))
        return job.poll()

    assert assert_eventually(ended, lambda status: status is not None, within_s=JOB_TIMEOUT_S) == 0, platform.log()
    platform.receiver.release_answers()
    assert not published_before <= set(platform.accepted("ep2"))
    return ids


def assert_the_rest_arrives(platform, ids):
    """See that the next job delivers what the jobs before did not, and nothing twice."""
    assert start(platform, "--once").wait(JOB_TIMEOUT_S) == 0, platform.log()
    got = platform.accepted("ep2")
    assert len(got) == len(set(got))
    assert set(ids) - set(got) <= deferred(platform)
    platform.assert_adds_up()


def test_realtime_lane_follows_the_registry_and_survives_killed_workers(platform):
    """Then it stops while events come, and the next job delivers the rest in micro-batches."""
    platform.register([{}, {"endpoint": "ep2"}], endpoints=("ep1", "ep2"))
    ids = platform.publish(20)
    job = start(platform)
    assert_eventually(lambda: set(platform.accepted()), lambda got: got == set(ids))
    platform.assert_deletion_takes_effect()

    ids = platform.publish(20, first=2000)
    assert_eventually(lambda: set(platform.accepted("ep2")), lambda got: set(ids) <= got)
    assert_written(platform)
    for worker in platform.workers_of(job):
        os.kill(worker, signal.SIGKILL)
    ids = platform.publish(20, first=3000)
    assert_eventually(lambda: set(platform.accepted("ep2")), lambda got: set(ids) <= got)

    assert_the_rest_arrives(platform, stopped_while_events_come(platform, job))


@pytest.mark.slow
def test_realtime_lane_survives_a_killed_driver_and_stops_amid_micro_batches(platform):
    """It catches up with 30,000 events: a stop comes in real time, another one in micro-batches."""
    platform.register([{"id": "s1", "endpoint": "ep2"}], endpoints=("ep2",))
    ids = platform.publish(20)
    job = start(platform)
    assert_eventually(lambda: set(platform.accepted("ep2")), lambda got: got == set(ids))

    assert_written(platform)
    platform.kill(job)
    ids = platform.publish(20, first=4000)
    job = start(platform)
    assert_eventually(lambda: set(platform.accepted("ep2")), lambda got: set(ids) <= got)

    platform.receiver.hold_answers_after(100)
    ids = platform.publish(30_000, first=10_000)
    assert_stops_amid(platform, job, ids)
    platform.receiver.hold_answers_after(100)
    assert_stops_amid(platform, start(platform, "--once"), ids)
    assert_the_rest_arrives(platform, ids)
