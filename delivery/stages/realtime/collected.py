"""Collect, in a worker process, what its observer tells, until the next report to the driver takes it.

Runs in the executors' Python workers. Must not import the settings. It takes the place of Spark's accumulators, which reach the
driver at the end of a task.
"""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass
from typing import Any

from delivery.model import EndpointId
from delivery.webhooks.results.counters import Counters


class Collected:
    """What was told since it was last taken. Safe between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, Any] = {}

    def add(self, name: str, term: Any) -> None:
        """Add to what is collected under a name."""
        with self._lock:
            before = self._values.get(name)
            if before is None:
                self._values[name] = term
            else:
                self._values[name] = before | term if isinstance(term, frozenset) else before + term

    def take(self) -> tuple[Counters, frozenset[EndpointId], frozenset[EndpointId]]:
        """Return the tally, the endpoints that are gone, and those that were silent."""
        with self._lock:
            values, self._values = self._values, {}
        return values.get("total", Counters()), values.get("gone", frozenset()), values.get("silent", frozenset())


@functools.cache  # once for each worker process
def here() -> Collected:
    """Return what this process has collected."""
    return Collected()


@dataclass(frozen=True, slots=True)
class Adding:
    """What an observer adds to, in place of an accumulator. Survives pickling."""

    name: str

    def add(self, term: Any) -> None:
        """As pyspark.Accumulator."""
        here().add(self.name, term)
