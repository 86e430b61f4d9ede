"""The thread that scales: what it observes, what it asks Spark for, and what it tells the lanes and the operator."""

import logging
import threading

import pytest
from prometheus_client import REGISTRY

from delivery import errors
from delivery.config import settings
from delivery.observability import health
from delivery.stages.scaling import controller, executors, size
from tests.support import fakes, loads
from tests.support.executors import FakeExecutors


class Lane:
    """A lane that reports its progress, and a controller that looks every 5 s."""

    def __init__(self, cluster, **rules):
        self.clock, self.cluster = fakes.Clock(), cluster
        self.hold = None
        self.watch = health.Watch(pause_reason=lambda: self.hold, stop=threading.Event(), clock=self.clock)
        self.watch.enter(health.QueryPhase.RUNNING)
        self.controller = controller.Controller(loads.policy(**rules), cluster, {"direct": self.watch}, self.clock)
        self.sizing = self.controller.sizing()
        self.handled, self.lag, self.per_s = 0, 0, 0

    def goes_on(self, seconds):
        for _ in range(seconds // 5):
            self.clock.now += 5
            self.handled += self.per_s * 5
            backlog = health.Backlog(lag=self.lag, handled=self.handled, handled_at_s=self.clock.now, partitions=100)
            self.watch.observe(backlog)
            self.controller.step()


def value(name, **labels):
    return REGISTRY.get_sample_value(f"fanout_{name}", labels)


def test_executors_come_when_a_lane_is_behind_and_the_newest_go_when_it_is_not():
    lane = Lane(FakeExecutors(started=1))
    lane.goes_on(30)
    lane.lag, lane.per_s = 300_000, 1_000
    lane.goes_on(30)
    assert len(lane.cluster.active) > 1
    lane.lag = 0
    lane.goes_on(400)
    assert lane.cluster.active == ["0"]


@pytest.mark.parametrize(("has_no_topics", "left"), [(True, ["0"]), (False, ["0", "1", "2", "3"])])
def test_only_a_lane_known_to_have_no_topic_keeps_no_executor(has_no_topics, left):
    """Regression: while one lane had no topic, no executor ever went, because that lane's lag is unknown for ever."""
    lane = Lane(FakeExecutors(started=1))
    empty = health.Watch(pause_reason=lambda: None, stop=threading.Event(), clock=lane.clock)
    lane.controller = controller.Controller(
        loads.policy(max_executors=4), lane.cluster, {"retry": lane.watch, "direct": empty}, lane.clock
    )
    empty.enter(health.QueryPhase.RUNNING)

    def go_on(seconds):
        for _ in range(seconds // 5):
            empty.observe(health.Backlog(has_no_topics=has_no_topics))
            lane.goes_on(5)

    lane.lag, lane.per_s = 9_000_000, 1_000
    go_on(120)
    lane.lag = lane.per_s = 0
    go_on(600)
    assert lane.cluster.active == left
    assert value("scaling_reason", reason="unknown") == (not has_no_topics)


def test_executors_beyond_the_number_at_the_start_go():
    """Spark's standalone cluster starts an executor on each of its workers, whatever is asked for."""
    lane = Lane(FakeExecutors(started=4), min_executors=2)
    lane.goes_on(5)
    assert lane.cluster.active == ["0", "1"]


def test_an_executor_that_ends_by_itself_is_replaced_by_spark_alone():
    lane = Lane(FakeExecutors(started=2, room=2), min_executors=2)
    lane.goes_on(30)
    lane.cluster.active.remove("0")
    lane.goes_on(30)
    assert value("executors_wanted") == 2


def test_no_executor_goes_while_a_lane_is_to_read_its_rows():
    lane = Lane(FakeExecutors(started=2))
    begun, done = threading.Event(), threading.Event()

    def micro_batch():
        with lane.sizing.shuffles.in_use():
            begun.set()
            done.wait(10)

    tasks = threading.Thread(target=micro_batch)
    tasks.start()
    begun.wait(10)
    look = threading.Thread(target=lane.goes_on, args=(5,))
    look.start()
    look.join(0.2)
    assert look.is_alive()
    assert lane.cluster.active == ["0", "1"]
    done.set()
    look.join(10)
    tasks.join(10)
    assert lane.cluster.active == ["0"]


def test_a_lane_that_is_always_at_work_keeps_its_executors():
    shuffles, went = size.Shuffles(), []
    with shuffles.in_use():
        assert not shuffles.between(lambda: went.append(1), 0.0)
    assert shuffles.between(lambda: went.append(2), 0.0)
    assert went == [2]


def test_the_lanes_plan_for_the_number_when_all_are_there_or_it_does_not_change():
    lane = Lane(FakeExecutors(started=1, room=3), min_executors=1)
    lane.goes_on(30)
    assert lane.sizing.now() == size.Size(executors=1, tasks=2)
    lane.lag, lane.per_s, lane.cluster.room = 9_000_000, 1_000, 1
    lane.goes_on(40)
    assert value("executors_wanted") == 10
    assert lane.sizing.now().executors == 1
    lane.cluster.room = 3
    lane.cluster.request(10)
    lane.goes_on(5)
    assert lane.sizing.now().executors == 1  # others may follow
    lane.goes_on(5)
    assert lane.sizing.now() == size.Size(executors=3, tasks=6)


def test_hosts_are_shared_by_all_that_may_be_at_work():
    """Requested executors may come at any moment, and a decommissioned executor still ends its tasks."""
    lane = Lane(FakeExecutors(started=1, room=1))
    lane.goes_on(30)
    assert lane.sizing.workers() == 2
    lane.lag, lane.per_s = 9_000_000, 1_000
    lane.goes_on(40)
    assert lane.sizing.workers() == 20
    lane.lag, lane.per_s, lane.cluster.room = 0, 0, 10
    lane.cluster.request(10)
    lane.cluster.busy = {"1", "2"}
    lane.goes_on(600)
    assert (lane.cluster.active, sorted(lane.cluster.ending)) == (["0"], ["1", "2"])
    assert lane.sizing.workers() == 6
    lane.cluster.busy = set()
    lane.goes_on(5)
    assert lane.sizing.workers() == 2


def test_each_change_is_logged_with_its_reason(caplog):
    lane = Lane(FakeExecutors(started=1))
    with caplog.at_level(logging.INFO, controller.log.name):
        lane.goes_on(30)
        lane.lag, lane.per_s = 100_000, 1_000
        lane.goes_on(30)
    assert caplog.messages[0] == (
        "executors wanted: 2 in place of 1, because the lag would not drain within 60 s: lane direct has a lag of 100000 "
        "records, 7333 records/s come, and an executor handles an unknown number"
    )


def test_the_metrics_tell_the_number_and_the_reason():
    lane = Lane(FakeExecutors(started=1))
    lane.goes_on(30)
    lane.hold = "the registry is too old"
    lane.goes_on(5)
    assert (value("executors"), value("executors_wanted")) == (1, 1)
    assert value("scaling_reason", reason="holding") == 1
    assert value("scaling_reason", reason="enough") == 0


def test_executors_that_do_not_come_are_warned_of_once(caplog):
    lane = Lane(FakeExecutors(started=1, room=1), min_executors=2)
    with caplog.at_level(logging.WARNING, controller.log.name):
        lane.goes_on(600)
    [message] = caplog.messages
    assert message.startswith("executors are missing: 1 of 2 are registered, and have been too few for 120 s. The lanes")


@pytest.mark.parametrize(
    ("spark", "said"),
    [
        ({"master": "local[4]"}, "spark.master local[4] is one process without executors"),
        ({"conf": {}}, "Set spark.executor.cores in spark.conf to a whole number"),
        ({"conf": {"spark.executor.cores": "many"}}, "Set spark.executor.cores in spark.conf to a whole number"),
        (
            {"conf": {"spark.executor.cores": "2", "spark.dynamicAllocation.enabled": "true"}},
            "spark.dynamicAllocation.enabled in spark.conf would also change the number of executors",
        ),
        (
            {"conf": {"spark.executor.cores": "2", "spark.dynamicAllocation.shuffleTracking.enabled": "true"}},
            "spark.dynamicAllocation.shuffleTracking.enabled in spark.conf would also change",
        ),
    ],
)
def test_what_cannot_be_scaled_is_refused_with_one_line(spark, said):
    config = settings.Settings.model_validate({"scaling": {"max_executors": 3}, "spark": {"master": "k8s://x", **spark}})
    with pytest.raises(errors.SettingsError, match=r"^setting scaling") as refused:
        controller.policy_of(config)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_minimum_above_the_maximum_is_refused():
    config = settings.Settings.model_validate({"scaling": {"min_executors": 4, "max_executors": 3}})
    with pytest.raises(errors.SettingsError, match="the minimum must not be above the maximum"):
        controller.policy_of(config)


def test_without_a_maximum_nothing_is_scaled_and_spark_starts_as_before():
    config = settings.Settings()
    assert controller.policy_of(config) is None
    assert executors.conf(None) == {}
    with controller.running(None, None, {}, config, threading.Event()) as sizing:
        assert (sizing.now(), sizing.workers()) == (size.Size(executors=1, tasks=2), 2)


def test_a_failure_to_look_is_logged_and_the_lanes_continue(monkeypatch, caplog):
    seen = threading.Event()

    class Broken:
        def __init__(self, _):
            pass

        def now(self):
            seen.set()
            raise RuntimeError("the JVM says no")

    monkeypatch.setattr(executors, "SparkExecutors", Broken)
    config = settings.Settings.model_validate({"scaling": {"max_executors": 3, "interval_s": 0.001}})
    with controller.running(loads.policy(), None, {}, config, threading.Event()) as sizing:
        assert seen.wait(10)
        assert sizing.now().tasks == 2
    assert "the number of executors could not be decided" in caplog.text


@pytest.mark.parametrize(("cpus", "tasks"), [({}, 4), ({"spark.task.cpus": "2"}, 2), ({"spark.task.cpus": "3"}, 1)])
def test_an_executor_runs_as_many_tasks_as_its_cores_allow(cpus, tasks):
    """Regression: spark.task.cpus was not heeded, so the lanes planned twice the tasks that could run."""
    config = settings.SparkSettings(master="spark://m:7077", conf={"spark.executor.cores": "4", **cpus})
    assert executors.cores(config) == tasks
