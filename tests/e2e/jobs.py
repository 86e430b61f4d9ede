"""Helpers for tests of a job that runs: its metrics, changes of its registry, and events that wait in its retry lane."""

from __future__ import annotations

import itertools
import time

from confluent_kafka import Producer

from delivery.config import kafka_clients
from delivery.registry_model import CustomerId, EndpointId
from delivery.stages.kafka import topics
from delivery.webhooks.retries import retry_messages, retry_records
from fanout.local import kafka_server as local_kafka
from subscriptions_db.postgres import connect
from subscriptions_db.registration import registered_rows
from tests.e2e.conftest import START_S, assert_eventually, metric
from tests.support import builders
from tests.support.leases import waiting

OFTEN = {"schedule_s": [1] * 20}
"""Fields `retry` of an endpoint: seconds between attempts."""
SOON = {"probe_interval_s": 1, "max_probe_interval_s": 1}
"""Settings of the area `retry`: a failing endpoint is probed each second."""
_numbers = itertools.count()


class Job:
    """A job with some lanes, the retry lane by default, whose metrics a test reads."""

    def __init__(self, platform, *lanes, **overrides):
        self.port = local_kafka.free_port()
        self.lanes = lanes or ("retry",)
        chosen = ("--lanes", ",".join(self.lanes))
        self.process = platform.start(*chosen, metrics={"port": self.port}, **{"retry": SOON} | overrides)

    def metric(self, name):
        return metric(self.port, name)

    def pending(self, lane="retry"):
        """Return the number of events that wait in a lane."""
        return self.metric(f'pending_events{{lane="{lane}"}}')

    def assert_ready(self):
        """Wait until each lane is ready; fail at once if the job has ended."""
        ready = [f'ready{{lane="{lane}"}}' for lane in self.lanes]

        def known():
            assert self.process.poll() is None, "the job has ended"
            return [self.metric(name) for name in ready]

        assert_eventually(known, lambda values: values == [1] * len(ready), within_s=START_S)


def update(platform, statement, *values):
    """Change the registry by plain SQL."""
    with connect.connect(platform.config.database) as connection:
        connection.execute(statement, values)


def register(platform, job, subscriptions, **fields):
    """Register, and wait until the running job routes by it."""
    platform.register(subscriptions, **fields)
    with connect.connect(platform.config.database) as connection:
        revision = registered_rows.revision(connection)
    assert_eventually(lambda: job.metric("registry_revision"), lambda known: known is not None and known >= revision)


def postpone(platform, count, *, endpoint="ep1", through="s0", **fields):
    """Hand events over to the retry lane, as a fast lane does after one attempt; return them in their order.

    The events are in no topic of the platform.
    """
    now_ms = int(time.time() * 1000)
    numbers = [next(_numbers) for _ in range(count)]
    events = [builders.event(event_id=f"e{n}", event_type="order", record=builders.record(offset=n)) for n in numbers]
    defaults = {"again_at_ms": now_ms, "since_ms": now_ms, "expires_ms": now_ms + 3_600_000, "attempts": 1}
    parcels = [waiting(event, through=(through,), **defaults | fields) for event in events]
    config = platform.config
    topics.ensure_all(config)
    producer = Producer(kafka_clients.for_librdkafka(config.kafka))
    written = retry_messages.encoded(retry_messages.Postponed(EndpointId(endpoint), CustomerId("c1"), parcels))
    for key, value, _ in retry_records.records(endpoint.encode(), written):
        producer.produce(config.delivery.retries_topic, key=key, value=value)
    assert producer.flush(10) == 0
    return events
