"""The job logs once that all lanes are ready."""

import logging
import threading

from delivery.observability import health
from delivery.observability.health import QueryPhase
from delivery.stages.lanes import watching


class Waits(threading.Event):
    """An event whose waits end at once. Each wait first does the next one of `steps`; after the last, the event is set."""

    def __init__(self, *steps):
        super().__init__()
        self._steps = list(steps)

    def wait(self, timeout=None):  # noqa: ARG002  # the base class's signature
        if not self._steps:
            self.set()
            return True
        self._steps.pop(0)()
        return False


def watches():
    return {lane: health.Watch(pause_reason=lambda: None, stop=threading.Event()) for lane in ("direct", "retry")}


def test_the_job_logs_once_when_the_last_lane_is_ready(caplog):
    """Regression: the log of a started job had no line that the job delivers."""
    caplog.set_level(logging.INFO)
    lanes = watches()
    before = []
    watching.log_readiness(
        lanes,
        Waits(
            lambda: lanes["retry"].enter(QueryPhase.RUNNING),
            lambda: before.extend(caplog.messages),
            lambda: lanes["direct"].enter(QueryPhase.RUNNING),
        ),
    )
    assert before == []
    assert caplog.messages == ["all lanes are ready, 0 s after the start: direct, retry"]


def test_a_job_that_stops_before_it_is_ready_logs_nothing(caplog):
    caplog.set_level(logging.INFO)
    watching.log_readiness(watches(), Waits(lambda: None))
    assert caplog.messages == []
