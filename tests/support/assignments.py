"""Run tasks that read records as Spark does, with records that are made in place of Kafka."""

from dataclasses import dataclass

import pyarrow as pa

from delivery.model import Record
from delivery.stages.kafka.offset_ranges import RecordRange
from delivery.stages.tasks import arrow, collect_segments, deliver_events

PARTITIONS = 7


def numbered(number):
    """Return the Arrow batch that Spark passes to a task. It has the number of the task's assignment."""
    return pa.RecordBatch.from_arrays([arrow.numbers([number])], names=["id"])


def task(tools, source, chunks):
    """Run a task of the direct lane that reads `chunks`, which are lists of records. Yield the task's Arrow batches."""
    deliver = deliver_events.DeliverAssignment(assignments=[()], tools=tools, source=source, read=lambda _: iter(chunks))
    yield from deliver(0)


def routing_task(tools, source, chunks, direct_from, number=0):
    """Run the task of the batch lane with this number: it reads `chunks`, for the shards 1 and 2. Return its Arrow batches."""
    route = collect_segments.RouteAssignment(
        tools=tools,
        source=source,
        read=lambda _: iter(chunks),
        ranges_of=lambda _: (),
        shard_keys=(1, 2),
        immediate_flush_s=1.0,
        direct_from=direct_from,
    )
    return list(route([numbered(number)]))


@dataclass(frozen=True)
class MadeRecords:
    """Makes the records of ranges of offsets. The `values` repeat in turn, over the records of all PARTITIONS partitions."""

    values: tuple[bytes, ...]
    at_ms: int = 0
    """Time at which Kafka appended the records."""

    def __call__(self, ranges):
        for found in ranges:
            yield [
                Record(*found[:2], offset, self.at_ms, self.values[(offset * PARTITIONS + found.partition) % len(self.values)])
                for offset in range(found.start, found.end)
            ]


def made(spark, count, tools, source, *values, tasks=2):
    """Return the RDD whose tasks deliver `count` records of one topic."""
    ends = [len(range(number, count, PARTITIONS)) for number in range(PARTITIONS)]
    ranges = [RecordRange("events.order.created", number, 0, end) for number, end in enumerate(ends)]
    assignments = [tuple(ranges[number::tasks]) for number in range(tasks)]
    return deliver_events.deliver(spark.sparkContext, assignments, tools, source, MadeRecords(values))
