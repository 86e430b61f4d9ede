"""Batches by count and by time, from Kafka to the receiver, and what of them survives."""

import collections
import time

import orjson
import pytest

from subscriptions_db import connect
from tests.e2e.conftest import assert_eventually

pytestmark = pytest.mark.e2e


def batches(platform, endpoint="ep1"):
    """The event ids of each batch that the endpoint took."""
    return [
        [event["id"] for event in orjson.loads(one.body)]
        for one in list(platform.received)
        if one.path == f"/{endpoint}" and one.status == 200
    ]


def events(platform, endpoint="ep1"):
    return [event_id for batch in batches(platform, endpoint) for event_id in batch]


def in_batches(**bounds):
    return {"mode": "batch", "batch": bounds}


def update(platform, statement, *values):
    with connect.connect(platform.config.database) as connection:
        connection.execute(statement, values)


def test_a_batch_leaves_by_count_and_the_rest_by_time_with_no_new_input(platform):
    platform.migrate()
    platform.register([{}], **in_batches(max_events=5, max_wait_s=3))
    job = platform.start("--lanes", "batch")
    ids = platform.publish(9)
    assert_eventually(lambda: events(platform), lambda got: len(got) == 9, within_s=90)
    assert sorted(map(len, batches(platform))) in ([4, 5], [1, 1, 2, 5], [2, 2, 5], [1, 3, 5])
    assert sorted(events(platform)) == sorted(ids)
    assert all(one.is_verified for one in platform.received)
    assert platform.stop(job) == 0, platform.log()
    assert set(platform.ledger().delivered) == {(event_id, "s0") for event_id in ids}
