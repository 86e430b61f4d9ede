"""The lag of a lane, as the scaling of executors gets it. Without Kafka."""

import threading
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from delivery.config import kafka_clients, settings
from delivery.observability import health
from delivery.stages.kafka import lag

CONFIG = settings.Settings()
TICKS = {CONFIG.batch.ticks_topic: {0: 7}}


class Once(threading.Event):
    """An event that the first wait sets, so that Kafka is asked once."""

    def wait(self, *_):
        self.set()


class Admin:
    """A Kafka whose partitions all end at offset 10."""

    def list_topics(self, **_):
        return SimpleNamespace(brokers={1: "127.0.0.1:9092"})

    def __init__(self, gone=()):
        self._gone = gone

    def list_offsets(self, asked, **_):
        return {partition: SimpleNamespace(result=lambda topic=partition.topic: self._end(topic)) for partition in asked}

    def _end(self, topic):
        if topic in self._gone:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        return SimpleNamespace(offset=10)


@pytest.mark.parametrize(
    ("positions", "paused", "has_no_topics", "expected"),
    [
        pytest.param({}, {}, False, (None, False), id="no progress yet"),
        pytest.param({}, {}, True, (None, True), id="the query found no topic"),
        pytest.param(TICKS, {}, False, (None, True), id="only the lane's wake-up topic"),
        pytest.param({}, {"events.a": {0: 4}}, True, (None, False), id="its only topic is paused"),
        pytest.param({"events.a": {0: 4}}, {}, False, (6, False), id="a topic"),
    ],
)
def test_no_topic_is_not_an_unknown_lag(monkeypatch, positions, paused, has_no_topics, expected):
    monkeypatch.setattr(kafka_clients, "admin", lambda _: Admin())
    watch = health.Watch(pause_reason=lambda: None, stop=threading.Event())
    watch.has_no_topics = has_no_topics
    watch.reach(positions)
    watch.pause_topics(paused)
    lag._poll(CONFIG, "batch", watch, Once())
    assert (watch.backlog.lag, watch.backlog.has_no_topics) == expected


@pytest.mark.parametrize(("paused", "lag_of_others"), [({"events.gone": {0: 4}}, 6), ({}, None)], ids=["paused", "read"])
def test_a_deleted_topic_hides_the_lag_only_of_a_lane_that_reads_it(monkeypatch, paused, lag_of_others):
    """Regression: after the deletion of a paused topic, `/readyz` said that Kafka was away, and no stall was found any more."""
    monkeypatch.setattr(kafka_clients, "admin", lambda _: Admin(gone={"events.gone"}))
    watch = health.Watch(pause_reason=lambda: None, stop=threading.Event())
    watch.enter(health.QueryPhase.RUNNING)
    watch.reach({"events.a": {0: 4}} if paused else {"events.a": {0: 4}, "events.gone": {0: 4}})
    watch.pause_topics(paused)
    lag._poll(CONFIG, "direct", watch, Once())
    assert watch.backlog.lag == lag_of_others
    assert health.readiness(watch.facts()).ok is bool(paused)
