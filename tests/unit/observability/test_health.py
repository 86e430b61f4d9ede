"""The health, the readiness and the lag of a lane."""

import threading

import pytest

from delivery.observability import health
from delivery.observability.health import Facts, QueryPhase
from delivery.stages.kafka import lag
from tests.support import fakes

STALLED_AFTER_S = 300


def facts(phase=QueryPhase.RUNNING, *, pause_reason=None, lag=0, **others):
    return Facts(phase=phase, pause_reason=pause_reason, lag=lag, **{"stalled_s": 0.0} | others)


@pytest.mark.parametrize(
    ("known", "is_healthy"),
    [
        pytest.param(facts(), True, id="idle"),
        pytest.param(facts(stalled_s=1e6), True, id="idle for long"),
        pytest.param(facts(lag=5, stalled_s=300), True, id="work, and something was committed in time"),
        pytest.param(facts(lag=5, stalled_s=301), False, id="work, and nothing was committed in time"),
        pytest.param(facts(lag=5, stalled_s=301, pause_reason="Postgres"), True, id="work, held on purpose"),
        pytest.param(facts(lag=None, stalled_s=301, is_source_up=False), True, id="Kafka does not answer"),
        pytest.param(facts(lag=None, stalled_s=301), True, id="an unknown lag"),
        pytest.param(facts(lag=None, stalled_s=300, awaits_report=True), True, id="the first report may still come"),
        pytest.param(facts(lag=None, stalled_s=301, awaits_report=True), False, id="the first report is overdue"),
        pytest.param(
            facts(lag=None, stalled_s=301, awaits_report=True, pause_reason="Postgres"), True, id="no report, held on purpose"
        ),
        pytest.param(facts(QueryPhase.STARTING, lag=None, stalled_s=300), True, id="starting"),
        pytest.param(facts(QueryPhase.STARTING, lag=None, stalled_s=301), False, id="starting for too long"),
        pytest.param(
            facts(QueryPhase.STARTING, lag=None, stalled_s=301, pause_reason="Postgres"),
            True,
            id="waiting for the first registry",
        ),
        pytest.param(facts(QueryPhase.STOPPING, lag=5, stalled_s=301), True, id="asked to stop"),
        pytest.param(facts(QueryPhase.ENDED), False, id="the query has ended"),
        pytest.param(facts(QueryPhase.ENDED, pause_reason="Postgres"), False, id="the query has ended while Postgres is away"),
    ],
)
def test_a_lane_is_healthy_unless_a_restart_would_help(known, is_healthy):
    assert health.liveness(known, STALLED_AFTER_S).ok is is_healthy


@pytest.mark.parametrize(
    ("known", "is_ready", "reason"),
    [
        (facts(), True, "running"),
        (facts(lag=10_000, stalled_s=1e6), True, "running"),
        (
            facts(pause_reason="the registry was last confirmed 9 s ago"),
            False,
            "paused: the registry was last confirmed 9 s ago",
        ),
        (facts(lag=None), True, "running"),
        (facts(lag=None, is_source_up=False), False, health.SOURCE_AWAY),
        (facts(QueryPhase.STARTING, is_source_up=False), False, "starting"),
        (facts(QueryPhase.STARTING), False, "starting"),
        (
            facts(QueryPhase.STARTING, pause_reason="the registry has not been read yet"),
            False,
            "paused: the registry has not been read yet",
        ),
        (facts(QueryPhase.STOPPING, pause_reason="Postgres"), False, "stopping"),
        (facts(QueryPhase.ENDED), False, health.QUERY_ENDED),
    ],
)
def test_a_lane_is_ready_if_it_would_deliver_an_event_now(known, is_ready, reason):
    verdict = health.readiness(known)
    assert (verdict.ok, verdict.reason) == (is_ready, reason)


class Lane:
    """A watch, with a clock and answers of Kafka that the test sets."""

    def __init__(self):
        self.clock = fakes.Clock()
        self.hold = None
        self.stop = threading.Event()
        self.watch = health.Watch(pause_reason=lambda: self.hold, stop=self.stop, clock=self.clock)

    def after(self, seconds, *, lag, is_source_up=True):
        """Let time pass. The watch observes the lag every 10 s."""
        for _ in range(seconds // 10):
            self.clock.now += 10
            self.watch.observe(health.Backlog(lag=lag), is_source_up=is_source_up)
        return self.watch.facts()


@pytest.fixture
def lane():
    made = Lane()
    made.watch.enter(QueryPhase.RUNNING)
    return made


def test_a_stall_counts_from_the_first_waiting_record(lane):
    assert lane.after(3600, lag=0).stalled_s == 0
    assert lane.after(200, lag=5).stalled_s == 200


def test_records_that_were_handled_since_the_lag_was_read_are_no_stall(lane):
    """Regression: with a metrics.lag_interval_s above metrics.stalled_after_s, an idle job was restarted again and again."""
    lane.after(10, lag=1)
    lane.clock.now += 0.1
    lane.watch.reach({"t": {0: 1}})
    lane.clock.now += 3600
    assert health.liveness(lane.watch.facts(), 300).ok
    assert not health.liveness(lane.after(310, lag=1), 300).ok


def test_time_of_a_pause_is_no_stall(lane):
    lane.hold = "Postgres"
    assert lane.after(3600, lag=5).stalled_s == 0
    lane.hold = None
    assert lane.after(30, lag=5).stalled_s == 30


def test_time_without_the_schema_registry_is_no_stall(lane):
    """Regression: the probe asked for a restart of the process, though a restart does not bring the registry back."""
    lane.watch.wait_for("the schema registry does not answer")
    facts = lane.after(3600, lag=5)
    assert facts.stalled_s == 0
    assert health.readiness(facts).reason == "paused: the schema registry does not answer"
    lane.watch.reach({"orders": {0: 7}})
    assert health.readiness(lane.watch.facts()).ok


def test_time_without_kafka_at_the_start_is_no_stall(lane):
    lane.watch.enter(QueryPhase.STARTING)
    assert lane.after(3600, lag=None, is_source_up=False).stalled_s == 0
    assert lane.after(30, lag=None).stalled_s == 30


def test_a_stall_counts_until_the_first_report_of_the_query(lane):
    """Regression: a lane whose first micro-batch after a start hung counted as healthy for ever."""
    lane.watch.awaits_report = True
    assert lane.after(200, lag=None).stalled_s == 200
    lane.watch.awaits_report = False
    assert lane.after(10, lag=None).stalled_s == 0


def test_a_query_that_starts_again_makes_no_progress(lane):
    assert lane.after(100, lag=5).stalled_s == 100
    lane.watch.enter(QueryPhase.RUNNING)
    assert lane.watch.facts().stalled_s == 100


def test_only_new_positions_are_progress(lane):
    lane.watch.reach({"orders": {0: 7}})
    assert lane.after(100, lag=5).stalled_s == 100
    lane.watch.reach({"orders": {0: 7}})
    assert lane.watch.facts().stalled_s == 100
    lane.watch.reach({"orders": {0: 8}})
    assert lane.watch.facts().stalled_s == 0


def test_a_stopped_lane_is_stopping_until_its_query_has_ended(lane):
    lane.stop.set()
    assert lane.watch.facts().phase is QueryPhase.STOPPING
    lane.watch.enter(QueryPhase.ENDED)
    assert lane.watch.facts().phase is QueryPhase.ENDED


def test_the_lag_is_the_ends_of_partitions_minus_the_positions():
    positions = {"orders": {0: 5, 1: 7}, "users": {0: 3}}
    ends = {"orders": {0: 9, 1: 10}, "users": {0: 3}}
    assert lag.by_topic(positions, ends) == {"orders": 4 + 3, "users": 0}


def test_a_position_beyond_the_end_counts_as_no_lag():
    """Kafka was asked for the ends of the partitions just before a micro-batch was committed."""
    assert lag.by_topic({"orders": {0: 9}}, {"orders": {0: 5}}) == {"orders": 0}


def test_handled_records_are_counted_on_known_partitions_only():
    before = {"orders": {0: 10, 1: 7}}
    now = {"orders": {0: 15, 1: 7, 2: 1_000_000}, "users": {0: 500}}
    assert lag.handled_between(before, now) == 5


def test_a_recreated_topic_counts_no_handled_records():
    assert lag.handled_between({"orders": {0: 10}}, {"orders": {0: 2}}) == 0
