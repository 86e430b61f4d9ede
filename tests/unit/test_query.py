"""Why a lane ended, in one line; and what is noticed of the micro-batches that it has committed, in whatever order it comes."""

import json
import threading
from types import SimpleNamespace

import pytest

from delivery.stages import query

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
    assert query.cause_of(failure) == line


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
            handled, told = step
            self.recentProgress.extend(told)
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
    watch = SimpleNamespace(entered=lambda _: None, reached=lambda positions: reached.append(positions["events"][0]))
    reached = []
    lane = query.Lane("direct", hold=lambda: (), handle=lambda *_: None, stop=threading.Event(), watch=watch)
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
    monkeypatch.setattr(query, "_report", lambda _, progress: noticed.append(progress["batchId"]))
    lane._watch(Query(lane, steps))
    assert noticed == reported
    assert lane.reached[-1] == reported[-1] * 10


def test_a_lane_is_not_at_rest_while_a_micro_batch_runs_that_follows_an_idle_time(lane):
    running = Query(lane, [])
    lane._last_begun = 8
    running.recentProgress = [committed(7), idle(8)]
    assert not lane._is_at_rest(running)
    running.recentProgress.append(committed(8))
    assert lane._is_at_rest(running)
