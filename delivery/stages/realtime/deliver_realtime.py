"""Deliver the records of one task of the real-time lane, from the first record to the last.

Runs in the executors' Python workers. Must not import the settings. An offset receipt says that a run of records is handled.
Guarantee: an offset receipt is written after all results of its records, never before. After a crash, records without a receipt
are read again (delivery.stages.realtime.start_offsets).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext

from delivery import errors
from delivery.stages.realtime import channel, messages, realtime_task
from delivery.stages.tasks import deliver_events, task_context
from delivery.webhooks.results import completed_work


class TriedAgain(Exception):
    """Raised in a task that Spark starts again after a failure: the second try would begin at the old start offsets.

    The lane restarts the whole query instead, with new start offsets.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverRealtime:
    """The function that Spark calls for a partition of records: deliver them, write the results, yield no rows.

    Spark passes Arrow batches until the query's batch ends. In Spark's real-time mode a batch lasts minutes. Rows without a
    topic are fillers (delivery.stages.realtime.realtime_source), and are ignored.
    """

    tools: task_context.Tools
    """The values that each task needs. `tools.observe` must add to delivery.stages.realtime.report_buffer, not to
    accumulators."""
    driver: channel.Address
    """Address and key of the query's TaskServer."""
    stop_within_s: float
    """Seconds to wait for background attempts when the query stops."""
    stopped_s: float = realtime_task.STOPPED_S
    """Seconds that a stopped task waits for the end of its query, in addition to `stop_within_s`."""
    ended: frozenset[completed_work.Key] = frozenset()
    """Deliveries that had ended before the query started, although their records have no receipt. The task leaves these
    deliveries out."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        number, attempt = (0, 0) if context is None else (context.partitionId(), context.attemptNumber())
        task = self.tools.begin()
        link = channel.connect(self.driver)
        try:
            if attempt:
                link.send(
                    messages.TaskReport(task=number, state=messages.TaskState.FAILED, failure="Spark started it a second time")
                )
                raise TriedAgain
            under_way = realtime_task.RealtimeTask(task, link, number, self.ended, self.stop_within_s, stopped_s=self.stopped_s)
            try:
                self._read(batches, under_way)
                under_way.end()
            except BaseException:
                under_way.give_up()
                raise
            under_way.await_end_of_query()
        finally:
            link.close()
        return iter(())

    def _read(self, batches: Iterable[pa.RecordBatch], under_way: realtime_task.RealtimeTask) -> None:
        for batch in batches:
            if records := [record for record in deliver_events.records(batch) if record.topic is not None]:
                under_way.feed(records)
            if under_way.is_orphan:
                break
        if under_way.is_orphan:
            raise errors.Orphaned
