"""Run one task of the real-time lane: write its results, report to the driver, and apply the driver's updates.

Runs in the executors' Python workers. Must not import the settings. A slice holds the records of about one second.

    task's thread       Arrow batches ─► lane
    writer's thread     lane ─► rows ─► Kafka; at the end of a slice: its offset receipts ─► Kafka
    reporter's thread   report ─► driver ─► registry, suppressed endpoints, pause, stop ─► lane
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
import time
from collections.abc import Mapping, Sequence

from delivery import errors
from delivery.model import Record
from delivery.registry_model import EndpointId
from delivery.stages import process_state
from delivery.stages.realtime import channel, messages, report_buffer
from delivery.stages.tasks import task_context
from delivery.webhooks.lanes.lane_driver import DRAIN_S
from delivery.webhooks.lanes.realtime_lane import Place
from delivery.webhooks.results import completed_work
from delivery.webhooks.results.task_results import Results
from delivery.webhooks.routing import registries
from delivery.webhooks.state import pickling

log = logging.getLogger(__name__)

REPORT_S = 0.25
"""Seconds between two reports. A change of the registry takes effect up to this much later."""
STOPPED_S = 30.0
"""Seconds that a stopped task waits for the end of its query, in addition to `delivery.stop_within_s`. Then the task fails."""
LOOK_S = 0.05
"""Seconds between two checks of a stopped task whether its JVM is gone."""
STUCK_S = 10.0
"""Seconds without an iteration of the worker's event loop after which the task fails."""


class Followed:
    """The registry of this worker process, as the driver's updates have built it. Later tasks of the process keep using it."""

    def __init__(self) -> None:
        self.registry: registries.WholeRegistry | None = None

    def known(self) -> messages.Known:
        """Return the version of the registry that this process has, for a report to the driver. `Known()`: no registry yet."""
        if self.registry is None:
            return messages.Known()
        return messages.Known(base_id=self.registry.base_id, revision=self.registry.revision)

    def current(self) -> registries.WholeRegistry:
        """Return the registry. Called after the driver has sent a registry."""
        assert self.registry is not None, "the driver's first answer has it"  # noqa: S101
        return self.registry


def followed() -> Followed:
    """Return the Followed of this process. Each call returns the same object."""
    return process_state.FOLLOWED_REGISTRIES.get(Followed)


class RealtimeTask:
    """A running task of the real-time lane, with its writer's and its reporter's thread.

    Created in the task's thread. The constructor exchanges the first report and update with the driver, before the task reads
    any record. The constructor raises ChannelBroken if the driver is gone or silent. `link` is the connection to the driver,
    and `number` the task's number in its stage. `ended` has the deliveries that had ended before this query started. The task
    does not start them again. A stopped task first waits up to `stop_within_s` seconds for its background attempts. After that
    the task waits for the end of its query, because other tasks may still wait for their attempts: up to another
    `stop_within_s` + `stopped_s` seconds.
    """

    def __init__(
        self,
        task: task_context.Task,
        link: channel.Channel,
        number: int,
        ended: frozenset[completed_work.Key],
        stop_within_s: float,
        *,
        stopped_s: float = STOPPED_S,
    ) -> None:
        self._task, self._link, self._number, self._stop_within_s = task, link, number, stop_within_s
        self._stopped_s = stopped_s
        self._here = task.worker
        self._suppressed: dict[EndpointId, str] = {}
        self._exchanging = threading.Lock()
        """Guards the connection and the next report."""
        self._next: dict[Place, int] = {}
        self._records, self._delay_s = 0, 0.0
        self._paused: frozenset[Place] = frozenset()
        self._asks_for_restart = False
        self._ending = threading.Lock()
        self._is_ended = False
        self._over = threading.Event()
        first = self._exchange()
        self._take_base(first)
        if first.changes is not None:
            followed().current().advance(pickling.unpacked(first.changes))
        self._suppressed |= first.suppressed
        self._lane = self._here.realtime(followed().current, self._suppressed, ended, first.next_offsets)
        self._lane.pause(is_paused=first.is_paused)
        if first.is_stopping:
            self._lane.stop()
        self._writer = threading.Thread(target=self._write, name="real-time writer", daemon=True)
        self._writer.start()
        self._reporter = threading.Thread(target=self._report, name="real-time reporter", daemon=True)
        self._reporter.start()

    @property
    def is_orphan(self) -> bool:
        """True if the JVM of this worker is gone."""
        return self._here.is_orphan

    def feed(self, records: Sequence[Record]) -> None:
        """Queue records for delivery. Wait while too many records or results are queued, or while the driver pauses the lane.

        A stopped task drops the records, and every task drops those of paused partitions. If the task has failed, raise the
        error: of a delivery, of a write, or of the exchange with the driver.
        """
        handled = self._lane.paused.without(records)
        if handled:  # while the lane catches up, a chunk may have records of several partitions
            delay_s = self._here.now_s() - min(record.appended_at_ms for record in handled) / 1000
            with self._exchanging:
                self._records += len(handled)
                self._delay_s = max(self._delay_s, delay_s)
        self._lane.feed(handled)

    def end(self) -> None:
        """Wait until the results of all records that were begun are written, then send the last report to the driver.

        Called in the task's thread after the last record, and in the reporter's thread when the driver stops the query.

        1. `give_up`, or an earlier `end`, has begun the last report: do nothing.
        2. The task has failed: raise the error of the delivery, the write, or the exchange with the driver.
        3. The task has paused partitions, and the driver has not stopped the task: send no last report. The next report asks
           for a restart. If the task succeeded, Spark would commit the dropped records of these partitions.
        4. The driver has stopped the task: wait for its background attempts, then report STOPPED.
        5. The task has read all of its records: report DONE. Raise ChannelBroken if the driver cannot get this report.
        """
        with self._ending:
            if self._is_ended:
                return
            self._lane.finish()
            self._writer.join()
            if self._lane.failure is not None:
                raise self._lane.failure
            is_stopped = self._lane.is_over
            if self._lane.paused.places and not is_stopped:
                self._asks_for_restart = True
                return
            if is_stopped:  # the process may end once the driver has the report
                self._here.wait_until_idle(self._stop_within_s)
            self._task.finish()
            self._is_ended = True
            self._over.set()
            self._send_last_report(messages.TaskState.STOPPED if is_stopped else messages.TaskState.DONE)

    def await_end_of_query(self) -> None:
        """If the task was stopped or given up, or asks for a restart, wait until Spark ends this process.

        Such a task has dropped records. If the task succeeded, Spark would commit the dropped records. If the task failed,
        Spark would retry the task. So this method neither returns nor raises while the driver may still end the query. Raise
        Orphaned if the JVM is gone, or if the driver has not ended the query in time.
        """
        deadline = time.monotonic() + self._stop_within_s + self._stopped_s
        while self._lane.is_over or self._asks_for_restart:
            if self.is_orphan or time.monotonic() > deadline:
                raise errors.Orphaned
            time.sleep(LOOK_S)

    def give_up(self) -> None:
        """Start no more deliveries, and write the results of deliveries that end within DRAIN_S. For a task that fails.

        Then send the last report, with the failure, to the driver. Does nothing if `end` has begun the last report.
        """
        self._over.set()
        with self._ending:
            if self._is_ended:
                return
            self._is_ended = True
            self._lane.close(DRAIN_S)
            self._writer.join(DRAIN_S)
            self._task.flush()
            why = "" if self._lane.failure is None else f"{type(self._lane.failure).__name__}: {self._lane.failure}"
            self._send_last_report(messages.TaskState.FAILED, why or "its input ended early")

    def _write(self) -> None:
        try:
            while (ended := self._lane.next_results()) is not None:
                self._task.write(ended.results)
                if ended.receipts:
                    self._task.finish()  # first the results: a receipt confirms that they are written
                    receipts = [dataclasses.replace(receipt, is_confirmed=True) for receipt in ended.receipts]
                    self._task.write(Results(receipts=receipts))
                    self._task.finish()
                    with self._exchanging:
                        self._next |= {
                            (receipt.topic, receipt.partition): receipt.last_offset + 1 for receipt in ended.receipts
                        }
        except Exception as exc:  # otherwise the failure would show only at the task's end, minutes later
            log.exception(
                "task %d of lane realtime could not write its results: the task fails, and the lane restarts its query. Check "
                "that Kafka answers, and that the job may write the result topics. After any other error send this traceback "
                "to the maintainers of the platform",
                self._number,
            )
            self._lane.fail(exc)

    def _report(self) -> None:
        try:
            while not self._over.wait(REPORT_S):
                self._require_well()
                self._paused = self._lane.paused.places
                if self._lane.paused.are_readable:
                    self._asks_for_restart = True
                update = self._exchange()
                if update.is_stopping:
                    self._lane.stop()
                    self.end()
                    return
                self._take(update)
        except Exception as exc:  # noqa: BLE001  # a thread that ends without a report looks like a silent task
            if self._over.is_set():
                return
            log.warning(
                "task %d of lane realtime fails (%s): the lane restarts its query, and the driver's log says what to do",
                self._number, exc,
            )  # fmt: skip
            self._lane.fail(exc)
            self._send_last_report(messages.TaskState.FAILED, f"{type(exc).__name__}: {exc}")

    def _require_well(self) -> None:
        if self._lane.failure is not None:
            raise self._lane.failure
        if self._lane.unchecked_s() > STUCK_S:
            raise TimeoutError(f"the event loop has not answered for {STUCK_S:.0f} s")

    def _exchange(self) -> messages.DriverUpdate:
        with self._exchanging:
            self._link.send(self._next_report(messages.TaskState.RUNNING))
            update: messages.DriverUpdate = self._link.receive()
        self._here.now_s.record_stamp(update.driver_s)
        return update

    def _send_last_report(self, state: messages.TaskState, failure: str = "") -> None:
        try:
            with self._exchanging:
                self._link.send(self._next_report(state, failure))
        except channel.ChannelBroken as exc:
            if state is messages.TaskState.DONE:
                raise
            log.info("the last report of task %d of lane realtime did not reach the driver: %s", self._number, exc)

    def _next_report(self, state: messages.TaskState, failure: str = "") -> messages.TaskReport:
        total, gone, unresponsive = report_buffer.buffer().drain()
        report = messages.TaskReport(
            task=self._number,
            state=state,
            failure=failure,
            known=followed().known(),
            counters=total,
            gone=gone,
            unresponsive=unresponsive,
            next_offsets=self._next,
            paused=self._paused,
            asks_for_restart=self._asks_for_restart,
            records=self._records,
            delay_s=self._delay_s,
        )
        self._next, self._records, self._delay_s = {}, 0, 0.0
        return report

    def _take(self, update: messages.DriverUpdate) -> None:
        """Apply an update of the driver: pause, registry and suppressed endpoints.

        Called in the reporter's thread. The event loop uses the registry and the suppressed endpoints, so this method hands
        their changes over to the loop. A new snapshot becomes a new registry at once, which the next slice uses.
        """
        self._lane.pause(is_paused=update.is_paused)
        if self._take_base(update):
            self._lane.end_slice()
        registry = followed().current()
        if update.changes is not None:
            changes = pickling.unpacked(update.changes)  # here, because it would keep the event loop busy
            self._here.call_in_loop(functools.partial(registry.advance, changes))
        if update.suppressed != self._suppressed:
            self._here.call_in_loop(functools.partial(self._replace_suppressed, update.suppressed))

    def _take_base(self, update: messages.DriverUpdate) -> bool:
        if update.base is None:
            return False
        followed().registry = registries.WholeRegistry(update.base_id, pickling.unpacked(update.base))
        return True

    def _replace_suppressed(self, suppressed: Mapping[EndpointId, str]) -> None:
        self._suppressed.clear()
        self._suppressed.update(suppressed)
