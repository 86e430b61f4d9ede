"""While no executor is registered the lanes are paused, the operator reads why, and a stop cancels the jobs that cannot run."""

import logging
import threading

import pytest

from delivery.observability import health
from delivery.stages.scaling import executor_absence, executors
from tests.support import fakes
from tests.support.executors import FakeExecutors

STALLED_AFTER_S = 300


class Job:
    """A job whose lane starts. It asks for the executors and for the lag each second."""

    def __init__(self, started):
        self.clock, self.cluster, self.stop = fakes.Clock(), FakeExecutors(started=started), threading.Event()
        self.absence = executor_absence.ExecutorAbsence(self.clock)
        self.watch = health.Watch(pause_reason=self.absence.pause_reason, stop=self.stop, clock=self.clock)

    def goes_on(self, seconds):
        """Return how often the jobs of Spark were cancelled meanwhile."""
        cancelled = 0
        for _ in range(seconds):
            self.clock.now += 1
            cancelled += self.absence.observe(self.cluster.now(), is_stopping=self.stop.is_set())
            self.watch.observe(health.Backlog())
        return cancelled

    @property
    def is_healthy(self):
        return health.liveness(self.watch.facts(), STALLED_AFTER_S).ok


def test_a_job_without_executors_is_not_restarted_and_names_the_reason():
    """Regression: /healthz answered 503 after 300 s, and each restart added a set of pods that could not start either."""
    job = Job(started=0)
    assert job.goes_on(3 * STALLED_AFTER_S) == 0
    assert job.is_healthy
    assert health.readiness(job.watch.facts()) == health.ProbeAnswer(ok=False, reason=f"paused: {executor_absence.ABSENT}")


def test_a_stall_counts_again_from_the_first_executor_on():
    job = Job(started=0)
    job.goes_on(STALLED_AFTER_S)
    job.cluster.request(1)
    job.goes_on(STALLED_AFTER_S)
    assert job.is_healthy
    job.goes_on(2)
    assert not job.is_healthy


def test_a_stop_cancels_jobs_only_while_no_executor_is_registered():
    """Regression: after SIGTERM the lanes waited for a job of Spark that could not run, until Kubernetes killed the driver."""
    job = Job(started=0)
    job.stop.set()
    assert job.goes_on(2) == 2
    job.cluster.request(1)
    assert job.goes_on(2) == 0


def test_an_executor_that_still_ends_its_tasks_is_registered():
    absence = executor_absence.ExecutorAbsence(fakes.Clock())
    assert absence.observe(executors.Executors((), ("1",)), is_stopping=True) is False
    assert absence.pause_reason() is None


def test_a_lasting_absence_is_logged_once_and_so_is_its_end(caplog):
    job = Job(started=0)
    with caplog.at_level(logging.INFO):
        job.goes_on(60)
        assert caplog.messages == []
        job.goes_on(600)
        assert caplog.messages == [f"all lanes are paused: {executor_absence.ABSENT}"]
        job.cluster.request(1)
        job.goes_on(2)
    assert caplog.messages[1:] == ["an executor has registered: all lanes continue"]


@pytest.mark.parametrize(
    ("master", "is_separate"),
    [
        ("local", False),
        ("local[6,4]", False),
        ("local-cluster[2,1,1024]", True),
        ("k8s://https://a", True),
        ("spark://a", True),
    ],
)
def test_only_executors_of_their_own_can_be_absent(master, is_separate):
    assert executors.are_separate(master) is is_separate
