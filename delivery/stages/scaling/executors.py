"""List the executors of the application, request executors from Spark, and decommission executors.

Runs on the driver. The calls go to Spark's developer API by py4j, because PySpark has no API for them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pyspark import SparkContext

from delivery import errors
from delivery.config import settings
from delivery.stages.scaling import decision

CORES = "spark.executor.cores"
"""Spark's setting for the number of tasks that an executor runs at once."""
WHY = "fewer executors are needed"
"""Text in Spark's log for a decommissioned executor."""


class Executors(NamedTuple):
    """Spark's ids of the registered executors: those that get tasks, and those that are ending. Oldest first."""

    active: tuple[str, ...]
    """Executors that get tasks."""
    ending: tuple[str, ...]
    """Decommissioned executors: they finish their running tasks and get no further tasks."""


class SparkExecutors:
    """The executors of this application, with any cluster manager that runs separate executors."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context._jsc.sc()  # noqa: SLF001  # no public way, as all below
        self._jvm: Any = context._jvm  # noqa: SLF001  # py4j's
        self._gateway: Any = context._gateway  # noqa: SLF001

    def now(self) -> Executors:
        """Return the executors that are registered now."""
        backend = self._context.schedulerBackend()
        ids = sorted(self._listed(backend.getExecutorIds()), key=int)
        active = tuple(name for name in ids if backend.isExecutorActive(name))
        return Executors(active, tuple(name for name in ids if name not in active))

    def request(self, number: int) -> None:
        """Request this total number of executors.

        Spark starts missing executors, and replaces executors that end. A lower number ends no registered executor.
        """
        self._context.requestTotalExecutors(number, 0, self._jvm.PythonUtils.toScalaMap(self._jvm.java.util.HashMap()))

    def decommission(self, names: tuple[str, ...]) -> None:
        """Let these executors end when their running tasks have ended.

        Spark replaces them unless an earlier `request` has asked for fewer executors.
        """
        why = self._jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo(WHY, self._jvm.scala.Option.empty())
        pairs = self._gateway.new_array(self._jvm.scala.Tuple2, len(names))
        for index, name in enumerate(names):
            pairs[index] = self._jvm.scala.Tuple2(name, why)
        self._context.schedulerBackend().decommissionExecutors(pairs, False, False)

    def _listed(self, names: Any) -> list[str]:
        return list(self._jvm.scala.jdk.javaapi.CollectionConverters.asJava(names))


def are_separate(master: str) -> bool:
    """Return True if Spark's executors are separate processes with this master. With `local[…]` the driver does their work."""
    return master.startswith("local-cluster") or not master.startswith("local")


def cores(config: settings.SparkSettings) -> int:
    """Return the number of tasks that an executor runs at once, by the settings of Spark.

    Raise SettingsError if the number of executors cannot be scaled with these settings.
    """
    conf = {name: value.get_secret_value() for name, value in config.conf.items()}
    if not are_separate(config.master):
        raise errors.SettingsError(
            f"setting scaling.max_executors: spark.master {config.master} is one process without executors, so nothing can "
            "be scaled. The job did not start. Set spark.master to a cluster, k8s://… or spark://…, or set "
            "scaling.max_executors to 0"
        )
    for name in ("spark.dynamicAllocation.enabled", "spark.dynamicAllocation.shuffleTracking.enabled"):
        if conf.get(name, "").lower() == "true":
            raise errors.SettingsError(
                f"setting scaling.max_executors: {name} in spark.conf would also change the number of executors. The job "
                "did not start. Remove it from spark.conf, or set scaling.max_executors to 0"
            )
    if not conf.get(CORES, "").isdecimal() or not int(conf[CORES]):
        raise errors.SettingsError(
            f"setting scaling.max_executors: {CORES} in spark.conf is missing or no whole number above 0, so the job does not "
            f"know how many tasks an executor runs at once. The job did not start. Set {CORES} in spark.conf to a whole number "
            "above 0, or set scaling.max_executors to 0"
        )
    cpus = conf.get("spark.task.cpus", "1")
    return max(1, int(conf[CORES]) // max(1, int(cpus) if cpus.isdecimal() else 1))


def conf(policy: decision.Policy | None) -> dict[str, str]:
    """Return the settings with which Spark starts the fewest executors of `policy` and can decommission executors.

    Only the controller changes their number later (`scaling.controller`). Empty without a policy.
    """
    if policy is None:
        return {}
    return {"spark.executor.instances": str(policy.min_executors), "spark.decommission.enabled": "true"}
