"""Deliver the batches that leave, on the executors; results of routing pass through.

Defined on the driver anew for each micro-batch, with the newest registry. Guarantee: at least once, as delivery.stages.deliver.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from delivery.model import EndpointId
from delivery.stages import deliver
from delivery.stages.journal import Journal
from delivery.webhooks import routing, rows, worker
from delivery.webhooks.results import Results


def deliver_batches(
    left: DataFrame,
    plan: worker.Plan,
    source: routing.Source,
    parallelism: int,
    observe: Callable[[Results], None],
    *,
    held: frozenset[EndpointId] = frozenset(),
    journal: Journal | None = None,
) -> DataFrame:
    """Deliver what left its shard; return what to write to Kafka. What is due to `held` goes to the retry lane.

    Coalesced, the shards of a task share one dispatcher, so that endpoints which do not answer are waited for at once, and not
    one shard after the other.
    """
    return (
        left.select("topic", "key", "value")
        .coalesce(parallelism)
        .mapInArrow(
            DeliverBatchesPartition(plan=plan, source=source, observe=observe, held=held, journal=journal), deliver.SCHEMA
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverBatchesPartition:
    """The partition function: Arrow batches of what left its shard in, Arrow batches of rows out."""

    plan: worker.Plan
    source: routing.Source
    observe: Callable[[Results], None]
    held: frozenset[EndpointId] = frozenset()
    journal: Journal | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        passed: list[rows.Row] = []
        here, ended = worker.of(self.plan), deliver.ended_before(self.journal)
        for results in here.deliver_batches(_leaving(batches, passed), self.source, self.held, ended):
            self.observe(results)
            topics = self.plan.topics
            handed_over = rows.postponed(results, topics, now_ms=round(time.time() * 1000))
            yield from deliver.written(itertools.chain(passed, rows.rows(results, topics), handed_over))
            passed.clear()


def _leaving(batches: Iterable[pa.RecordBatch], passed: list[rows.Row]) -> Iterator[bytes]:
    """Yield the batches that leave; put the rows that are results already into `passed`."""
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("topic", "key", "value"))
        for topic, key, value in zip(*columns, strict=True):
            if topic is None:
                yield value
            else:
                passed.append(rows.Row(topic, key, value))
