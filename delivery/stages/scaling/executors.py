"""Ask Spark for executors, and have it decommission some.

Runs on the driver. It calls Spark's developer API by py4j: PySpark has none for this.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pyspark import SparkContext

from delivery import errors
from delivery.config import settings
from delivery.stages.scaling import decision

CORES = "spark.executor.cores"
WHY = "fewer executors are needed"
"""What Spark's log says of a decommissioned executor."""


class Executors(NamedTuple):
    """The executors of an application, by Spark's ids, oldest first."""

    active: tuple[str, ...]
    """They get tasks."""
    ending: tuple[str, ...]
    """They are decommissioned: what they run will end, and they get nothing more."""


class SparksExecutors:
    """The executors of this application. Any cluster manager will do that gives Spark executors of their own."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context._jsc.sc()  # noqa: SLF001  # no public way, as all below
        self._jvm: Any = context._jvm  # noqa: SLF001  # py4j's
        self._gateway: Any = context._gateway  # noqa: SLF001

    def now(self) -> Executors:
        """Return those that are registered."""
        backend = self._context.schedulerBackend()
        ids = sorted(self._listed(backend.getExecutorIds()), key=int)
        active = tuple(name for name in ids if backend.isExecutorActive(name))
        return Executors(active, tuple(name for name in ids if name not in active))

    def request(self, number: int) -> None:
        """Have so many in all: Spark starts what is missing and replaces what ends, and ends none that is registered."""
        self._context.requestTotalExecutors(number, 0, self._jvm.PythonUtils.toScalaMap(self._jvm.java.util.HashMap()))

    def decommission(self, names: tuple[str, ...]) -> None:
        """Let these end when the tasks have ended that they run now. They are not replaced."""
        why = self._jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo(WHY, self._jvm.scala.Option.empty())
        pairs = self._gateway.new_array(self._jvm.scala.Tuple2, len(names))
        for place, name in enumerate(names):
            pairs[place] = self._jvm.scala.Tuple2(name, why)
        self._context.schedulerBackend().decommissionExecutors(pairs, False, False)

    def _listed(self, names: Any) -> list[str]:
        return list(self._jvm.scala.jdk.javaapi.CollectionConverters.asJava(names))


def cores(config: settings.Spark) -> int:
    """Return how many tasks an executor runs at once; raise SettingsError where the number of executors cannot be scaled."""
    conf = {name: value.get_secret_value() for name, value in config.conf.items()}
    if config.master.startswith("local") and not config.master.startswith("local-cluster"):
        raise errors.SettingsError(
            f"setting scaling.max_executors: spark.master {config.master} is one process without executors. "
            "Set it to a cluster, k8s://… or spark://…, or set max_executors to 0"
        )
    for name in ("spark.dynamicAllocation.enabled", "spark.dynamicAllocation.shuffleTracking.enabled"):
        if conf.get(name, "").lower() == "true":
            raise errors.SettingsError(
                f"setting scaling.max_executors: {name} in spark.conf would set the number of executors, too. Remove it there, "
                "or set max_executors to 0"
            )
    if not conf.get(CORES, "").isdecimal() or not int(conf[CORES]):
        raise errors.SettingsError(
            f"setting scaling.max_executors: {CORES} must be in spark.conf, as a whole number: the tasks that an executor runs "
            "at once"
        )
    return int(conf[CORES])


def conf(policy: decision.Policy | None) -> dict[str, str]:
    """Return what Spark is started with, for executors to come and go."""
    if policy is None:
        return {}
    return {"spark.executor.instances": str(policy.min_executors), "spark.decommission.enabled": "true"}
