"""Reports of the workers about a micro-batch are acted upon in every lane; a lane recovers when executors end."""

import threading
import time
from types import SimpleNamespace
from unittest import mock

import pytest

from delivery.stages.lanes import batch_query, lane_context, network_outage, telemetry, unhealthy_endpoints
from delivery.stages.lanes.batch_query import BatchQuery
from delivery.stages.lanes.direct_query import DirectQuery
from delivery.stages.lanes.stateful import StatefulLane
from delivery.stages.lanes.streaming_lane import Result
from delivery.stages.scaling import size
from delivery.stages.tasks import observer, task_context
from delivery.webhooks.policy import error_classes, retry_reasons
from delivery.webhooks.results.counters import Counters
from delivery.webhooks.results.task_results import Results
from delivery.webhooks.scheduling import outage_detection, unhealthy
from delivery.webhooks.state.backlog import ShardBacklog
from tests.support import builders


class Accumulator:
    def __init__(self, zero, merging):
        self.value, self._merging = zero, merging

    def add(self, more):
        self.value = self._merging.addInPlace(self.value, more)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def context_of(clock=None, *, network=None, disable=lambda *_: None):
    """Return the state that the lanes share, with attempts of at most 2 s."""
    return lane_context.LaneContext(
        unhealthy=unhealthy_endpoints.UnhealthyEndpoints(2.0, clock or Clock()),
        network=network or network_outage.Network(),
        disable=disable,
        sizing=size.fixed(2),
    )


def observed(*results):
    """Return the report that the driver gets of these results."""
    total = Accumulator(Counters(), observer.CountersParam())
    gone, unresponsive, late = (Accumulator(frozenset(), observer.EndpointsParam()) for _ in range(3))
    observe = observer.Observer(
        total=total, gone=gone, unresponsive=unresponsive, late=late, level="ERROR", format="text", attempt_sample=0.0
    )
    for result in results:
        observe(result)
    return telemetry.WorkerReport(total.value, gone.value, unresponsive.value, late.value)


def unreachable(first, end):
    """Return the reachability of a task that reached none of these destinations, each of another customer."""
    return outage_detection.reachability(
        (builders.endpoint(url=f"https://host{n}.example/", customer_id=f"c{n}"), False) for n in range(first, end)
    )


def test_only_endpoints_that_are_gone_are_disabled():
    a, b = (builders.endpoint(endpoint_id=name).as_attempted() for name in "ab")
    disabled = []
    context = context_of(disable=lambda ids, why: disabled.append((set(ids), why)))
    context.record(observed(Results(reach=unreachable(0, 2)), Results(reach=unreachable(2, 3))))
    assert disabled == []
    context.record(observed(Results(gone=frozenset({a})), Results(), Results(gone=frozenset({a, b}))))
    assert disabled == [({a, b}, error_classes.GONE)]


def test_what_the_tasks_could_not_reach_is_added_up_and_stops_all_lanes():
    ours = network_outage.Network()
    context = context_of(network=ours)
    half = outage_detection.MIN_DESTINATIONS // 2
    some, others = Results(reach=unreachable(0, half)), Results(reach=unreachable(half, 2 * half))
    context.record(observed(some, some))
    assert not ours.is_broken
    context.record(observed(some, others))
    assert ours.is_broken


def test_an_unresponsive_endpoint_is_attempted_by_no_worker_for_a_time():
    context = context_of(clock := Clock())
    context.record(observed(Results(unresponsive=frozenset({"a"})), Results(), Results(unresponsive=frozenset({"b"}))))
    clock.now = 3.9
    assert context.unhealthy.current().suppressed == {"a": retry_reasons.SLOW, "b": retry_reasons.SLOW}
    context.record(observed(Results(unresponsive=frozenset({"b"}))))
    clock.now = 4.0
    assert context.unhealthy.current().suppressed == {"b": retry_reasons.SLOW}
    clock.now = 7.9
    assert context.unhealthy.current().suppressed == {}


def test_who_did_not_answer_while_our_own_network_failed_is_not_held_for_it():
    context = context_of()
    a = frozenset({"a"})
    context.record(observed(Results(reach=unreachable(0, outage_detection.MIN_DESTINATIONS), unresponsive=a, late=a)))
    assert context.unhealthy.current() == unhealthy.NONE_UNHEALTHY


def test_all_workers_learn_which_endpoints_were_late_and_when_last():
    context = context_of(clock := Clock())
    context.record(observed(Results(late=frozenset({"a", "b"})), Results(late=frozenset({"c"}))))
    clock.now = 5.0
    context.record(observed(Results(late=frozenset({"b"}))))
    assert context.unhealthy.current() == unhealthy.Unhealthy({}, {"a": 0.0, "b": 5.0, "c": 0.0})
    clock.now = unhealthy_endpoints.LATE_S
    assert context.unhealthy.current().late == {"b": 5.0}


def test_the_list_of_late_endpoints_keeps_the_last_reports_and_is_bounded():
    known = unhealthy_endpoints.UnhealthyEndpoints(2.0, Clock())
    names = [str(number) for number in range(unhealthy_endpoints.MAX_LATE + 10)]
    for name in names:
        known.add_late(frozenset({name}))
    assert list(known.current().late) == names[10:]


def test_an_endpoint_that_the_retry_lane_suppresses_keeps_its_reason():
    context = context_of()
    context.record(observed(Results(unresponsive=frozenset({"a"}))))
    context.unhealthy.set_reported(frozenset({"a", "c"}), frozenset({"a", "c", "d"}))
    assert context.unhealthy.current().suppressed == {"a": retry_reasons.CIRCUIT_OPEN, "c": retry_reasons.CIRCUIT_OPEN}
    assert context.unhealthy.current().watched == {"a", "c", "d"}
    context.unhealthy.set_reported(frozenset(), frozenset())
    assert context.unhealthy.current() == unhealthy.Unhealthy({"a": retry_reasons.SLOW}, {}, frozenset())


def test_very_many_failed_endpoints_are_not_sent_to_each_task():
    known = unhealthy_endpoints.UnhealthyEndpoints(2.0, Clock())
    names = [str(number) for number in range(unhealthy_endpoints.MAX_WATCHED + 1)]
    known.set_reported(frozenset(), frozenset(names[1:]))
    assert known.current().watched == frozenset(names[1:])
    known.set_reported(frozenset(), frozenset(names))
    assert known.current().watched is None


def test_a_lane_is_planned_anew_when_the_number_of_executors_has_changed():
    """Before anything of its micro-batch is done, so that no journal is read."""
    untouched = []
    reruns = SimpleNamespace(mark_untouched=lambda: untouched.append(True))
    assert lane_context.confirm_plan(reruns, is_current=True)
    assert untouched == []
    assert not lane_context.confirm_plan(reruns, is_current=False)
    assert untouched == [True]


ROWS_ARE_GONE = (
    "Job aborted due to stage failure: ResultStage 53 (save) has failed the maximum allowable number of times: 1. "
    "Most recent failure reason: org.apache.spark.shuffle.MetadataFetchFailedException"
)


def a_lane():
    stopping = threading.Event()
    stopping.set()  # so that nobody waits
    return SimpleNamespace(
        NAME="batch",
        _restarts=0,
        _stop=stopping,
        _pending=SimpleNamespace(value=None),
        _context=SimpleNamespace(sizing=size.fixed(2)),
    )


def a_batch_lane(left):
    """A batch lane of one shard. Each of its queries is a micro-batch, after which the next of `left` is the backlog."""

    def run_query(*_, **__):
        lane._pending.value = left.pop(0)
        StatefulLane._take_backlog(lane)

    lane = SimpleNamespace(
        NAME="batch",
        _config=None,
        _spark=None,
        _stop=threading.Event(),
        _pending=SimpleNamespace(value=None),
        _shard_keys=(0,),
        _due_ms=None,
        _waker=mock.Mock(),
        _planned=None,
        _handle=None,
        _run=run_query,
    )
    lane._run_query = lambda watch, *, once: BatchQuery._run_query(lane, watch, once=once)
    return lane


def tasks_that(failure=None):
    due = mock.MagicMock()
    due.write.format.return_value.mode.return_value.save.side_effect = failure
    return due


def test_a_lane_whose_executors_keep_ending_restarts_three_times_and_then_fails():
    lane = a_lane()
    for _ in range(3):
        assert StatefulLane._deliver(lane, tasks_that(RuntimeError(ROWS_ARE_GONE))) is Result.REPLAN
    with pytest.raises(task_context.RowsLost):
        StatefulLane._deliver(lane, tasks_that(RuntimeError(ROWS_ARE_GONE)))


def test_a_micro_batch_between_them_lets_a_lane_start_again_as_often_as_before():
    lane = a_lane()
    for _ in range(3):
        assert StatefulLane._deliver(lane, tasks_that(RuntimeError(ROWS_ARE_GONE))) is Result.REPLAN
        assert StatefulLane._deliver(lane, tasks_that()) is Result.COMMITTED
    assert lane._restarts == 0


@pytest.mark.parametrize("is_pausing", [False, True])
@pytest.mark.parametrize(
    "begins",
    [
        lambda lane, paused: DirectQuery._begin(SimpleNamespace(**vars(lane), _paused=paused), 8),
        lambda lane, paused: StatefulLane._begin(lane, paused, 8),
    ],
    ids=["direct", "batch"],
)
def test_a_lane_says_at_each_micro_batch_whether_topics_are_paused(begins, is_pausing):
    """The completed-work log of a micro-batch that ran again is kept until their records were read."""
    lane = SimpleNamespace(_seen=mock.Mock(), _reruns=mock.Mock())
    begins(lane, SimpleNamespace(is_pausing=is_pausing))
    lane._reruns.begin.assert_called_once_with(8, is_pausing=is_pausing)


def test_a_single_run_of_the_batch_lane_sends_all_that_is_due(monkeypatch):
    """Regression: a micro-batch sends 64 MiB of a shard, and `fanout run --once` left the rest until the next start."""
    monkeypatch.setattr(batch_query.lane_context, "paused_topics_of", lambda *_: None)
    hour_ms = 3_600_000
    left = [ShardBacklog(shards=1, due_ms=due_ms) for due_ms in (0, round(time.time() * 1000) - hour_ms)]
    left.append(ShardBacklog(shards=1, due_ms=round(time.time() * 1000) + hour_ms))
    lane = a_batch_lane(left)
    BatchQuery.run(lane, None, once=True)
    assert (left, lane._waker.update.call_count) == ([], 3)


@pytest.mark.parametrize("backlog", [ShardBacklog(shards=1), ShardBacklog(shards=0, due_ms=0)], ids=["empty", "not reported"])
def test_a_single_run_of_the_batch_lane_ends_when_nothing_more_leaves(monkeypatch, backlog):
    """A wake-up that Kafka refuses causes no micro-batch, so the shards report nothing."""
    monkeypatch.setattr(batch_query.lane_context, "paused_topics_of", lambda *_: None)
    left = [ShardBacklog(shards=1, due_ms=0), backlog]
    BatchQuery.run(a_batch_lane(left), None, once=True)
    assert left == []


def test_any_other_failure_of_the_tasks_is_the_lanes():
    with pytest.raises(RuntimeError, match="failed 4 times"):
        StatefulLane._deliver(a_lane(), tasks_that(RuntimeError("Task 0 in stage 53.0 failed 4 times")))
