"""Deliver the records of a task of the real-time lane, from its first to its last.

Runs in the executors' Python workers. Must not import the settings. Guarantee: a receipt is written when all that its records
brought is in its topics, and never before. What no receipt covers is read again after a crash
(delivery.stages.realtime.floors).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext

from delivery import errors
from delivery.stages.realtime import channel, messages, running
from delivery.stages.tasks import deliver_events, task_context
from delivery.webhooks.results import completed_work


class TriedAgain(Exception):
    """Spark runs a task again with what the query began with. The query starts again instead, by what is written now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverRealtime:
    """The partition function: Arrow batches of records in, some of them fillers without a topic."""

    tools: task_context.Tools
    """Its `observe` is one of delivery.stages.realtime.collected."""
    driver: channel.Address
    stop_within_s: float
    """Seconds for which attempts that go on alone are waited for when the query is to stop."""
    ended: frozenset[completed_work.Key] = frozenset()
    """What had ended beyond the receipts when the query began."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        number, attempt = (0, 0) if context is None else (context.partitionId(), context.attemptNumber())
        task = self.tools.begin()
        link = channel.connect(self.driver)
        try:
            if attempt:
                link.send(messages.Report(task=number, state=messages.State.FAILED, failure="Spark tried it again"))
                raise TriedAgain
            under_way = running.Running(task, link, number, self.ended, self.stop_within_s)
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

    def _read(self, batches: Iterable[pa.RecordBatch], under_way: running.Running) -> None:
        for batch in batches:
            if some := [record for record in deliver_events.records(batch) if record.topic is not None]:
                under_way.feed(some)
            if under_way.is_orphan:
                break
        if under_way.is_orphan:
            raise errors.Orphaned
