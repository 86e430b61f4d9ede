"""Pause all lanes while no executor is registered, and cancel Spark's jobs if the job stops meanwhile.

Runs on the driver, on a thread of its own. Without an executor a job of Spark waits for ever. A restart of the process would
not help: it would only request more executors from the cluster manager.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

from pyspark import SparkContext

from delivery import errors
from delivery.stages.scaling import executors

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
"""Seconds between two requests to Spark for its registered executors."""
REPORT_AFTER_S = 60.0
"""Seconds without an executor, after which the log has a warning. On Kubernetes an executor takes some 20 s to register."""
ABSENT = (
    "no executor is registered, so all events wait in Kafka. The lanes continue by themselves when one registers. Check quota, "
    "nodes, image and volumes: on Kubernetes, `kubectl describe pod` of the executors names the cause"
)
"""The reason of the pause, for the operator."""
STOPPED = (
    "the job was asked to stop while no executor was registered, so it cancelled its jobs in Spark. Committed work is kept, "
    "and the next start continues after it"
)
"""Message of LaneFailed after a stop without executors."""
CANCELLED = "cancelled as part of cancellation of all jobs"
"""Part of Spark's error message for a job that `cancelAllJobs` has cancelled."""


class ExecutorAbsence:
    """The state of the pause: whether an executor is registered. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since_s: float | None = None
        """When the executors were first seen absent; None: one is registered, or that is unknown."""
        self._is_reported = False

    def pause_reason(self) -> str | None:
        """Return a text for the operator while no executor is registered; else None."""
        return None if self._since_s is None else ABSENT

    def observe(self, found: executors.Executors, *, is_stopping: bool) -> bool:
        """Record the registered executors. Return True if the jobs of Spark must be cancelled now, so that a stop can end.

        Without an executor for REPORT_AFTER_S, log one warning. A decommissioned executor counts as registered.
        """
        if found.active or found.ending:
            if self._is_reported:
                log.info("an executor has registered: all lanes continue")
            self._since_s, self._is_reported = None, False
            return False
        now_s = self._clock()
        if self._since_s is None:
            self._since_s = now_s
        if not self._is_reported and not is_stopping and now_s - self._since_s >= REPORT_AFTER_S:
            self._is_reported = True
            log.warning("all lanes are paused: %s", ABSENT)
        return is_stopping

    @contextlib.contextmanager
    def watching(self, context: SparkContext, stop: threading.Event) -> Iterator[None]:
        """As a context manager: ask Spark for its executors every LOOK_EVERY_S, on a thread, until the `with` block ends.

        If `stop` is set and no executor is registered, cancel all jobs of Spark, again at each request. If the block fails by
        such a cancelled job, raise LaneFailed instead. Do nothing if the master has no separate executors. Also do nothing with
        Spark's own dynamic allocation, which may end all executors of an idle job.
        """
        is_dynamic = context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true"
        if is_dynamic or not executors.are_separate(context.master or ""):
            yield
            return
        ended = threading.Event()
        thread = threading.Thread(target=self._look, args=(context, stop, ended), name="executor absence", daemon=True)
        thread.start()
        try:
            yield
        except Exception as failure:
            if CANCELLED in f"{failure} {failure.__cause__}":
                raise errors.LaneFailed(STOPPED) from failure
            raise
        finally:
            ended.set()
            thread.join()

    def _look(self, context: SparkContext, stop: threading.Event, ended: threading.Event) -> None:
        cluster = executors.SparkExecutors(context)
        while not ended.wait(LOOK_EVERY_S):
            try:
                if self.observe(cluster.now(), is_stopping=stop.is_set()):
                    context.cancelAllJobs()
            except Exception as failure:  # noqa: BLE001  # the lanes report a JVM that has ended
                self._since_s = None
                log.warning(
                    "Spark did not name its executors, so `/readyz` does not report their absence any more. If Spark's JVM has "
                    "ended, the lanes end too. Otherwise restart the job. The error was: %s", failure,
                )  # fmt: skip
                return
