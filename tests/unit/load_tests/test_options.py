"""A load test refuses a load that it cannot make, before it starts a server."""

import pytest
import typer

from load_tests.harness import traffic
from load_tests.scaling import simulated_days
from load_tests.scenarios import mission


def test_endpoints_that_cannot_be_divided_among_event_types_are_refused():
    """Regression: after the servers had started, the registry failed with an IndexError."""
    with pytest.raises(typer.BadParameter, match="--endpoints must be a multiple of 10"):
        traffic.Customers(endpoints=15)


def test_fewer_tenants_than_endpoints_are_refused():
    """Regression: after the servers had started, the registry was refused, because subscriptions named no tenant."""
    with pytest.raises(typer.BadParameter, match="--tenants must be at least 20"):
        mission.MissionPopulation(topics=5, tenants=10, endpoints=20)


def test_a_spike_that_needs_no_executor_is_named():
    """Regression: the simulation ended with StopIteration."""
    with pytest.raises(typer.BadParameter, match="never requests more executors, so there are no figures: change --base-per-s"):
        simulated_days.run(simulated_days.ScalingScenario(base_per_s=10, days=0.25))
