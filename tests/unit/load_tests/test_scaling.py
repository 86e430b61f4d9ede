"""The simulated days of load: the same seed gives the same figures, and the plot shows them."""

import orjson

from load_tests.scaling import scaling_plots, simulated_days, simulation

SCENARIO = simulated_days.ScalingScenario(days=0.25)


def test_the_same_seed_gives_the_same_figures_and_the_same_plot(tmp_path):
    figures = [simulated_days.run(SCENARIO) for _ in range(2)]
    assert orjson.dumps(figures[0]) == orjson.dumps(figures[1])
    for number, drawn in enumerate(figures):
        scaling_plots.draw(drawn, tmp_path / f"{number}.svg")
    assert (tmp_path / "0.svg").read_bytes() == (tmp_path / "1.svg").read_bytes()


def test_the_simulation_handles_each_event_once():
    costs = simulation.Costs(per_executor=1000, micro_batch_s=0.5, start_s=(1, 2), plan_s=1)
    cluster = simulation.Cluster(
        costs, lambda now_s: 900.0 if now_s <= 100 else 0.0, partitions=4, at_most=500, executors=1, seed=1
    )
    cluster.advance(300)
    assert (cluster.published, cluster.lag, cluster.seen().handled) == (90_000, 0, 90_000)


def test_a_requested_executor_is_registered_after_its_start_time():
    costs = simulation.Costs(per_executor=1000, micro_batch_s=0.5, start_s=(6, 20), plan_s=1)
    cluster = simulation.Cluster(costs, lambda _: 0.0, partitions=4, at_most=500, executors=1, seed=1)
    cluster.want(5)
    cluster.advance(5)
    assert cluster.executors == 1
    cluster.advance(15)
    assert cluster.executors == 5
    cluster.want(2)
    assert cluster.executors == 2
