"""Buffer the counters of a worker process until the next report to the driver, for the real-time lane.

Runs in the executors' Python workers. Must not import the settings. The buffer replaces Spark's accumulators, whose values
reach the driver only at the end of a task.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from delivery.registry_model import AttemptedEndpoint, EndpointId
from delivery.stages import process_state
from delivery.webhooks.results.counters import Counters


class ReportBuffer:
    """The totals since the last report to the driver, by name. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, Any] = {}

    def add(self, name: str, term: Any) -> None:
        """Add a term to the total `name`: sum counters, unite sets."""
        with self._lock:
            before = self._values.get(name)
            if before is None:
                self._values[name] = term
            else:
                self._values[name] = before | term if isinstance(term, frozenset) else before + term

    def drain(self) -> tuple[Counters, frozenset[AttemptedEndpoint], frozenset[EndpointId]]:
        """Return the counters, the endpoints that answered with status 410, and the unresponsive endpoints; reset all three."""
        with self._lock:
            values, self._values = self._values, {}
        return values.get("total", Counters()), values.get("gone", frozenset()), values.get("unresponsive", frozenset())


def buffer() -> ReportBuffer:
    """Return the buffer of this process."""
    return process_state.REPORT_BUFFERS.get(ReportBuffer)


@dataclass(frozen=True, slots=True)
class BufferedTotal:
    """The name of one total. `add` adds to this total in the buffer of the process that calls `add`.

    The object holds only the name, so it can be pickled and sent to the workers. In the real-time lane it replaces a Spark
    accumulator.
    """

    name: str

    def add(self, term: Any) -> None:
        """Add a term to this total of the buffer: counters are summed, sets united."""
        buffer().add(self.name, term)
