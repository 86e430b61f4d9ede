"""Take note, in a worker, of what came of its records: numbers for the driver, log lines for standard error.

Runs in the executors' Python workers. It stands apart from delivery.stages.lanes.telemetry because a worker that unpickles it
imports its module: the driver's metrics and settings would take 11 MB of each worker.
"""

from __future__ import annotations

import functools
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from pyspark import AccumulatorParam

from delivery.model import EndpointId
from delivery.observability import logs
from delivery.webhooks.results import attempt_log, counters
from delivery.webhooks.results.counters import Counters
from delivery.webhooks.results.results import Results
from delivery.webhooks.state.backlog import Pending

Told_contra = TypeVar("Told_contra", contravariant=True)


class Adds(Protocol[Told_contra]):
    """What takes what was told: an accumulator of Spark's, or delivery.stages.realtime.collected."""

    def add(self, term: Told_contra, /) -> None:
        """Add to what was told."""


class Merging(AccumulatorParam[Counters]):
    """How Spark adds the tallies of tasks."""

    def zero(self, _: Counters) -> Counters:
        """Return the tally of nothing."""
        return Counters()

    def addInPlace(self, value1: Counters, value2: Counters) -> Counters:  # noqa: N802  # Spark's name
        """Return the tally of both."""
        return value1 + value2


class MergingPending(AccumulatorParam[Pending]):
    """How Spark adds what the shards tell."""

    def zero(self, _: Pending) -> Pending:
        """Return that nothing waits."""
        return Pending()

    def addInPlace(self, value1: Pending, value2: Pending) -> Pending:  # noqa: N802  # Spark's name
        """Return what waits in both."""
        return value1 + value2


class MergingEndpoints(AccumulatorParam[frozenset[EndpointId]]):
    """How Spark adds the endpoints of which something is told."""

    def zero(self, _: frozenset[EndpointId]) -> frozenset[EndpointId]:
        """Return that there is none."""
        return frozenset()

    def addInPlace(  # noqa: N802  # Spark's name
        self, value1: frozenset[EndpointId], value2: frozenset[EndpointId]
    ) -> frozenset[EndpointId]:
        """Return those of both."""
        return value1 | value2


class Meter:
    """Tell what was spent since it was last asked, of a clock that begins at zero. Any thread may ask."""

    def __init__(self, read: Callable[[], float]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._told = 0.0

    def spent(self) -> float:
        """Return what was spent since the last call; 0 when the clock stands still, or has gone backwards."""
        # The lanes share a meter. Read by two at once, the older reading would be told last, and less than nothing spent: a
        # counter refuses that, and the lane would end.
        with self._lock:
            now = max(self._read(), self._told)
            spent, self._told = now - self._told, now
            return spent


@functools.cache  # once for each process: a worker's CPU time is told with its results, the driver's at each micro-batch
def process_cpu() -> Meter:
    """Return this process's meter of CPU seconds."""
    return Meter(time.process_time)


@functools.cache  # once for each worker process
def _attempt_log(level: str, form: str, sample: float) -> attempt_log.AttemptLog:
    logs.configure(level, form)
    return attempt_log.AttemptLog(sample, clock=time.monotonic, rng=random.Random())  # noqa: S311  # a sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Observer:
    """Take note of what came of an Arrow batch."""

    total: Adds[Counters]
    gone: Adds[frozenset[EndpointId]]
    silent: Adds[frozenset[EndpointId]]
    level: str
    """As the three of the settings of the area `logs`."""
    format: str
    attempt_sample: float

    def __call__(self, results: Results) -> None:
        _attempt_log(self.level, self.format, self.attempt_sample).write(results)
        self.total.add(counters.count(results, cpu_s=process_cpu().spent()))
        if results.gone:
            self.gone.add(results.gone)
        if results.unresponsive:
            self.silent.add(results.unresponsive)
