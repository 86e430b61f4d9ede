"""A crash is an input like any other: nothing is lost, and what repeats is what was under way."""

import collections

import pytest

from tests.e2e.conftest import assert_eventually

pytestmark = pytest.mark.e2e
SMALL = {"source": {"max_events_per_batch": 300}}


def test_a_driver_killed_in_the_middle_of_a_batch_loses_nothing(platform):
    platform.migrate()
    platform.register([{}])
    ids = platform.publish(3000)
    job = platform.start(**SMALL)
    assert_eventually(platform.accepted, lambda got: len(got) >= 700, within_s=90)
    platform.kill(job)
    before = len(platform.accepted())
    assert before < 3000

    platform.run_once(**SMALL)

    counts = collections.Counter(platform.accepted())
    assert sorted(counts) == sorted(ids)
    # Only the batch under way at the kill is sent again, and each repeat is recognisable.
    repeated = [event_id for event_id, count in counts.items() if count > 1]
    assert len(repeated) <= SMALL["source"]["max_events_per_batch"]
    assert len({one.webhook_id for one in platform.received}) == len(ids)


def test_a_job_asked_to_stop_finishes_what_is_under_way_and_repeats_nothing(platform):
    platform.migrate()
    platform.register([{}])
    ids = platform.publish(3000)
    job = platform.start(**SMALL)
    assert_eventually(platform.accepted, lambda got: len(got) >= 700, within_s=90)
    assert platform.stop(job) == 0, platform.log()
    assert len(platform.accepted()) < 3000

    platform.run_once()

    assert collections.Counter(platform.accepted()) == collections.Counter(ids)
