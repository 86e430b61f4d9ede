"""Publish as metrics what the workers tell of their work, by a Spark accumulator.

Runs on the driver; delivery.stages.tasks.observer is what crosses to the executors (docs/adr/0008). Counted is what finished
tasks did: a task that fails takes its numbers with it, and Spark runs it again. A micro-batch is published once its results are
written.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from pyspark import SparkContext

from delivery.config import settings
from delivery.model import EndpointId
from delivery.observability import metrics
from delivery.stages.tasks import observer
from delivery.webhooks.results.counters import Counters


class Told(NamedTuple):
    """What the workers told of a micro-batch."""

    tally: Counters
    gone: frozenset[EndpointId]
    """Endpoints that have said that they are gone for good."""
    silent: frozenset[EndpointId]
    """Endpoints that were waited for and did not answer."""


class Telemetry:
    """Collect what the tasks of one lane tell, and publish it as metrics."""

    def __init__(self, context: SparkContext, lane: str, config: settings.Logs) -> None:
        self._lane = lane
        self._total = context.accumulator(Counters(), observer.Merging())
        no_endpoints: frozenset[EndpointId] = frozenset()
        self._gone = context.accumulator(no_endpoints, observer.MergingEndpoints())
        self._silent = context.accumulator(no_endpoints, observer.MergingEndpoints())
        self._cpu = observer.process_cpu()
        self._jvm_cpu = _jvm_cpu(context)
        self.observer = observer.Observer(
            total=self._total,
            gone=self._gone,
            silent=self._silent,
            level=config.level,
            format=config.format,
            attempt_sample=config.attempt_sample,
        )

    def publish(self) -> Told:
        """Add what has come since the last call to the metrics, and return it. Called when a micro-batch's results are written.

        All of its tasks' updates are here by then: Spark merges a task's before it calls the task finished.
        """
        told, self._total.value = self._total.value, Counters()
        gone, self._gone.value = self._gone.value, frozenset()
        silent, self._silent.value = self._silent.value, frozenset()
        self.account(told)
        return Told(told, gone, silent)

    def account(self, tally: Counters) -> None:
        """Add to the metrics what was told in another way."""
        metrics.account(self._lane, tally)
        metrics.CPU_SECONDS.labels("driver").inc(self._cpu.spent())
        metrics.CPU_SECONDS.labels("jvm").inc(self._jvm_cpu.spent())


@functools.cache  # one for all lanes of an application: each tells what was spent since any of them last told
def _jvm_cpu(context: SparkContext) -> observer.Meter:
    jvm = context._jvm  # noqa: SLF001  # PySpark has no public way to the JVM, and nobody else knows its CPU time
    # Each name of a package costs the JVM a search through all of its jars, so these are looked up once.
    itself = jvm.java.lang.ProcessHandle.current()  # type: ignore[union-attr]  # set once Spark runs
    zero = jvm.java.time.Duration.ZERO  # type: ignore[union-attr]
    return observer.Meter(lambda: float(itself.info().totalCpuDuration().orElse(zero).toNanos()) / 1e9)
