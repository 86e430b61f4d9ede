"""The counts of workers arrive at the driver, once for each task that finished."""

import prometheus_client
import pytest
from pyspark.errors import PythonException

from delivery.config import plan_builder, settings
from delivery.registry_model import SubscriptionStatus
from delivery.stages.lanes import telemetry
from delivery.stages.registry import broadcasts
from delivery.stages.tasks import task_context
from delivery.webhooks.routing import published_registry
from tests.support import assignments, builders, sinks

pytestmark = [
    pytest.mark.spark,
    # py4j leaves its sockets for the garbage collector to close.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
PLAN = plan_builder.plan_of(settings.Settings())


def value(name, **labels):
    return prometheus_client.REGISTRY.get_sample_value(name, labels)


@pytest.fixture
def source(spark):
    paused = builders.subscription(status=SubscriptionStatus.PAUSED)
    base = builders.snapshot(builders.endpoint(), paused)
    published = published_registry.Published(base_id="telemetry", base=base, changes=None, confirmed_at=0.0)
    return broadcasts.Broadcaster(spark.sparkContext).source(published, "direct")


@pytest.fixture
def tools_with(tmp_path):
    return lambda observe: task_context.Tools(plan=PLAN, observe=observe, sink=sinks.Folder(tmp_path))


VALUES = (b'{"tenant_id":"t1"}', b"not JSON")
"""Every other record is no event, and every event is due to a paused subscription."""


def test_the_counts_of_all_tasks_arrive_and_are_published_once(spark, source, tools_with):
    publisher = telemetry.Telemetry(spark.sparkContext, "counted", settings.LogsSettings())
    cpu_before = value("fanout_cpu_seconds_total", process="workers") or 0.0
    delivering = assignments.made(spark, 1000, tools_with(publisher.observer), source, *VALUES)
    assert delivering.getNumPartitions() == 2
    task_context.run(delivering)

    publisher.publish()
    publisher.publish()

    assert value("fanout_deliveries_total", lane="counted", outcome="skipped", reason="subscription_paused") == 500
    assert value("fanout_rejected_total", lane="counted", reason="not_json") == 500
    assert value("fanout_deliveries_total", lane="counted", outcome="delivered", reason="none") == 0
    assert value("fanout_cpu_seconds_total", process="workers") > cpu_before
    assert value("fanout_cpu_seconds_total", process="jvm") > 1
    assert value("fanout_cpu_seconds_total", process="driver") > 0


def test_a_task_that_fails_takes_its_numbers_with_it(spark, source, tools_with):
    """Spark runs it again, and what that run counts is what is known."""
    publisher = telemetry.Telemetry(spark.sparkContext, "failing", settings.LogsSettings())

    def fail_after(observe):
        def observed(results):
            observe(results)
            raise RuntimeError("after it was counted")

        return observed

    delivering = assignments.made(spark, 10, tools_with(fail_after(publisher.observer)), source, *VALUES, tasks=1)
    with pytest.raises(PythonException, match="after it was counted"):
        task_context.run(delivering)
    publisher.publish()
    assert value("fanout_rejected_total", lane="failing", reason="not_json") is None

    task_context.run(assignments.made(spark, 10, tools_with(publisher.observer), source, *VALUES, tasks=1))
    publisher.publish()
    assert value("fanout_rejected_total", lane="failing", reason="not_json") == 5
