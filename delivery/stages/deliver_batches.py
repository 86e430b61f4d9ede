"""Deliver the batches that leave, on the executors, and write what came of them.

Defined on the driver anew for each micro-batch, with the newest registry. Guarantee: as delivery.stages.tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from delivery.stages import state, tasks
from delivery.stages.journal import Journal
from delivery.webhooks import handover, routing


def deliver_batches(
    left: DataFrame,
    tools: tasks.Tools,
    source: routing.Source,
    parallelism: int,
    *,
    held: handover.Held,
    journal: Journal,
) -> DataFrame:
    """Return the tasks that deliver what left its shard. What is due to `held` goes to the retry lane.

    `left` has the column that `state.kept` returns, and no other.

    Coalesced, the shards of a task share one dispatcher, so that endpoints which do not answer are waited for at once, and not
    one shard after the other.
    """
    partition = DeliverBatchesPartition(tools=tools, source=source, held=held, journal=journal)
    return left.coalesce(parallelism).mapInArrow(partition, tasks.NO_ROWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverBatchesPartition:
    """The partition function: Arrow batches of what left its shard in."""

    tools: tasks.Tools
    source: routing.Source
    held: handover.Held
    journal: Journal

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task, ended = self.tools.begin(), tasks.ended_before(self.journal)
        return task.write_all(task.worker.deliver_batches(state.left(batches), self.source, self.held, ended))
