"""The number of executors stays in its bounds, does not fall with more lag, and stays the same at a constant load."""

from hypothesis import given, settings
from hypothesis import strategies as st

from delivery.stages.scaling import decision
from load_tests.scaling import simulation
from tests.support import loads

COSTS = simulation.Costs(per_executor=10_000, micro_batch_s=0.3, start_s=(6, 20), plan_s=2)
POLICY = loads.policy(max_executors=12)
EVERY_S = 5.0
SETTLED_S = 600.0
"""Seconds after the throughput was measured first in which the number may move: to drain, and to go back step by step."""


def cluster(load_per_s, *, seed=0, executors=1):
    return simulation.Cluster(COSTS, load_per_s, partitions=60, at_most=20_000, executors=executors, seed=seed)


def history(load_per_s, seconds, **fields):
    return list(simulation.history(cluster(load_per_s, **fields), POLICY, seconds=seconds, every_s=EVERY_S))


@given(
    lags=st.lists(st.one_of(st.none(), st.integers(0, 10**7)), min_size=1, max_size=40),
    handled=st.integers(0, 10**6),
    executors=st.integers(0, 20),
    partitions=st.integers(0, 50),
)
def test_the_number_stays_between_its_bounds(lags, handled, executors, partitions):
    state, rules = decision.ScalingState(wanted=3), loads.policy(min_executors=2, max_executors=7)
    for number, lag in enumerate(lags):
        seen = {"direct": loads.seen(number * EVERY_S, lag, handled=handled * number, partitions=partitions)}
        decided = decision.decide(state, seen, rules, executors=executors, now_s=number * EVERY_S)
        assert 2 <= decided.wanted <= 7
        assert (decided.wanted > state.wanted) == (decided.reason is decision.Reason.LAG)
        assert (decided.wanted < state.wanted) == (decided.reason is decision.Reason.IDLE)
        state = decided.state


@given(
    lag=st.integers(0, 10**6),
    more=st.integers(0, 10**6),
    arrival_per_s=st.integers(0, 20_000),
    per_executor=st.one_of(st.none(), st.integers(1, 20_000)),
    executors=st.integers(1, 10),
)
def test_more_lag_never_asks_for_fewer_executors(lag, more, arrival_per_s, per_executor, executors):
    sufficed = [(900.0, 1), (990.0, 1)]
    few, many = (
        loads.decide(
            loads.measured(lag=waiting, arrival_per_s=arrival_per_s, per_executor=per_executor, executors=executors),
            executors,
            sufficed=sufficed,
        )
        for waiting in (lag, lag + more)
    )
    assert few.wanted <= many.wanted


@settings(max_examples=15, deadline=None)
@given(per_s=st.integers(0, 90_000), executors=st.integers(1, 12), seed=st.integers(0, 1000))
def test_a_constant_load_does_not_move_the_number(per_s, executors, seed):
    """This holds once a throughput is known. Before, fewer executors may be tried."""
    moments = history(lambda _: per_s, 3600, executors=executors, seed=seed)
    is_known = [moment.decided.state.lanes[simulation.LANE].per_executor is not None for moment in moments]
    since = is_known.index(True) + int(SETTLED_S / EVERY_S) if any(is_known) else len(moments)
    assert len({moment.decided.wanted for moment in moments[since:]}) <= 1


@settings(max_examples=15, deadline=None)
@given(base=st.integers(100, 5_000), began=st.integers(100, 1000), lasts=st.integers(60, 1200), seed=st.integers(0, 1000))
def test_a_tenfold_spike_adds_executors_for_as_long_as_needed(base, began, lasts, seed):
    """The minimum handles the load before the spike, but not the spike. The number rises in 30 s, and falls in 5 minutes."""
    spike = max(10 * base, 20_000)
    moments = history(lambda now: spike if began <= now < began + lasts else base, began + lasts + 600, seed=seed)
    asked = [moment.at_s for moment in moments if moment.decided.wanted > 1 and moment.at_s > began]
    assert asked[0] <= began + 30
    assert all(moment.decided.wanted == 1 for moment in moments if moment.at_s > began + lasts + 300)
