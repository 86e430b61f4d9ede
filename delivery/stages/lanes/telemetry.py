"""Collect the workers' counters, and add them to the metrics.

Runs on the driver. Two sources:
1. The direct, batch and retry lanes use Spark accumulators, to which delivery.stages.tasks.observer adds in the executors
   (docs/adr/0008). The counters of a failed task are dropped, and Spark runs the task again. The counters of a micro-batch
   are added once all of its results are written.
2. The real-time lane's tasks report their counters while they run (delivery.stages.realtime.report_buffer).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pyspark import SparkContext

from delivery.config import settings
from delivery.observability import metrics
from delivery.registry_model import AttemptedEndpoint, EndpointId
from delivery.stages import process_state
from delivery.stages.tasks import observer
from delivery.webhooks.results.counters import Counters


class WorkerReport(NamedTuple):
    """Values that all workers reported: in one micro-batch, or in the real-time lane since the last report."""

    counters: Counters
    gone: frozenset[AttemptedEndpoint]
    """Endpoints that answered with status 410: they are gone for good."""
    unresponsive: frozenset[EndpointId]
    """Endpoints that sent a worker no response for `delivery.patience_s` seconds."""
    late: frozenset[EndpointId] = frozenset()
    """Endpoints for whose response a task waited in vain."""
    paused: Mapping[tuple[str, int], int] = {}  # never changed
    """Partitions whose records wait for a schema, each with its first waiting offset."""


class Telemetry:
    """Collect the counters of one lane's tasks, and add them to the metrics.

    Tasks of the direct, batch and retry lanes count by calling `observer`. For the real-time lane, the driver passes the
    counters in the tasks' reports to `add` instead.
    """

    def __init__(self, context: SparkContext, lane: str, config: settings.LogsSettings) -> None:
        self._lane = lane
        self._total = context.accumulator(Counters(), observer.CountersParam())
        of_gone: observer.EndpointsParam[AttemptedEndpoint] = observer.EndpointsParam()
        self._gone = context.accumulator(frozenset[AttemptedEndpoint](), of_gone)
        of_endpoints: observer.EndpointsParam[EndpointId] = observer.EndpointsParam()
        self._unresponsive = context.accumulator(frozenset[EndpointId](), of_endpoints)
        self._late = context.accumulator(frozenset[EndpointId](), of_endpoints)
        no_partitions: dict[tuple[str, int], int] = {}
        self._paused = context.accumulator(no_partitions, observer.PausedParam())
        self._cpu = observer.process_cpu()
        self._jvm_cpu = process_state.JVM_CPU_METERS.get(lambda: _jvm_cpu(context), context)
        self.observer = observer.Observer(
            total=self._total,
            gone=self._gone,
            unresponsive=self._unresponsive,
            level=config.level,
            format=config.format,
            attempt_sample=config.attempt_sample,
            late=self._late,
            paused=self._paused,
        )

    def begin(self) -> None:
        """Forget the paused partitions of a micro-batch that was not committed. Called before each micro-batch."""
        self._paused.value = {}

    def publish(self) -> WorkerReport:
        """Return the report of the workers since the last call, after adding its counters to the metrics.

        Called when a micro-batch's results are written. By then the updates of all tasks have arrived: Spark merges a task's
        updates before it reports the task as finished.
        """
        counters, self._total.value = self._total.value, Counters()
        gone, self._gone.value = self._gone.value, frozenset()
        unresponsive, self._unresponsive.value = self._unresponsive.value, frozenset()
        late, self._late.value = self._late.value, frozenset()
        paused, self._paused.value = self._paused.value, {}
        self.add(counters)
        return WorkerReport(counters, gone, unresponsive, late, paused)

    def add(self, counters: Counters) -> None:
        """Add workers' counters to the metrics, under this lane's name.

        Also add the CPU time of the driver and of its JVM since the last call for any lane. These metrics name no lane.
        """
        metrics.add_counters(self._lane, counters)
        metrics.CPU_SECONDS.labels("driver").inc(self._cpu.spent())
        metrics.CPU_SECONDS.labels("jvm").inc(self._jvm_cpu.spent())


def _jvm_cpu(context: SparkContext) -> observer.Meter:
    jvm = context._jvm  # noqa: SLF001  # PySpark has no public way to the JVM, which alone knows its CPU time
    # Each package name costs the JVM a search through all of its jars, so these are looked up once.
    itself = jvm.java.lang.ProcessHandle.current()  # type: ignore[union-attr]  # set once Spark runs
    zero = jvm.java.time.Duration.ZERO  # type: ignore[union-attr]
    return observer.Meter(lambda: float(itself.info().totalCpuDuration().orElse(zero).toNanos()) / 1e9)
