"""Write the results of background attempts to Kafka, on a thread of the worker process.

Runs in the executors. A background attempt outlives its Spark task, so this task cannot write the result.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from delivery.registry_model import Revision
from delivery.webhooks.results.task_results import Results, background_results
from delivery.webhooks.scheduling import background_attempts

log = logging.getLogger(__name__)

Write = Callable[[Results, list[background_attempts.BackgroundResult], Revision], None]
T = TypeVar("T")


class BackgroundResults:
    """Queue one worker's completed background attempts, and write their results to Kafka on a thread.

    `revision` returns the newest revision of the registry that the worker has used.
    """

    def __init__(self, revision: Callable[[], Revision]) -> None:
        self._revision = revision
        self._ended: queue.SimpleQueue[background_attempts.BackgroundResult | None] = queue.SimpleQueue()
        self._written: queue.SimpleQueue[Results] = queue.SimpleQueue()
        self.write: Write | None = None
        """Function that writes results to Kafka. Each task sets it. The thread calls it."""

    def put(self, ended: background_attempts.BackgroundResult) -> None:
        """Queue a completed background attempt for the thread. Thread-safe."""
        self._ended.put(ended)

    def start(self, forget: Callable[[list[background_attempts.BackgroundResult]], None]) -> None:
        """Start the thread. The thread calls `forget` with attempts whose results are written or cannot be written."""
        threading.Thread(target=self._write_all, args=(forget,), name="background results", daemon=True).start()

    def close(self) -> None:
        """Let the thread end when it has written the results in its queue. Does not wait for the thread."""
        self._ended.put(None)

    def written(self) -> list[Results]:
        """Return the results that the thread has written since the last call. A task reports them to the driver."""
        return _drained(self._written)

    def _write_all(self, forget: Callable[[list[background_attempts.BackgroundResult]], None]) -> None:
        """Write results until `close`. The retry lane repeats attempts whose results cannot be written."""
        is_open = True
        while is_open:
            queued = [self._ended.get(), *_drained(self._ended)]
            ended = [attempt for attempt in queued if attempt is not None]
            is_open = len(ended) == len(queued)
            if ended:
                self._write(ended)
                forget(ended)

    def _write(self, ended: list[background_attempts.BackgroundResult]) -> None:
        try:
            assert self.write is not None, "a task sets it before its first background attempt"  # noqa: S101
            self.write(results := background_results(ended), ended, self._revision())
        except Exception:
            log.exception(
                "results of %d background attempts could not be written: the retry lane repeats these deliveries. Check that "
                "Kafka answers, and that the job may write its result topics (delivery.attempts_topic, dead_letter_topic and "
                "retries_topic). After any other error send this traceback to the maintainers of the platform", len(ended),
            )  # fmt: skip
        else:
            self._written.put(results)


def _drained(waiting: queue.SimpleQueue[T]) -> list[T]:
    items: list[T] = []
    with contextlib.suppress(queue.Empty):
        while True:
            items.append(waiting.get_nowait())
    return items
