"""Bring the workers' numbers to the driver, by a Spark accumulator, and the workers' log lines to their standard error.

`Telemetry` runs on the driver; `Observer` is what crosses to the executors (docs/adr/0008). Counted is what finished tasks did:
a task that fails takes its numbers with it, and Spark runs it again. A micro-batch is published once its results are written.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from pyspark import Accumulator, AccumulatorParam, SparkContext

from delivery import logs, metrics, settings
from delivery.webhooks import attempt_log, tally
from delivery.webhooks.lane import Results
from delivery.webhooks.tally import Tally


class _Merging(AccumulatorParam[Tally]):
    def zero(self, _: Tally) -> Tally:
        return Tally()

    def addInPlace(self, value1: Tally, value2: Tally) -> Tally:  # noqa: N802  # Spark's name
        return value1 + value2


class _Meter:
    """Tell what was spent since it was last asked, of a clock that begins at zero."""

    def __init__(self, read: Callable[[], float]) -> None:
        self._read = read
        self._told = 0.0

    def spent(self) -> float:
        now = self._read()
        spent, self._told = now - self._told, now
        return spent


_cpu = _Meter(time.process_time)  # one for each process: a worker's is told with its results, the driver's at each micro-batch


@functools.cache  # once for each worker process
def _attempt_log(config: settings.Logs) -> attempt_log.AttemptLog:
    logs.configure(config)
    return attempt_log.AttemptLog(config.attempt_sample, clock=time.monotonic, rng=random.Random())  # noqa: S311  # a sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Observer:
    """Take note, in a worker, of what came of an Arrow batch."""

    total: Accumulator[Tally]
    logs: settings.Logs

    def __call__(self, results: Results) -> None:
        _attempt_log(self.logs).write(results)
        self.total.add(tally.of(results, cpu_s=_cpu.spent()))


class Telemetry:
    """Collect what the tasks of one lane tell, and publish it as metrics."""

    def __init__(self, context: SparkContext, lane: str, config: settings.Logs) -> None:
        self._lane = lane
        self._total = context.accumulator(Tally(), _Merging())
        self._jvm_cpu = _Meter(lambda: _jvm_cpu_s(context))
        self.observer = Observer(total=self._total, logs=config)

    def publish(self) -> None:
        """Add what has come since the last call to the metrics. Called when the results of a micro-batch are written.

        All of its tasks' updates are here by then: Spark merges a task's before it calls the task finished.
        """
        told, self._total.value = self._total.value, Tally()
        metrics.account(self._lane, told)
        metrics.CPU_SECONDS.labels("driver").inc(_cpu.spent())
        metrics.CPU_SECONDS.labels("jvm").inc(self._jvm_cpu.spent())


def _jvm_cpu_s(context: SparkContext) -> float:
    jvm = context._jvm  # noqa: SLF001  # PySpark has no public way to the JVM, and nobody else knows its CPU time
    used = jvm.java.lang.ProcessHandle.current().info().totalCpuDuration()  # type: ignore[union-attr]  # set once Spark runs
    return float(used.orElse(jvm.java.time.Duration.ZERO).toNanos()) / 1e9  # type: ignore[union-attr]
