"""Name the objects that a process of the job keeps from task to task, or shares among its lanes, and say when each ends.

Runs in the executors' Python workers and on the driver. No other module keeps such an object at module level, with two
exceptions: the metrics (delivery.observability.metrics), and `functools` caches of functions whose result depends only on their
arguments.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Made = TypeVar("Made")


class Kept:
    """Objects of one kind that a process keeps, each under the key for which it was made. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[Hashable, Any] = {}

    def get(self, make: Callable[[], Made], *key: Hashable) -> Made:
        """Return the object of `key`; the first call with `key` makes it. Without `key`, all calls get the same object."""
        with self._lock:
            if key not in self._objects:
                self._objects[key] = make()
            made: Made = self._objects[key]
        return made

    def clear(self) -> None:
        """Forget all objects: the next call of `get` makes a new object. An old object stays usable for its present users."""
        with self._lock:
            self._objects.clear()


WORKERS = Kept()
"""In a worker: one `lanes.worker.Worker` for each `worker_plan.Plan` (its settings), with its event loop, its connections, and
the present state of each endpoint. Made and used by tasks (`tasks.task_context`). Ends with the process."""
RESULT_PRODUCERS = Kept()
"""In a worker: the Kafka producer for results, one for each configuration of librdkafka. Made and used by the writers of tasks
(`kafka.sink`). A writer forgets all of these producers when a row could not be written. Otherwise they end with the process."""
EVENT_CONSUMERS = Kept()
"""In a worker: the Kafka consumer for events, one for each configuration of librdkafka. Made and used by tasks of the direct
lane and the batch lane (`kafka.record_reader`). A task that fails forgets these consumers. Otherwise they end with the
process."""
EVENT_PRODUCERS = Kept()
"""In a worker: the Kafka producer for the events of batch records, one for each configuration of librdkafka. Made, used and
forgotten by `kafka.event_writer`, which forgets them when an event could not be written."""
ATTEMPT_LOGS = Kept()
"""In a worker: the log of attempts, one for each set of log settings. Making it configures the process's logs. Made and used by
observers (`tasks.observer`). Ends with the process."""
CPU_METERS = Kept()
"""In a worker and on the driver: the meter of the process's CPU time. Made by the first user (`tasks.observer`), and read with
each set of results; on the driver, with each micro-batch of any lane (`lanes.telemetry`). Ends with the process."""
JVM_CPU_METERS = Kept()
"""On the driver: the meter of the JVM's CPU time, one for each Spark context. Made by the first lane, and read with each
micro-batch of any lane (`lanes.telemetry`). Ends with the process."""
FOLLOWED_REGISTRIES = Kept()
"""In a worker: the registry that tasks of the real-time lane keep up to date (`realtime.realtime_task.Followed`). Made by the
first such task, replaced and changed by all of them. Ends with the process."""
REPORT_BUFFERS = Kept()
"""In a worker: the totals that tasks of the real-time lane report to the driver (`realtime.report_buffer`). Made by the first
observer of such a task, and drained with each report. Ends with the process."""
STATE_CONNECTIONS = Kept()
"""In a worker of a lane with state: the connections that the last few tasks had to Spark's state. Made by the first task. Each
task adds its connection as it ends. Beyond `tasks.shard_state.MOST_LEFT_OPEN` connections, the oldest is closed."""
