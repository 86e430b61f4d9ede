"""The broker is killed, and restarted in order, in the middle of a micro-batch: the job waits for it, and goes on by itself."""

import collections

import pytest

from tests.e2e.conftest import assert_eventually

pytestmark = pytest.mark.e2e
EACH = 3000
ONE_BATCH = {"source": {"max_events_per_batch": EACH}}


def test_a_broker_that_is_killed_or_restarted_is_waited_for_and_nothing_is_lost_or_sent_twice(platform, own_kafka):
    platform._kafka = own_kafka
    platform.migrate()
    platform.register([{}])
    job = platform.start("--lanes", "direct", **ONE_BATCH)
    ids = []

    def taken(count):
        return assert_eventually(platform.accepted, lambda got: len(got) >= count, within_s=150)

    for end in (own_kafka.kill, own_kafka.stop):
        before = len(ids)
        ids += platform.publish(EACH, first=before)
        assert len(taken(before + 300)) < len(ids)
        end()
        own_kafka.start()
        taken(len(ids))

    ids += platform.publish(10, first=len(ids))
    taken(len(ids))
    assert platform.stop(job) == 0, platform.log()
    assert collections.Counter(platform.accepted()) == collections.Counter(ids)
    assert platform.ledger().pending() == 0
