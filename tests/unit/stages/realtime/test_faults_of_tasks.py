"""The messages and outcomes of the real-time lane after a fault of a task."""

import threading
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JJavaError

from delivery import errors
from delivery.config import settings
from delivery.stages.lanes import session
from delivery.stages.realtime import mode_switch, realtime_query, start_offsets


@pytest.fixture
def watch_of(monkeypatch):
    """Return the QueryEnd with which a lane watches a query with this TaskServer."""

    def watched(*, once=False, **server):
        lane = realtime_query.RealtimeLane.__new__(realtime_query.RealtimeLane)
        lane._stop = threading.Event()
        monkeypatch.setattr(lane, "_collect", lambda *_: 0.0)
        query = SimpleNamespace(
            streaming_query=SimpleNamespace(isActive=True),
            server=SimpleNamespace(**{"fault": lambda: None, "asks_for_restart": False} | server),
            once=once,
        )
        return lane._watch(query, None)

    return watched


def test_paused_partitions_are_read_again_by_the_next_query(watch_of, caplog):
    caplog.set_level("INFO")
    assert watch_of(asks_for_restart=True) is realtime_query.QueryEnd.READ_AGAIN
    assert "lane realtime restarts its query, to read its paused partitions again" in caplog.text


def test_a_lane_run_once_waits_for_the_schema_registry(watch_of, caplog):
    assert watch_of(asks_for_restart=True, once=True) is realtime_query.QueryEnd.KAFKA_AWAY
    assert "lane realtime waits for the schema registry" in caplog.text


def test_a_lane_with_paused_partitions_is_in_real_time_whatever_the_age():
    """Regression: in micro-batches the backlog of a paused partition delayed all others, without end."""
    lane = realtime_query.RealtimeLane.__new__(realtime_query.RealtimeLane)
    lane._registry, lane._stop = SimpleNamespace(current=lambda: "a registry"), threading.Event()
    lane._mode_switch = mode_switch.ModeSwitch(mode=mode_switch.Mode.CATCHING_UP, since=0.0)
    lane._topics = SimpleNamespace(partitions={"a": 1}, find=lambda: None)
    lane._await_topics = lambda _: True
    ends, modes = iter([realtime_query.QueryEnd.READ_AGAIN, realtime_query.QueryEnd.STOP]), []
    lane._run_query = lambda *_, **__: modes.append(lane._mode_switch.mode) or next(ends)
    lane.run(SimpleNamespace(wait_for=lambda _: None), once=False)
    assert modes == [mode_switch.Mode.CATCHING_UP, mode_switch.Mode.REALTIME]
    query = SimpleNamespace(once=False, mode=mode_switch.Mode.REALTIME, server=SimpleNamespace(paused={("a", 0)}))
    assert not lane._switches_mode(query, 3600.0)


def test_what_had_ended_before_a_fault_is_known_while_its_partition_is_paused(monkeypatch):
    """Regression: the second query after the fault had forgotten these deliveries, and sent them again."""
    ended, begun = iter([{b"before"}, {b"later"}, {b"last"}]), []
    monkeypatch.setattr(realtime_query.recovery, "require_whole", lambda *_: None)
    monkeypatch.setattr(start_offsets, "save", lambda *_: None)
    monkeypatch.setattr(start_offsets, "read", lambda *_: start_offsets.StartOffsets({}, frozenset(next(ended))))
    lane = realtime_query.RealtimeLane.__new__(realtime_query.RealtimeLane)
    lane._config, lane._checkpoint, lane._mode_switch = settings.Settings(), "", mode_switch.ModeSwitch(since=0.0)
    lane._one_by_one = lane._in_batches = SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]"))
    lane._topics = SimpleNamespace(have_slots=lambda: True, total=1)

    def start(found, *_, **__):
        begun.append(found.ended)
        raise errors.LaneFailed("the test begins no query")

    lane._start = start
    for reads_again in (False, True, True):
        lane._reads_again = reads_again
        with pytest.raises(errors.LaneFailed):
            lane._run_query(None, once=False)
    assert begun == [{b"before"}, {b"before", b"later"}, {b"before", b"last"}]


def test_a_fault_restarts_the_query_and_says_where_to_look(watch_of, caplog):
    assert watch_of(fault=lambda: "task 3 failed: ValueError: x") is realtime_query.QueryEnd.FAULT
    assert "restarts its query at the first unconfirmed record" in caplog.text
    assert ", because task 3 failed: ValueError: x." in caplog.text
    assert "its traceback in the worker's log" in caplog.text


def test_a_lane_that_restarts_in_vain_names_the_fault():
    """The message said None where the end of the query had ended the silent task as well."""
    vain = realtime_query.RealtimeLane.__new__(realtime_query.RealtimeLane)
    vain._restarts = realtime_query.MOST_RESTARTS
    with pytest.raises(errors.LaneFailed, match=r"task 3 has not reported for 10 s\. .*and their network"):
        vain._count_restart("task 3 has not reported for 10 s")


def test_tasks_end_their_deliveries_when_one_waits_for_a_schema():
    """Regression: after the fault of one task nothing waited for the others, and Spark aborted their deliveries."""
    running = iter([2, 1, 0])
    calls = []

    class Server:
        stop_tasks = staticmethod(lambda: calls.append("stop"))
        fault = staticmethod(lambda: None)
        running_tasks = property(lambda _: next(running))

    stopping = realtime_query.RealtimeLane.__new__(realtime_query.RealtimeLane)
    stopping._config = settings.Settings()
    stopping._stop_tasks(SimpleNamespace(server=Server(), streaming_query=SimpleNamespace(isActive=True)))
    assert (calls, list(running)) == (["stop"], [])


def test_tasks_that_do_not_end_their_deliveries_in_time_are_named(caplog):
    """Regression: the job said that all results were written, and its workers were still delivering."""
    server = SimpleNamespace(stop_tasks=lambda: None, running_tasks=2)
    stopping = realtime_query.RealtimeLane.__new__(realtime_query.RealtimeLane)
    stopping._config = SimpleNamespace(delivery=SimpleNamespace(stop_within_s=-realtime_query.STOPS_WITHIN_S))
    stopping._stop_tasks(SimpleNamespace(server=server, streaming_query=SimpleNamespace(isActive=True)))
    assert "2 tasks of lane realtime have not ended the deliveries that they had begun" in caplog.text


class Timeout:
    """Spark's exception after `spark.sql.streaming.stopTimeout`, as the JVM returns it."""

    _target_id = "o1"

    def __str__(self):
        return "java.util.concurrent.TimeoutException: Stream Execution thread failed to stop within 30000 milliseconds"


def test_a_query_that_does_not_end_in_time_is_left_to_the_process(caplog):
    """Regression: the error of Spark's `stop` left the real-time lane, and all lanes stopped."""

    def stop():
        raise Py4JJavaError("An error occurred while calling o1.stop", Timeout())

    levels = []
    spark = SimpleNamespace(sparkContext=SimpleNamespace(setLogLevel=levels.append))
    stopping = realtime_query.RealtimeLane.__new__(realtime_query.RealtimeLane)
    stopping._one_by_one = spark
    stopping._end(SimpleNamespace(stop=stop))
    assert "the query of lane realtime did not end within 30s of its stop (java.util.concurrent.TimeoutException" in caplog.text
    assert levels == ["OFF", session.LOG_LEVEL]
