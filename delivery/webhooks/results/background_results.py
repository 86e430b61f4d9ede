"""Write what came of attempts that had gone on alone, on a thread of its own, task or no task.

Runs in the executors. Must not import pyspark or psycopg.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from delivery.model import Revision
from delivery.webhooks.results.results import Results, of_late
from delivery.webhooks.scheduling import background_attempts

log = logging.getLogger(__name__)

Write = Callable[[Results, list[background_attempts.BackgroundResult], Revision], None]
Taken = TypeVar("Taken")


class LateResults:
    """What has ended and is not written yet. `forget` takes note of what is written, or cannot be."""

    def __init__(self, revision: Callable[[], Revision]) -> None:
        self._revision = revision
        self._ended: queue.SimpleQueue[background_attempts.BackgroundResult | None] = queue.SimpleQueue()
        self._written: queue.SimpleQueue[Results] = queue.SimpleQueue()
        self.write: Write | None = None
        """Writes it. Called on the thread."""

    def put(self, ended: background_attempts.BackgroundResult) -> None:
        """Take the end of an attempt. Safe between threads."""
        self._ended.put(ended)

    def start(self, forget: Callable[[list[background_attempts.BackgroundResult]], None]) -> None:
        """Begin to write."""
        threading.Thread(target=self._write_all, args=(forget,), name="late results", daemon=True).start()

    def close(self) -> None:
        """Write what has ended by now, and end."""
        self._ended.put(None)

    def written(self) -> list[Results]:
        """Return what is written, for a task to take note of it."""
        return _taken(self._written)

    def _write_all(self, forget: Callable[[list[background_attempts.BackgroundResult]], None]) -> None:
        """Write it as it comes, until it is closed. What cannot be written is attempted again by the retry lane."""
        is_open = True
        while is_open:
            came = [self._ended.get(), *_taken(self._ended)]
            ended = [one for one in came if one is not None]
            is_open = len(ended) == len(came)
            if ended:
                self._write_some(ended)
                forget(ended)

    def _write_some(self, ended: list[background_attempts.BackgroundResult]) -> None:
        try:
            assert self.write is not None, "only tasks let attempts go on"  # noqa: S101
            self.write(told := of_late(ended), ended, self._revision())
        except Exception:
            log.exception("the end of %d attempts could not be written; the retry lane makes them again", len(ended))
        else:
            self._written.put(told)


def _taken(waiting: queue.SimpleQueue[Taken]) -> list[Taken]:
    taken: list[Taken] = []
    with contextlib.suppress(queue.Empty):
        while True:
            taken.append(waiting.get_nowait())
    return taken
