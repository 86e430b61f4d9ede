"""The number of wanted executors, and the reason for it."""

import math

import pytest

from delivery.stages.scaling import decision, load
from delivery.stages.scaling.decision import Reason
from tests.support import loads


@pytest.mark.parametrize(
    ("known", "executors", "wanted", "reason"),
    [
        # An executor handles 1,000/s. 60 s are allowed for the lag.
        pytest.param(loads.measured(), 1, 1, Reason.ENOUGH, id="nothing waits"),
        pytest.param(loads.measured(lag=5_000, arrival_per_s=950), 1, 1, Reason.ENOUGH, id="a micro-batch under way"),
        pytest.param(loads.measured(lag=12_000, arrival_per_s=500), 1, 1, Reason.ENOUGH, id="drains in 24 s"),
        pytest.param(loads.measured(lag=60_000, arrival_per_s=500), 1, 2, Reason.LAG, id="500/s and 1,000/s of lag: 1.5"),
        pytest.param(loads.measured(lag=24_000, arrival_per_s=5_000), 1, 6, Reason.LAG, id="5,000/s and 400/s: at once 6"),
        pytest.param(loads.measured(lag=90_000, arrival_per_s=9_000), 1, 10, Reason.LAG, id="10.5, and the maximum is 10"),
        pytest.param(loads.measured(lag=900_000, arrival_per_s=9_000), 10, 10, Reason.AT_MAXIMUM, id="no more allowed"),
        pytest.param(
            loads.measured(lag=90_000, arrival_per_s=9_000, partitions=5), 1, 3, Reason.LAG, id="5 partitions, 2 cores: 3"
        ),
        pytest.param(
            loads.measured(lag=90_000, arrival_per_s=9_000, partitions=5), 3, 3, Reason.AT_PARTITIONS, id="no more to read"
        ),
        pytest.param(loads.measured(lag=9_000, arrival_per_s=5_000), 1, 1, Reason.ENOUGH, id="9 s of work: not behind yet"),
    ],
)
def test_more_executors_come_at_once_when_the_lag_would_not_drain(known, executors, wanted, reason):
    decided = loads.decide(known, executors)
    assert (decided.wanted, decided.reason) == (wanted, reason)


@pytest.mark.parametrize(
    ("sufficed", "fell_s_ago", "wanted", "reason"),
    [
        pytest.param([(60, 1), (30, 1)], 1000, 4, Reason.IDLE, id="1 sufficed for a minute: half of the way"),
        pytest.param([(59, 1), (30, 1)], 1000, 8, Reason.ENOUGH, id="not for long enough"),
        pytest.param([(60, 1), (30, 7)], 1000, 7, Reason.IDLE, id="7 were needed within it"),
        pytest.param([(60, 1), (30, 8)], 1000, 8, Reason.ENOUGH, id="all were needed within it"),
        pytest.param([(60, 1), (30, 1)], 19, 8, Reason.ENOUGH, id="the last step was 19 s ago"),
        pytest.param([(60, 1), (30, 1)], 20, 4, Reason.IDLE, id="the last step was 20 s ago"),
    ],
)
def test_fewer_executors_remain_step_by_step_when_fewer_would_have_sufficed(sufficed, fell_s_ago, wanted, reason):
    known = loads.measured(executors=8, arrival_per_s=100)
    sufficed = [(1000.0 - ago, number) for ago, number in sufficed]
    decided = loads.decide(known, 8, sufficed=sufficed, fell_at_s=1000.0 - fell_s_ago)
    assert (decided.wanted, decided.reason) == (wanted, reason)


@pytest.mark.parametrize(("arrival_per_s", "sufficient"), [(740, 1), (760, 2), (1_490, 2), (1_510, 3)])
def test_what_would_suffice_leaves_a_quarter_free(arrival_per_s, sufficient):
    decided = loads.decide(loads.measured(executors=8, arrival_per_s=arrival_per_s), 8)
    assert decided.state.sufficed[-1][1] == sufficient


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"pause_reason": "the registry is too old"}, Reason.HOLDING),
        ({"is_source_up": False, "lag": None}, Reason.KAFKA_AWAY),
        ({"lag": None}, Reason.UNKNOWN),
    ],
)
@pytest.mark.parametrize("lag", [0, 10_000_000])
def test_the_number_stays_while_nothing_can_be_said_of_the_load(lag, fields, reason):
    known = loads.measured(lag=lag, arrival_per_s=100, executors=5)
    decided = loads.decide(known, 5, sufficed=[(900.0, 1), (990.0, 1)], **{"lag": lag, **fields})
    assert (decided.wanted, decided.reason) == (5, reason)


def test_what_waited_during_a_hold_does_not_count_as_what_came():
    held = loads.decide(loads.measured(arrival_per_s=900), pause_reason="Postgres is away")
    after = loads.seen(1005.0, 500_000)
    decided = decision.decide(held.state, {"direct": after}, loads.policy(), executors=1, now_s=1005.0)
    assert decided.wanted == 9  # 500,000 in 60 s; no arrivals are known yet


def test_a_lane_whose_lag_is_not_known_keeps_no_other_from_getting_more():
    known, new = loads.measured(lag=90_000, arrival_per_s=5_000), loads.seen(1000.0, None, partitions=0)
    state = decision.ScalingState(wanted=1, lanes={"direct": known})
    direct = loads.seen(1000.0, 90_000, handled=100_000)
    decided = decision.decide(state, {"retry": new, "direct": direct}, loads.policy(), executors=1, now_s=1000.0)
    assert (decided.reason, decided.lane) == (Reason.LAG, "direct")


def test_lanes_without_topics_need_no_executor():
    none = loads.seen(1000.0, None, partitions=0, has_no_topics=True)
    state = decision.ScalingState(wanted=4, sufficed=((900.0, 1), (990.0, 1)))
    decided = decision.decide(state, {"direct": none, "batch": none}, loads.policy(), executors=4, now_s=1000.0)
    assert (decided.wanted, decided.reason, decided.drain_s) == (2, Reason.IDLE, 0.0)


def test_the_lane_that_needs_most_decides():
    lanes = {"direct": loads.measured(arrival_per_s=100), "batch": loads.measured(lag=50_000, arrival_per_s=3_000)}
    seen = {name: loads.seen(1000.0, known.lag, handled=known.window[-1].handled + 500) for name, known in lanes.items()}
    decided = decision.decide(decision.ScalingState(wanted=1, lanes=lanes), seen, loads.policy(), executors=1, now_s=1000.0)
    assert decided.lane == "batch"


def test_a_lane_that_is_late_is_shown_although_another_has_more_partitions():
    """Regression: the idle lane was shown, as if all lanes had drained."""
    late = loads.measured(executors=2, lag=90_000, arrival_per_s=9_000, partitions=2)
    idle = loads.measured(executors=2, partitions=6)
    lanes = {"direct": late, "retry": idle}
    seen = {
        "direct": loads.seen(1000.0, 90_000, handled=late.window[-1].handled + 45_000, partitions=2),
        "retry": loads.seen(1000.0, 0, partitions=6),
    }
    state = decision.ScalingState(wanted=2, lanes=lanes)
    decided = decision.decide(state, seen, loads.policy(), executors=2, now_s=1000.0)
    assert (decided.reason, decided.lane, decided.drain_s, decided.wanted) == (Reason.AT_PARTITIONS, "direct", math.inf, 2)


def test_a_first_start_that_is_behind_asks_for_twice_as_many_and_no_more():
    known = loads.measured(lag=1_000_000, arrival_per_s=100, per_executor=None, executors=3)
    assert loads.decide(known, 3).wanted == 6


def test_with_unknown_throughput_requested_executors_are_awaited_first():
    known = loads.measured(lag=1_000_000, arrival_per_s=100, per_executor=None, executors=3)
    state = decision.ScalingState(wanted=4, lanes={"direct": known})
    seen = {"direct": loads.seen(1000.0, 1_000_000, handled=known.window[-1].handled + 500)}
    assert decision.decide(state, seen, loads.policy(), executors=3, now_s=1000.0).wanted == 4


def test_a_lane_that_was_never_behind_lets_one_executor_go_at_a_time():
    known = loads.measured(arrival_per_s=100, per_executor=None, executors=5)
    assert loads.decide(known, 5, sufficed=[(930.0, 4), (999.0, 4)]).wanted == 4


def test_a_lane_with_nothing_to_do_holds_no_other_back():
    """The retry lane is never behind while all endpoints answer, so that its throughput is not known."""
    idle = loads.measured(per_executor=None, executors=8)
    lanes = {"direct": loads.measured(arrival_per_s=100, executors=8), "retry": idle}
    seen = {name: loads.seen(1000.0, 0, handled=known.window[-1].handled) for name, known in lanes.items()}
    state = decision.ScalingState(wanted=8, lanes=lanes, sufficed=((900.0, 1), (990.0, 1)))
    assert decision.decide(state, seen, loads.policy(), executors=8, now_s=1000.0).wanted == 4


@pytest.mark.parametrize(
    ("executors", "drain_s"), [(1, math.inf), (2, 30.0)], ids=["1,500/s come and 1,000/s go", "500/s more go than come"]
)
def test_the_time_to_drain_is_that_of_the_executors_of_now(executors, drain_s):
    known = loads.measured(lag=15_000, arrival_per_s=1_500, executors=executors)
    assert loads.decide(known, executors).drain_s == pytest.approx(drain_s)


class Observed:
    """A lane that is observed every 5 s."""

    def __init__(self, lag=1_000_000, per_s=800, executors=1):
        self.known, self.now_s, self.handled = load.Measured(executors=executors), 0.0, 0
        self.lag, self.per_s, self.executors = lag, per_s, executors

    def goes_on(self, seconds):
        for _ in range(seconds // 5):
            self.now_s += 5
            self.handled += self.per_s * 5
            self.known = self.known.observed(loads.seen(self.now_s, self.lag, handled=self.handled), self.executors)
        return self.known


def test_the_throughput_is_measured_while_the_lane_is_behind():
    lane = Observed(per_s=1_600, executors=2)
    assert lane.goes_on(15).per_executor is None
    assert lane.goes_on(5).per_executor == 800


def test_the_throughput_is_not_measured_while_the_lane_keeps_up():
    lane = Observed(lag=7_000)
    assert lane.goes_on(600).per_executor is None
    assert lane.known.proven == 800


def test_the_throughput_is_not_measured_until_new_executors_are_at_work():
    lane = Observed()
    lane.goes_on(30)
    lane.executors, lane.per_s = 2, 0
    lane.goes_on(10)
    lane.per_s = 1_400
    assert lane.goes_on(30).per_executor == 800, "as before"
    assert lane.goes_on(5).per_executor == 700


def test_a_throughput_is_forgotten_after_six_hours():
    lane = Observed()
    lane.goes_on(60)
    lane.lag = 0
    assert lane.goes_on(6 * 3600 - 60).per_executor == 800
    assert lane.goes_on(65).per_executor is None


def test_an_observation_that_is_not_new_changes_nothing():
    lane = Observed()
    known = lane.goes_on(60)
    assert known.observed(known.window[-1], 5) is known
