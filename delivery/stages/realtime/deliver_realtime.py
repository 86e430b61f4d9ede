"""Deliver the records of one real-time task, from its first to its last.

Runs in the executors' Python workers. Must not import the settings. Guarantee: an offset receipt is written after all results
of its records, never before. After a crash, records without a receipt are read again (delivery.stages.realtime.start_offsets).
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
    """Spark retries a task with the query's old start offsets. The lane restarts the query instead, with new ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverRealtime:
    """The partition function: Arrow batches of records in, some of them fillers without a topic."""

    tools: task_context.Tools
    """Their `observe` adds to delivery.stages.realtime.report_buffer."""
    driver: channel.Address
    stop_within_s: float
    """Seconds to wait for background attempts when the query stops."""
    ended: frozenset[completed_work.Key] = frozenset()
    """Deliveries beyond the receipts that had ended when the query started."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        number, attempt = (0, 0) if context is None else (context.partitionId(), context.attemptNumber())
        task = self.tools.begin()
        link = channel.connect(self.driver)
        try:
            if attempt:
                link.send(messages.Report(task=number, state=messages.State.FAILED, failure="Spark tried it again"))
                raise TriedAgain
            under_way = realtime_task.RealtimeTask(task, link, number, self.ended, self.stop_within_s)
            try:
                self._read(batches, under_way)
            except BaseException:
                under_way.give_up()
                raise
            under_way.end()
            under_way.await_end_of_query()
        finally:
            link.close()
        return iter(())

    def _read(self, batches: Iterable[pa.RecordBatch], under_way: realtime_task.RealtimeTask) -> None:
        for batch in batches:
            if some := [record for record in deliver_events.records(batch) if record.topic is not None]:
                under_way.feed(some)
            if under_way.is_orphan:
                break
        if under_way.is_orphan:
            raise errors.Orphaned
