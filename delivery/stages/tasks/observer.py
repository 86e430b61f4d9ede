"""Record the results of a task: count them for the driver, and log the attempts to the worker's standard error.

Runs in the executors' Python workers. A term is a value that a task adds to a total. Spark adds the terms to the driver's
accumulators. In the real-time lane delivery.stages.realtime.report_buffer takes the terms instead. The driver also reads its
own CPU time by this module. A worker that unpickles an observer imports this module. So the module is separate from
delivery.stages.lanes.telemetry, whose metrics and settings would take 11 MB of each worker.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from pyspark import AccumulatorParam

from delivery.observability import logs
from delivery.registry_model import AttemptedEndpoint, EndpointId
from delivery.stages import process_state
from delivery.webhooks.results import attempt_log, counters
from delivery.webhooks.results.counters import Counters
from delivery.webhooks.results.task_results import Results
from delivery.webhooks.state.backlog import ShardBacklog

Term_contra = TypeVar("Term_contra", contravariant=True)
Found = TypeVar("Found")


class Accumulator(Protocol[Term_contra]):
    """A total to which a task adds: a Spark accumulator, or in the real-time lane a `report_buffer.BufferedTotal`."""

    def add(self, term: Term_contra, /) -> None:
        """Add a term to the total."""


class CountersParam(AccumulatorParam[Counters]):
    """Add the counters of tasks in a Spark accumulator."""

    def zero(self, _: Counters) -> Counters:
        """Return counters of zero."""
        return Counters()

    def addInPlace(self, value1: Counters, value2: Counters) -> Counters:  # noqa: N802  # Spark's name
        """Return the sum of both."""
        return value1 + value2


class PendingParam(AccumulatorParam[ShardBacklog]):
    """Add the backlogs of shards in a Spark accumulator."""

    def zero(self, _: ShardBacklog) -> ShardBacklog:
        """Return an empty backlog."""
        return ShardBacklog()

    def addInPlace(self, value1: ShardBacklog, value2: ShardBacklog) -> ShardBacklog:  # noqa: N802  # Spark's name
        """Return the sum of both."""
        return value1 + value2


class EndpointsParam(AccumulatorParam[frozenset[Found]]):
    """Add sets of endpoints in a Spark accumulator."""

    def zero(self, _: frozenset[Found]) -> frozenset[Found]:
        """Return an empty set."""
        return frozenset()

    def addInPlace(self, value1: frozenset[Found], value2: frozenset[Found]) -> frozenset[Found]:  # noqa: N802  # Spark's name
        """Return the union of both."""
        return value1 | value2


class PausedParam(AccumulatorParam[dict[tuple[str, int], int]]):
    """Merge the paused partitions of tasks, each with its first waiting offset. The smaller offset of a partition counts."""

    def zero(self, _: dict[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """Return no paused partitions."""
        return {}

    def addInPlace(  # noqa: N802  # Spark's name
        self, value1: dict[tuple[str, int], int], value2: dict[tuple[str, int], int]
    ) -> dict[tuple[str, int], int]:
        """Return the paused partitions of both. A partition in both has the smaller of its two offsets."""
        return value1 | {place: min(at, value1.get(place, at)) for place, at in value2.items()}


class Meter:
    """Measure by how much the clock `read` has advanced between two calls of `spent`. Thread-safe.

    The first call returns the whole reading of the clock.
    """

    def __init__(self, read: Callable[[], float]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._last = 0.0

    def spent(self) -> float:
        """Return by how much the clock has advanced since the last call; 0 if it stands still or has gone backwards."""
        # The lanes share a meter. Without the lock, an older reading could come last, and the difference would be negative. A
        # counter refuses that, and the lane would end.
        with self._lock:
            now = max(self._read(), self._last)
            spent, self._last = now - self._last, now
            return spent


def process_cpu() -> Meter:
    """Return the meter of the CPU seconds that this process uses. Each call returns the same meter."""
    return process_state.CPU_METERS.get(lambda: Meter(time.process_time))


@dataclass(frozen=True, slots=True, kw_only=True)
class Observer:
    """Count the results of tasks, leases and background attempts, and log a sample of the attempts.

    Each Spark task calls the object in its worker, once for each Results that the task writes.
    """

    total: Accumulator[Counters]
    gone: Accumulator[frozenset[AttemptedEndpoint]]
    """Endpoints that answered with status 410: they are gone for good."""
    unresponsive: Accumulator[frozenset[EndpointId]]
    """Endpoints that sent a worker no response for `delivery.patience_s` seconds."""
    level: str
    """The setting `logs.level`."""
    format: str
    """The setting `logs.format`."""
    attempt_sample: float
    """The setting `logs.attempt_sample`: the share of all attempts that is logged, 0 to 1. Other failed attempts are logged at
    a bounded rate."""
    late: Accumulator[frozenset[EndpointId]] | None = None
    """Endpoints for whose response a task waited in vain. None: the lane does not report them, because no task waits."""
    paused: Accumulator[dict[tuple[str, int], int]] | None = None
    """Partitions whose records wait for a schema, each with its first waiting offset. None: the lane pauses no partitions."""

    def __call__(self, results: Results) -> None:
        process_state.ATTEMPT_LOGS.get(self._attempt_log, self.level, self.format, self.attempt_sample).write(results)
        self.total.add(counters.count(results, cpu_s=process_cpu().spent()))
        if results.gone:
            self.gone.add(results.gone)
        if results.unresponsive:
            self.unresponsive.add(results.unresponsive)
        if results.late and self.late is not None:
            self.late.add(results.late)
        if results.paused and self.paused is not None:
            self.paused.add(dict(results.paused))

    def _attempt_log(self) -> attempt_log.AttemptLog:
        logs.configure(self.level, self.format)
        return attempt_log.AttemptLog(self.attempt_sample, clock=time.monotonic, rng=random.Random())  # noqa: S311  # a sample
