"""Deliver the batches that leave, on the executors; write what came of them.

Defined on the driver anew for each micro-batch, with the newest registry. Guarantee: at least once, as delivery.stages.deliver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from delivery.model import EndpointId
from delivery.stages import deliver, sink
from delivery.stages.journal import Journal
from delivery.webhooks import routing, worker
from delivery.webhooks.results import Results


def deliver_batches(
    left: DataFrame,
    plan: worker.Plan,
    source: routing.Source,
    parallelism: int,
    observe: Callable[[Results], None],
    *,
    writing: sink.Sink,
    held: frozenset[EndpointId] = frozenset(),
    journal: Journal | None = None,
) -> DataFrame:
    """Return the tasks that deliver what left its shard. What is due to `held` goes to the retry lane.

    Coalesced, the shards of a task share one dispatcher, so that endpoints which do not answer are waited for at once, and not
    one shard after the other.
    """
    partition = DeliverBatchesPartition(plan=plan, source=source, observe=observe, writing=writing, held=held, journal=journal)
    return left.select("value").coalesce(parallelism).mapInArrow(partition, sink.NO_ROWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverBatchesPartition:
    """The partition function: Arrow batches of what left its shard in."""

    plan: worker.Plan
    source: routing.Source
    observe: Callable[[Results], None]
    writing: sink.Sink
    held: frozenset[EndpointId] = frozenset()
    journal: Journal | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        here, ended, out = worker.of(self.plan), deliver.ended_before(self.journal), self.writing()
        for results in here.deliver_batches(deliver.values(batches), self.source, self.held, ended):
            self.observe(results)
            deliver.write(out, results, self.plan.topics)
        deliver.write_late(out, here, self.observe, self.plan.topics)
        out.finish()
        return sink.nothing()
