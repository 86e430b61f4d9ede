"""Why a lane ended, in one line; whether it starts again; and what is noticed of what it has committed, in whatever order."""

import json
import logging
import re
import threading
from types import SimpleNamespace

import pytest

from delivery import errors
from delivery.config import settings
from delivery.stages.kafka import kafka_outage
from delivery.stages.lanes import session, streaming_lane
from delivery.stages.lanes.streaming_lane import Result

JVM = """[STREAM_FAILED] it ended: Task failed
\tat a.b.C(D.java:1)
Caused by: java.lang.ArithmeticException: long overflow
\tat java.base/java.lang.Math.multiplyExact(Math.java:1)
\t... 3 more
"""
WITH_CODES = JVM + "\n SQLSTATE: 39000 SQLSTATE: XXKST\n=== Streaming Query ===\n"
SUPPRESSED = """[STREAM_FAILED] it ended: Task failed
Caused by: java.io.IOException: No space left on device
\tat a.b.C(D.java:1)
\tSuppressed: java.io.IOException: No file to close
\t\tat a.b.C(D.java:2)
"""
PYTHON = """[STREAM_FAILED] it ended
Traceback (most recent call last):
  File "a.py", line 1
ValueError: no

"""


@pytest.mark.parametrize(
    ("failure", "line"),
    [
        ("[STREAM_FAILED] terminated: boom\n=== Streaming Query ===\nId: 1", "[STREAM_FAILED] terminated: boom"),
        (JVM, "Caused by: java.lang.ArithmeticException: long overflow"),
        (WITH_CODES, "Caused by: java.lang.ArithmeticException: long overflow"),
        (SUPPRESSED, "Caused by: java.io.IOException: No space left on device"),
        (PYTHON, "ValueError: no"),
        ("", ""),
    ],
)
def test_the_line_that_says_why_is_no_line_of_a_stack(failure, line):
    assert streaming_lane.cause_of(failure) == line


def committed(number, rows=1):
    """Return Spark's progress after a micro-batch: it has read up to ten times its number."""
    ends = [{"endOffset": json.dumps({"events": {"0": number * 10}})}]
    took = {"triggerExecution": 5, "addBatch": 4}
    return {"batchId": number, "numInputRows": rows, "durationMs": took, "stateOperators": [], "sources": ends}


def idle(following):
    """Return Spark's progress where there was nothing to do, which it gives the number of the micro-batch to come."""
    return committed(following - 1, 0) | {"batchId": following, "durationMs": {"triggerExecution": 1}}


class Query:
    """A streaming query that lives as long as there are steps, and in each has committed some more."""

    def __init__(self, lane, steps):
        self._lane, self._steps = lane, iter(steps)
        self.recentProgress = []

    @property
    def isActive(self):  # noqa: N802  # Spark's name
        step = next(self._steps, None)
        if step is not None:
            handled, progress = step
            self.recentProgress.extend(progress)
            self._lane._handled = self._lane._last_begun = handled
            self._lane._begins.set()
        return step is not None

    @property
    def lastProgress(self):  # noqa: N802  # Spark's name
        return self.recentProgress[-1] if self.recentProgress else None

    def exception(self):
        return None


@pytest.fixture
def lane():
    return lane_of()


def lane_of(**options):
    watch = SimpleNamespace(enter=lambda _: None, reach=lambda positions: reached.append(positions["events"][0]))
    reached = []
    lane = streaming_lane.StreamingLane(
        "direct",
        acquire=lambda: (),
        handle=lambda *_: Result.COMMITTED,
        stop=threading.Event(),
        watch=watch,
        is_kafka_back=pytest.fail,
        ask_s=0,
        **options,
    )
    lane.reached = reached
    return lane


@pytest.mark.parametrize(
    ("steps", "reported"),
    [
        pytest.param([(0, []), (0, [committed(0)]), (1, [committed(1)])], [0, 1], id="one after the other"),
        pytest.param([(7, [committed(7)]), (7, [])], [7], id="once, however often it looks"),
        pytest.param([(2, [committed(0), committed(1), committed(2)])], [0, 1, 2], id="several between two looks"),
        pytest.param([(-1, [idle(7)]), (7, []), (7, [committed(7)])], [7], id="after a start with nothing to do"),
        pytest.param([(7, [committed(7)]), (8, [idle(8)]), (8, [committed(8)])], [7, 8], id="idle, handled, not yet committed"),
        pytest.param([(7, [committed(7, 0)]), (8, [committed(8)])], [8], id="after one without records"),
    ],
)
def test_what_is_committed_is_noticed_once_and_at_once(lane, monkeypatch, steps, reported):
    noticed = []
    monkeypatch.setattr(streaming_lane, "_report", lambda _, progress, _records: noticed.append(progress["batchId"]))
    lane._watch(Query(lane, steps))
    assert noticed == reported
    assert lane.reached[-1] == reported[-1] * 10


def test_a_lane_whose_tasks_read_kafka_counts_its_records_itself(monkeypatch):
    """Spark's progress counts none then. A micro-batch without a record is not reported."""
    reported = []
    monkeypatch.setattr(streaming_lane, "_report", lambda _, progress, records: reported.append((progress["batchId"], records)))
    lane = lane_of(records_of={0: 5, 1: 0, 2: 7}.__getitem__)
    lane._watch(Query(lane, [(0, [committed(0, 0)]), (1, [committed(1, 0)]), (2, [committed(2, 0)])]))
    assert reported == [(0, 5), (2, 7)]


class Plan:
    """The plan of a query: each step of its start returns the plan, and the last step the query."""

    def __init__(self, query):
        self.sparkSession = SimpleNamespace(sparkContext=SimpleNamespace(setLogLevel=lambda _: None))
        self.writeStream = self
        self.queryName = self.option = self.foreachBatch = self.trigger = lambda *_, **__: self
        self.start = lambda: query


@pytest.mark.parametrize(
    ("steps", "awaited"),
    [
        pytest.param([(0, []), (0, [committed(0)]), (1, [])], [True, True, False, False], id="after a micro-batch"),
        pytest.param([(-1, [idle(7)]), (7, [])], [True, False, False], id="with nothing to do"),
        pytest.param([(0, [])], [True, True], id="never"),
    ],
)
def test_the_first_report_of_a_query_is_awaited_until_it_comes(lane, monkeypatch, steps, awaited):
    """Regression: nothing was awaited of a running lane, so its process was not restarted when its first micro-batch hung."""
    seen = []

    class Observed(Query):
        @property
        def isActive(self):  # noqa: N802  # Spark's name
            seen.append(lane._watched.awaits_report)
            return super().isActive

        def stop(self):
            seen.append("ended")

    monkeypatch.setattr(streaming_lane.recovery, "require_whole", lambda *_: None)
    lane._run_query(Plan(Observed(lane, steps)), settings.SparkSettings(checkpoint="/nowhere"), 1.0, once=False)
    assert seen == [*awaited, "ended"]
    assert not lane._watched.awaits_report


def test_a_lane_is_not_idle_while_a_micro_batch_runs_after_an_idle_time(lane):
    running = Query(lane, [])
    lane._last_begun = 8
    running.recentProgress = [committed(7), idle(8)]
    assert not lane._is_at_rest(running)
    running.recentProgress.append(committed(8))
    assert lane._is_at_rest(running)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_micro_batch_that_gets_its_registry_at_a_stop_sends_nothing(lane, monkeypatch, when):
    """Regression: the lane counted as at rest meanwhile, so its query was stopped while the micro-batch sent requests."""
    handled, at_rest = [], []
    query = Query(lane, [])
    lane._last_begun, query.recentProgress = 7, [committed(7)]

    def acquire():
        if when == "meanwhile":
            lane._stop.set()
        at_rest.append(lane._is_at_rest(query))
        return ()

    monkeypatch.setattr(lane, "_acquire", acquire)
    monkeypatch.setattr(lane, "_handle", lambda *_: handled.append(1) or Result.COMMITTED)
    if when == "before":
        lane._stop.set()
    log_levels = SimpleNamespace(sparkContext=SimpleNamespace(setLogLevel=lambda _: None))
    with pytest.raises(streaming_lane.Uncommitted):
        lane._handle_batch(SimpleNamespace(sparkSession=log_levels), 8)
    assert (handled, at_rest) == ([], [False] if when == "meanwhile" else [])
    assert lane._is_at_rest(query)


AWAY = "Caused by: org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment. Call: listOffsets"


@pytest.mark.parametrize(
    ("failure", "is_outage"),
    [
        (AWAY, True),
        ("Caused by: org.apache.kafka.common.errors.DisconnectException", True),
        ("ConfigException: No resolvable bootstrap urls given in bootstrap.servers", True),
        ("java.util.concurrent.TimeoutException: Cannot fetch record for offset 5 in 120000 milliseconds", True),
        ("delivery.errors.KafkaUnavailable: topic attempts could not be written: Local: Message timed out", True),
        ("delivery.errors.KafkaUnavailable: topic attempts does not take a row of 20000000 bytes", False),
        ("org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized", False),
        ("org.apache.kafka.common.errors.UnknownTopicOrPartitionException", False),
        ("java.util.concurrent.TimeoutException: Futures timed out after [300 seconds]", False),
        (JVM, False),
    ],
)
def test_a_kafka_that_did_not_answer_is_no_fault_of_the_lane(failure, is_outage):
    assert kafka_outage.is_kafka_outage(failure) is is_outage


class Failed(Query):
    """A query that has reported this progress and has then ended by itself."""

    def __init__(self, lane, failure, steps=()):
        super().__init__(lane, steps)
        self._failure = RuntimeError(failure)

    def exception(self):
        return self._failure


class Run:
    """A lane that is planned for one query after another; the last one ends gracefully."""

    def __init__(self, lane, monkeypatch, *queries, answers=()):
        self.planned, self.asked = 0, 0
        self._lane, self._queries, self._answers = lane, queries, iter(answers)
        monkeypatch.setattr(lane, "_run_query", self._run_query)
        lane._is_kafka_back = self._ask

    def __call__(self):
        self._lane.run(self._plan, None, 0, once=False)
        return self.planned, self.asked

    def _plan(self):
        self.planned += 1
        return self.planned

    def _ask(self):
        self.asked += 1
        return next(self._answers)

    def _run_query(self, number, *_, **__):
        if number <= len(self._queries):
            query = self._queries[number - 1]
            self._lane._watch(query)
            return self._lane._result_of(query, list)
        return Result.COMMITTED


def test_a_lane_is_planned_anew_when_kafka_is_back_and_not_before(lane, monkeypatch):
    run = Run(lane, monkeypatch, Failed(lane, AWAY), answers=[False, False, True])
    assert run() == (2, 3)


def test_a_lane_that_waits_for_kafka_ends_when_the_job_is_to_stop(lane, monkeypatch):
    def answers():
        yield False
        lane._stop.set()
        yield False

    assert Run(lane, monkeypatch, Failed(lane, AWAY), answers=answers())() == (1, 2)


def test_a_lane_gives_up_where_kafka_answers_and_its_query_gets_nowhere(lane, monkeypatch):
    gets_nowhere = [Failed(lane, AWAY) for _ in range(streaming_lane.MOST_ABSENCES + 1)]
    run = Run(lane, monkeypatch, *gets_nowhere, answers=[True] * streaming_lane.MOST_ABSENCES)
    with pytest.raises(errors.LaneFailed, match="node assignment"):
        run()
    assert run.planned == streaming_lane.MOST_ABSENCES + 1


def test_absences_of_kafka_between_which_a_lane_came_on_do_not_add_up(lane, monkeypatch):
    monkeypatch.setattr(streaming_lane, "_report", lambda *_: None)
    count = 3 * streaming_lane.MOST_ABSENCES
    comes_on = [Failed(lane, AWAY, steps=[(number, [committed(number)])]) for number in range(count)]
    assert Run(lane, monkeypatch, *comes_on, answers=[True] * count)() == (count + 1, count)


def test_a_lane_that_is_planned_anew_is_at_rest_until_a_micro_batch_begins(lane, monkeypatch):
    monkeypatch.setattr(streaming_lane.recovery, "require_whole", lambda *_: None)
    lane._last_begun = 7
    rows = SimpleNamespace(sparkSession=None, writeStream=None)
    with pytest.raises(AttributeError):  # there is no Spark
        lane._run_query(rows, settings.SparkSettings(checkpoint="/nowhere"), 1.0, once=False)
    assert lane._is_at_rest(Query(lane, []))


NO_PLAN = "Python worker failed to connect back.\n=== Streaming Query ===\nIdentifier: batch [id = 7e40, runId = 70eb]"


@pytest.mark.parametrize("before", ["", "[STREAM_FAILED] Query [id = 7e40, runId = 70eb] terminated with exception: "])
def test_a_lane_that_a_busy_machine_could_not_plan_is_planned_anew(lane, monkeypatch, before):
    """With two executors where there had been one the machine was so busy that the job ended: all events were waiting."""
    assert Run(lane, monkeypatch, *[Failed(lane, before + NO_PLAN) for _ in range(3)])() == (4, 0)


def test_a_lane_that_can_never_be_planned_ends(lane, monkeypatch):
    run = Run(lane, monkeypatch, *[Failed(lane, NO_PLAN) for _ in range(streaming_lane.MOST_FAILED_PLANS + 1)])
    with pytest.raises(errors.LaneFailed, match="failed to connect back"):
        run()


def test_failed_plans_do_not_count_as_absences_of_kafka(lane, monkeypatch):
    """Regression: after three failed plans, the first absence of Kafka ended the lane, and with it the job."""
    failed = [Failed(lane, NO_PLAN) for _ in range(streaming_lane.MOST_ABSENCES)]
    away = [Failed(lane, AWAY) for _ in range(streaming_lane.MOST_ABSENCES)]
    run = Run(lane, monkeypatch, *failed, *away, answers=[True] * len(away))
    assert run() == (len(failed) + len(away) + 1, len(away))


def test_a_task_whose_worker_does_not_start_is_no_matter_of_the_plan(lane, monkeypatch):
    """Tasks beside it may have sent something, and still run."""
    run = Run(lane, monkeypatch, Failed(lane, f"Job aborted due to stage failure: {NO_PLAN}"))
    with pytest.raises(errors.LaneFailed, match="failed to connect back"):
        run()


def test_a_lane_with_a_fault_of_its_own_is_not_started_again(lane, monkeypatch):
    run = Run(lane, monkeypatch, Failed(lane, PYTHON))
    with pytest.raises(errors.LaneFailed, match="ValueError: no"):
        run()
    assert (run.planned, run.asked) == (1, 0)


@pytest.mark.parametrize(("raised", "lines"), [(streaming_lane.Uncommitted, 0), (ValueError, 1)])
def test_a_micro_batch_that_is_handed_back_is_no_error_in_the_log(raised, lines, caplog):
    """py4j logged a traceback, which looked like a crash, where a lane was planned anew or a job was asked to stop."""
    streaming_lane._quieten_py4j()
    failure = raised()
    logging.getLogger("py4j.clientserver").error("There was an exception while executing the Python Proxy", exc_info=failure)
    assert len(caplog.records) == lines


@pytest.mark.parametrize(
    ("said", "is_routine"),
    [
        ("Disabling AQE since AQE is not supported in stateful workloads.", True),
        ("Current batch is falling behind. The trigger interval is 1000 milliseconds, but spent 8815 milliseconds", True),
        ("A job was submitted with scheduler pool retry, which has not been configured. This can happen when", True),
        ("Unable to load native-hadoop library for your platform... using builtin-java classes where applicable", True),
        ("Failed to cancel job group e0b5e6b2. Cannot find active jobs for it.", True),
        ("Lost task 0.0 in stage 3.0 (TID 7): java.io.IOException: No space left on device", False),
        ("Query batch terminated with error", False),
    ],
)
def test_what_spark_says_at_every_start_does_not_hide_what_it_warns_of(said, is_routine):
    routine = re.search('regex="(.+)"', session.LOG_CONFIGURATION.read_text())[1]
    assert bool(re.fullmatch(routine, f"[queryId = c04ee] {said}")) is is_routine
