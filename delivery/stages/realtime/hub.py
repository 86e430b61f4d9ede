"""Hear from the workers of one real-time query while its tasks run, and tell them what is new.

Runs on the driver, with a thread for each connection. Spark's accumulators arrive when a task ends, which is minutes later
here, and a task's closure stays as it was. So each task keeps a connection: it reports several times a second, and is answered
with what has changed (docs/adr/0040).
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from delivery.model import EndpointId
from delivery.stages.realtime import channel, messages
from delivery.webhooks.lanes.realtime_lane import Place
from delivery.webhooks.results.counters import Counters

log = logging.getLogger(__name__)

SILENT_S = 10.0
"""Seconds without a report after which a task is taken for dead. It reports every `running.REPORT_S`."""
MAX_CONNECTIONS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What all tasks have told since the last call."""

    tally: Counters = field(default_factory=Counters)
    gone: frozenset[EndpointId] = frozenset()
    silent: frozenset[EndpointId] = frozenset()
    records: int = 0
    delay_s: float = 0.0
    """The longest of the tasks'."""

    def plus(self, report: messages.Report) -> Heard:
        """Return these with a report."""
        return Heard(
            tally=self.tally + report.tally,
            gone=self.gone | report.gone,
            silent=self.silent | report.silent,
            records=self.records + report.records,
            delay_s=max(self.delay_s, report.delay_s),
        )


class Hub:
    """Listen for the tasks of one query. `news` says what to answer to one that knows so much; it must not wait."""

    def __init__(
        self,
        news: Callable[[messages.Known], messages.News],
        next_offsets: Mapping[Place, int],
        *,
        bind: str,
        host: str,
        port: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._news = news
        self._clock = clock
        self._key = channel.new_key()
        self._lock = threading.Lock()
        self._heard = Heard()
        self._next = dict(next_offsets)
        self._running: dict[int, tuple[int, float]] = {}
        """By connection, the number of its task and when it was last heard."""
        self._faults: list[str] = []
        self._has_advanced = False
        self._is_stopping = self._is_closed = False
        self._listener = socket.create_server((bind, port), backlog=256)
        self.address = channel.Address(host=host, port=self._listener.getsockname()[1], key=self._key)
        threading.Thread(target=self._accept, name="real-time hub", daemon=True).start()

    def close(self) -> None:
        """Listen no more. Who is connected is told nothing more."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def stop_tasks(self) -> None:
        """Have all tasks begin nothing more, and write what they have begun."""
        self._is_stopping = True

    def take(self) -> Heard:
        """Return what was told since the last call."""
        with self._lock:
            heard, self._heard = self._heard, Heard()
        return heard

    def fault(self) -> str | None:
        """Return why the query cannot go on: a task that failed, was lost, or is silent. None: all is well.

        A task that stops reports no more until its end.
        """
        with self._lock:
            if self._faults:
                return self._faults[0]
            for task, at in self._running.values():
                if not self._is_stopping and self._clock() - at > SILENT_S:
                    return f"task {task} has not reported for {SILENT_S:.0f} s"
        return None

    @property
    def running(self) -> int:
        """Return how many tasks are at work."""
        with self._lock:
            return len(self._running)

    @property
    def has_advanced(self) -> bool:
        """Return whether any record was handled and written that was not so when the query began."""
        with self._lock:
            return self._has_advanced

    @property
    def positions(self) -> dict[str, dict[int, int]]:
        """Return up to where all is handled and written, as far as is known."""
        positions: dict[str, dict[int, int]] = {}
        with self._lock:
            for (topic, partition), at in self._next.items():
                positions.setdefault(topic, {})[partition] = at
        return positions

    def reached(self, offsets: Iterable[tuple[Place, int]]) -> None:
        """Take note of what is committed."""
        with self._lock:
            for place, at in offsets:
                self._next[place] = max(at, self._next.get(place, 0))

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            if threading.active_count() > MAX_CONNECTIONS:
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), name="real-time task", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                with_task = channel.accepted(connection, self._key)
                first = with_task.receive()
            except channel.ChannelBroken as exc:  # also of whoever is no task of ours
                log.warning("a connection to the real-time lane was refused: %s", exc)
                return
            name = id(connection)
            try:
                self._converse(name, with_task, first)
            except channel.ChannelBroken as exc:
                self._lost(name, str(exc))
            except Exception as exc:  # the thread's end would look like a silent task
                log.exception("a report of the real-time lane could not be handled")
                self._lost(name, str(exc))

    def _converse(self, name: int, with_task: channel.Channel, report: messages.Report) -> None:
        is_first = True
        while True:
            self._took(name, report)
            if report.state is not messages.State.RUNNING:
                return
            news, is_stopping = self._news(report.known), self._is_stopping
            with self._lock:
                known = dict(self._next) if is_first else {}
            with_task.send(
                messages.News(
                    base_id=news.base_id,
                    base=news.base,
                    changes=news.changes,
                    held=news.held,
                    is_paused=news.is_paused,
                    is_stopping=is_stopping,
                    driver_s=time.time(),
                    next_offsets=known,
                )
            )
            is_first = False
            if is_stopping:
                with_task.wait_for_ever()
            report = with_task.receive()

    def _took(self, name: int, report: messages.Report) -> None:
        with self._lock:
            self._heard = self._heard.plus(report)
            for place, at in report.next_offsets.items():
                before = self._next.get(place, 0)
                self._has_advanced |= at > before
                self._next[place] = max(at, before)
            if report.state is messages.State.RUNNING:
                self._running[name] = (report.task, self._clock())
                return
            self._running.pop(name, None)
            if report.state is messages.State.FAILED:
                self._faults.append(f"task {report.task} failed: {report.failure}")

    def _lost(self, name: int, why: str) -> None:
        with self._lock:
            task, _ = self._running.pop(name, (-1, 0.0))
            if not self._is_closed:
                self._faults.append(f"the worker of task {task} was lost: {why}")
