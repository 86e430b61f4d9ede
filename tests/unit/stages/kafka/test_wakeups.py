"""A lane is woken when its pending work is due."""

import threading

import pytest

from delivery import errors
from delivery.config import settings
from delivery.observability import health
from delivery.stages.kafka import wakeups
from delivery.webhooks.state.backlog import ShardBacklog


@pytest.mark.parametrize(
    ("due_ms", "wait_s"),
    [
        pytest.param(10_000, 8.5, id="10 s, less what the next micro-batch looks ahead"),
        pytest.param(1_500, 0.0, id="just within the look-ahead"),
        pytest.param(0, 0.0, id="overdue"),
    ],
)
def test_a_tick_is_sent_as_soon_as_a_micro_batch_would_let_the_batch_leave(due_ms, wait_s):
    assert wakeups.wait_s(due_ms, now_ms=1_000, look_ahead_ms=500, quiet_s=0) == wait_s


@pytest.mark.parametrize("due_ms", [None, 3_600_000])
def test_a_lane_that_has_long_been_quiet_is_woken_before_spark_ends_its_workers(due_ms):
    assert wakeups.wait_s(due_ms, now_ms=1_000, look_ahead_ms=500, quiet_s=0) == wakeups.QUIET_S
    assert wakeups.wait_s(due_ms, now_ms=1_000, look_ahead_ms=500, quiet_s=wakeups.QUIET_S) == 0
    assert wakeups.QUIET_S < 60


@pytest.mark.parametrize(("lane", "topic"), [("batch", "ticks"), ("retry", "retry-ticks")])
def test_ticks_that_would_be_read_as_events_are_refused_at_the_start(lane, topic):
    config = settings.Settings(source=settings.SourceSettings(topic_pattern=r"fanout\..+"))
    message = rf"{lane}\.ticks_topic: fanout\.{topic} matches source\.topic_pattern"
    with pytest.raises(errors.SettingsError, match=message):
        wakeups.Waker(config, lane, getattr(config, lane), threading.Event())


def test_pending_work_is_summed_over_shards_and_the_earliest_due_time_counts():
    first = ShardBacklog(shards=1, events=2, size=10, oldest_ms=5, due_ms=100, watched=frozenset({"a"}))
    second = ShardBacklog(shards=1, events=1, size=5, oldest_ms=7, due_ms=50, watched=frozenset({"b"}))
    assert ShardBacklog() + first + second + ShardBacklog(shards=1) == ShardBacklog(
        shards=3, events=3, size=15, oldest_ms=5, due_ms=50, watched=frozenset({"a", "b"})
    )


def test_the_process_is_as_well_as_the_lane_that_is_worst():
    well, ill = health.ProbeAnswer(ok=True, reason="running"), health.ProbeAnswer(ok=False, reason="the query has ended")
    assert health.worst_of({"direct": well, "batch": well}) == well
    assert health.worst_of({"direct": well, "batch": ill}) == ill
