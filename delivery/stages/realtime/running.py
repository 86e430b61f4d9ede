"""Carry one task of the real-time lane: write what ends in it, report to the driver, and take in what is new.

Runs in the executors' Python workers. Must not import the settings.

    task's thread       Arrow batches ─► lane
    writer's thread     lane ─► rows ─► Kafka; when a slice has ended: then its receipts ─► Kafka
    reporter's thread   what was done ─► driver ─► registry, suppressed endpoints, pause, stop ─► lane
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Sequence

from delivery import errors
from delivery.model import EndpointId, Record
from delivery.stages.realtime import channel, collected, messages
from delivery.stages.tasks import task_context
from delivery.webhooks.lanes.lane_driver import DRAIN_S
from delivery.webhooks.lanes.realtime_lane import Place
from delivery.webhooks.results import completed_work
from delivery.webhooks.results.results import Results
from delivery.webhooks.routing import registries
from delivery.webhooks.scheduling import deferral

log = logging.getLogger(__name__)

REPORT_S = 0.25
"""Seconds between two reports. A change of the registry is in effect later by as much."""
STOPPED_S = 30.0
"""Seconds that a stopped task waits for the end of its query, beside `delivery.stop_within_s`. It fails then."""
LOOK_S = 0.05
"""Seconds between two looks whether the JVM is gone."""
STUCK_S = 10.0
"""Seconds within which the event loop has to look at the lane."""


class Followed:
    """The registry of this process, which outlives a task."""

    def __init__(self) -> None:
        self.registry: registries.WholeRegistry | None = None

    def known(self) -> messages.Known:
        """Return which one it is."""
        if self.registry is None:
            return messages.Known()
        return messages.Known(base_id=self.registry.base_id, revision=self.registry.revision)

    def current(self) -> registries.WholeRegistry:
        """Return it, once the driver has sent one."""
        assert self.registry is not None, "the driver's first answer has it"  # noqa: S101
        return self.registry


@functools.cache  # once for each worker process
def followed() -> Followed:
    """Return the registry that this process follows."""
    return Followed()


class Running:
    """A task as it runs. Made in the task's thread; the driver is heard before anything is read."""

    def __init__(
        self,
        task: task_context.Task,
        link: channel.Channel,
        number: int,
        ended: frozenset[completed_work.Key],
        stop_within_s: float,
    ) -> None:
        self._task, self._link, self._number, self._stop_within_s = task, link, number, stop_within_s
        self._here = task.worker
        self._held: dict[EndpointId, str] = {}
        self._exchanging = threading.Lock()
        """Of the connection, and of what is reported next."""
        self._next: dict[Place, int] = {}
        self._records, self._delay_s = 0, 0.0
        self._ending = threading.Lock()
        self._is_ended = False
        self._over = threading.Event()
        first = self._exchange()
        self._take_base(first)
        if first.changes is not None:
            followed().current().advance(first.changes)
        self._held |= first.held
        self._lane = self._here.realtime(followed().current, self._held, ended, first.next_offsets)
        self._lane.pause(is_paused=first.is_paused)
        if first.is_stopping:
            self._lane.stop()
        self._writer = threading.Thread(target=self._write, name="real-time writer", daemon=True)
        self._writer.start()
        self._reporter = threading.Thread(target=self._report, name="real-time reporter", daemon=True)
        self._reporter.start()

    @property
    def is_orphan(self) -> bool:
        """Whether the JVM is gone."""
        return self._here.is_orphan

    def feed(self, records: Sequence[Record]) -> None:
        """Have records delivered. Waits while too many are under way, and while the driver has paused the lane."""
        delay_s = self._here.now_s() - records[0].appended_at_ms / 1000
        with self._exchanging:
            self._records += len(records)
            self._delay_s = max(self._delay_s, delay_s)
        self._lane.feed(records)

    def end(self) -> None:
        """Wait until all that was begun has ended and is written; tell the driver. Once, whoever asks first."""
        with self._ending:
            if self._is_ended:
                return
            self._is_ended = True
            self._lane.finish()
            self._writer.join()
            if self._lane.failure is not None:
                raise self._lane.failure
            is_stopped = self._lane.is_over
            if is_stopped:  # the process may end when the driver has heard
                self._here.wait_until_idle(self._stop_within_s)
            self._task.finish()
            self._over.set()
            self._tell_last(messages.State.STOPPED if is_stopped else messages.State.DONE)

    def await_end_of_query(self) -> None:
        """Return at once if the lane took all records; else wait until Spark ends this process with the query.

        A stopped task has dropped records. Spark would commit them if the task ended well, and retry the task if it failed.
        So it fails only when the JVM is gone, or the driver did not end the query in time.
        """
        deadline = time.monotonic() + self._stop_within_s + STOPPED_S
        while self._lane.is_over:
            if self.is_orphan or time.monotonic() > deadline:
                raise errors.Orphaned
            time.sleep(LOOK_S)

    def give_up(self) -> None:
        """Begin nothing more, write what ends within a moment. For a task that fails."""
        self._over.set()
        with self._ending:
            if self._is_ended:
                return
            self._is_ended = True
            self._lane.close(DRAIN_S)
            self._writer.join(DRAIN_S)
            self._task.flush()
            why = "" if self._lane.failure is None else f"{type(self._lane.failure).__name__}: {self._lane.failure}"
            self._tell_last(messages.State.FAILED, why or "its input has ended early")

    def _write(self) -> None:
        try:
            while (ended := self._lane.next_results()) is not None:
                self._task.write(ended.results)
                if ended.receipts:
                    self._task.finish()  # first, for a receipt says that all of it is written
                    self._task.write(Results(receipts=list(ended.receipts)))
                    self._task.finish()
                    with self._exchanging:
                        self._next |= {(one.topic, one.partition): one.last_offset + 1 for one in ended.receipts}
        except Exception as exc:  # the thread's end would go unseen until the task ends, minutes later
            log.exception("results of the real-time lane could not be written")
            self._lane.fail(exc)

    def _report(self) -> None:
        try:
            while not self._over.wait(REPORT_S):
                self._require_well()
                news = self._exchange()
                if news.is_stopping:
                    self._lane.stop()
                    self.end()
                    return
                self._take(news)
        except Exception as exc:  # noqa: BLE001  # as above
            if self._over.is_set():
                return
            log.warning("a task of the real-time lane ends: %s", exc)
            self._lane.fail(exc)
            self._tell_last(messages.State.FAILED, f"{type(exc).__name__}: {exc}")

    def _require_well(self) -> None:
        if self._lane.failure is not None:
            raise self._lane.failure
        if self._lane.idle_s() > STUCK_S:
            raise TimeoutError(f"the event loop has not answered for {STUCK_S:.0f} s")

    def _exchange(self) -> messages.News:
        with self._exchanging:
            self._link.send(self._next_report(messages.State.RUNNING))
            news: messages.News = self._link.receive()
        self._here.now_s.record_stamp(news.driver_s)
        return news

    def _tell_last(self, state: messages.State, failure: str = "") -> None:
        try:
            with self._exchanging:
                self._link.send(self._next_report(state, failure))
        except channel.ChannelBroken as exc:
            if state is messages.State.DONE:
                raise
            log.info("the driver does not hear how a task of the real-time lane has ended: %s", exc)

    def _next_report(self, state: messages.State, failure: str = "") -> messages.Report:
        total, gone, silent = collected.here().take()
        report = messages.Report(
            task=self._number,
            state=state,
            failure=failure,
            known=followed().known(),
            tally=total,
            gone=gone,
            silent=silent,
            next_offsets=self._next,
            records=self._records,
            delay_s=self._delay_s,
        )
        self._next, self._records, self._delay_s = {}, 0, 0.0
        return report

    def _take(self, news: messages.News) -> None:
        """Let news be in effect. The router and the suppressed endpoints are the event loop's."""
        self._lane.pause(is_paused=news.is_paused)
        if self._take_base(news):
            self._lane.end_slice()
        registry = followed().current()
        if news.changes is not None:
            self._here.call_in_loop(functools.partial(registry.advance, news.changes))
        if news.held != self._held:
            self._here.call_in_loop(functools.partial(self._hold, news.held))

    def _take_base(self, news: messages.News) -> bool:
        if news.base is None:
            return False
        followed().registry = registries.WholeRegistry(news.base_id, news.base)
        return True

    def _hold(self, held: deferral.SuppressedEndpoints) -> None:
        self._held.clear()
        self._held.update(held)
