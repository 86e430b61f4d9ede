"""Drivers and executors: one job a checkpoint, a stop with time enough, executors by number or by what waits."""

import tomllib

import pytest

from delivery.config import settings
from delivery.stages.realtime import slots
from tests.chart import rendering


def driver(values, name="here-fanout-all"):
    return rendering.of_kind("Deployment", rendering.rendered(values))[name]["spec"]


def budgets(values):
    found = rendering.of_kind("PodDisruptionBudget", rendering.rendered(values))
    return {name: budget["spec"] for name, budget in found.items()}


def test_one_job_works_on_a_checkpoint_that_outlives_the_release():
    documents = rendering.rendered(rendering.APART)
    drivers = rendering.of_kind("Deployment", documents)
    assert set(drivers) == {"here-fanout-fast", "here-fanout-slow"}
    for found in drivers.values():
        assert (found["spec"]["replicas"], found["spec"]["strategy"]) == (1, {"type": "Recreate"})
    assert drivers["here-fanout-slow"]["spec"]["template"]["spec"]["containers"][0]["args"][-1] == "batch,retry"
    claims = rendering.of_kind("PersistentVolumeClaim", documents)
    assert {name: claim["metadata"]["annotations"] for name, claim in claims.items()} == {
        "here-fanout-fast": {"helm.sh/resource-policy": "keep"}
    }


@pytest.mark.parametrize("delivery", [{}, {"stop_within_s": 100}, {"lane_deadline_s": 8.5, "attempt_timeout_s": 30}])
def test_a_stop_has_65_seconds_more_than_the_settings_grant(delivery):
    lane = settings.DeliverySettings.model_validate(delivery)
    granted = lane.stop_within_s + lane.lane_deadline_s + lane.attempt_timeout_s
    pod = driver(rendering.MINIMAL | {"config": {"delivery": delivery}})["template"]["spec"]
    assert 65 <= pod["terminationGracePeriodSeconds"] - granted < 66


def test_a_fixed_number_of_executors_makes_a_task_for_each_core():
    documents = rendering.rendered(rendering.EXECUTORS)
    taken = settings.Settings.model_validate(tomllib.loads(rendering.settings_of(documents, "here-fanout-all")))
    assert (taken.spark.master, taken.spark.parallelism) == ("k8s://https://kubernetes.default.svc", 6)
    assert taken.spark.conf["spark.executor.instances"].get_secret_value() == "3"
    assert "scaling" not in tomllib.loads(rendering.settings_of(documents, "here-fanout-all"))
    assert "master" not in tomllib.loads(rendering.settings_of(documents))["spark"]


def test_executors_that_scale_begin_with_the_fewest():
    written = tomllib.loads(rendering.settings_of(rendering.rendered(rendering.AUTOSCALING), "here-fanout-all"))
    assert written["scaling"] == {"min_executors": 2, "max_executors": 12}
    assert written["spark"]["conf"]["spark.executor.instances"] == "2"
    assert written["spark"]["parallelism"] == 4


def spark_with(lanes, executors, spark=None):
    """The area `spark` of a driver that has these lanes and executors, where a pattern for lane realtime is set."""
    config = {"source": {"realtime_pattern": r"events\.fast\..+"}, "spark": spark or {}}
    drivers = {"all": {"lanes": lanes, "executors": rendering.EACH | executors}}
    documents = rendering.rendered({"secrets": rendering.SECRETS, "config": config, "drivers": drivers})
    return tomllib.loads(rendering.settings_of(documents, "here-fanout-all"))["spark"]


@pytest.mark.parametrize(
    ("lanes", "executors", "spark", "tasks"),
    [
        (["direct", "batch", "realtime"], {"count": 3}, {}, 3),  # of 6 cores
        (["direct", "realtime"], {"count": 1}, {}, 1),
        (["direct", "realtime"], {"autoscaling": {"min": 2, "max": 12}}, {}, 2),
        (["direct", "realtime"], {"count": 3}, {"parallelism": 5}, 5),
        (["realtime"], {"count": 3}, {}, 6),
        (["direct", "batch"], {"count": 3}, {}, 6),
    ],
)
def test_other_lanes_leave_cores_to_lane_realtime(lanes, executors, spark, tasks):
    """Regression: they had all cores of any number of executors, so a driver with both never started."""
    assert spark_with(lanes, executors, spark)["parallelism"] == tasks


@pytest.mark.parametrize("partitions", [1, 2, 7])
def test_as_many_cores_as_the_refusal_names_are_enough(partitions):
    """Regression: the message asked for more executor cores, and the chart gave each of them to the other lanes."""
    topics = {"events.fast.orders": partitions}
    refused = slots.refusal(topics, slots=1, for_others=1)
    assert f"give drivers.NAME.executors at least {2 * partitions} cores in all at the start" in refused
    tasks = spark_with(["direct", "realtime"], {"count": partitions, "cores": 2})["parallelism"]
    assert slots.refusal(topics, slots=2 * partitions, for_others=tasks) is None


@pytest.mark.parametrize(("executors", "most"), [({"count": 1}, 10), ({"autoscaling": {"min": 2, "max": 12}}, 120)])
def test_only_failures_of_the_last_hour_end_a_driver(executors, most):
    """Regression: Spark ended a driver of one executor at the fourth eviction, however many months lay between them."""
    conf = spark_with(["direct"], executors)["conf"]
    assert conf["spark.executor.failuresValidityInterval"] == "1h"
    assert conf["spark.executor.maxNumFailures"] == str(most)


def test_an_executor_has_60_seconds_to_end():
    """Regression: Spark replaced the template's 60 s by 30 s, its own default."""
    conf = spark_with(["direct"], {"count": 1})["conf"]
    assert conf["spark.kubernetes.executor.terminationGracePeriodSeconds"] == "60s"
    assert "terminationGracePeriodSeconds" not in rendering.executor_template(rendering.EXECUTORS)["spec"]


def test_a_driver_with_executors_shares_its_checkpoint_with_them():
    claims = rendering.of_kind("PersistentVolumeClaim", rendering.rendered(rendering.EXECUTORS))
    assert claims["here-fanout-all"]["spec"]["accessModes"] == ["ReadWriteMany"]
    assert claims["here-fanout-slow"]["spec"]["accessModes"] == ["ReadWriteOnce"]
    volumes = rendering.executor_template(rendering.EXECUTORS)["spec"]["volumes"]
    assert volumes[0]["persistentVolumeClaim"]["claimName"] == "here-fanout-all"


@pytest.mark.parametrize(
    ("executors", "kept"),
    [
        ({"count": 3}, 2),
        ({"count": 1}, None),
        ({"autoscaling": {"min": 2, "max": 9}}, 1),
        ({"autoscaling": {"min": 1, "max": 9}}, None),
    ],
)
def test_a_drain_takes_one_of_several_executors_at_a_time(executors, kept):
    values = {"secrets": rendering.SECRETS, "drivers": {"all": {"executors": rendering.EACH | executors}}}
    found = budgets(values).get("here-fanout-all-executors")
    assert (found and found["minAvailable"]) == kept


def test_no_budget_keeps_a_driver_from_being_drained():
    components = {
        name: budget["selector"]["matchLabels"]["app.kubernetes.io/component"]
        for name, budget in budgets(
            rendering.EVERYTHING | {"drivers": rendering.EXECUTORS["drivers"], "networkPolicy": {}}
        ).items()
    }
    assert components == {
        "here-fanout-serve": "serve",
        "here-fanout-archive": "archive",
        "here-fanout-all-executors": "executor",
    }


def test_new_settings_or_a_new_secrets_revision_restart_pods():
    def annotations(values):
        return driver(values)["template"]["metadata"]["annotations"]

    before = annotations(rendering.MINIMAL)
    assert before == annotations(rendering.MINIMAL | {"podMonitor": {"enabled": True}})
    assert before != annotations(rendering.MINIMAL | {"config": {"delivery": {"max_in_flight": 7}}})
    assert annotations(rendering.MINIMAL | {"secretsRevision": "2"}) == before | {"fanout/secrets-revision": "2"}


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_pods_serve_at_the_address_that_is_chosen(address):
    """Regression: the chart took no address of IPv6, so no probe reached a pod of a cluster with IPv6 only."""
    documents = rendering.rendered(rendering.EXECUTORS | {"listenAddress": address})
    for name in ("here-fanout", "here-fanout-all"):
        taken = settings.Settings.model_validate(tomllib.loads(rendering.settings_of(documents, name)))
        assert (taken.metrics.host, taken.api.host) == (address, address)


def test_the_settings_are_those_that_the_platform_takes():
    documents = rendering.rendered(rendering.EVERYTHING)
    taken = settings.Settings.model_validate(tomllib.loads(rendering.settings_of(documents)))
    assert taken.source.topic_pattern == r"events\..+"
    assert taken.source.max_events_per_batch == 2_000_000
    assert taken.delivery.unlimited_hosts == ("*.gateway.example.com",)
    assert taken.kafka.spark_options["client.rack"].get_secret_value() == "a"
    assert (taken.metrics.host, taken.spark.checkpoint) == ("0.0.0.0", "/var/lib/fanout/checkpoint")
