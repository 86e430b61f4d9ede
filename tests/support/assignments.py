"""Run tasks of the direct lane as Spark does, with records that are made in place of Kafka."""

from dataclasses import dataclass

import pyarrow as pa

from delivery.model import Record
from delivery.stages.kafka.offset_ranges import RecordRange
from delivery.stages.tasks import arrow, deliver_events

NUMBER = pa.RecordBatch.from_arrays([arrow.numbers([0])], names=["id"])
"""Spark passes this Arrow batch to a task. It has the number of the task's assignment."""
PARTITIONS = 7


def task(tools, source, chunks):
    """Run a task of the direct lane that reads `chunks`, which are lists of records. Yield the task's Arrow batches."""
    deliver = deliver_events.DeliverAssignment(assignments=[()], tools=tools, source=source, read=lambda _: iter(chunks))
    yield from deliver([NUMBER])


@dataclass(frozen=True)
class MadeRecords:
    """Makes the records of ranges of PARTITIONS partitions, which have `values` in turn, again and again."""

    values: tuple[bytes, ...]

    def __call__(self, ranges):
        for found in ranges:
            yield [
                Record(*found[:2], offset, offset, self.values[(offset * PARTITIONS + found.partition) % len(self.values)])
                for offset in range(found.start, found.end)
            ]


def made(spark, count, tools, source, *values, tasks=2):
    """Return the frame whose tasks deliver `count` records of one topic."""
    ends = [len(range(number, count, PARTITIONS)) for number in range(PARTITIONS)]
    ranges = [RecordRange("events.order.created", number, 0, end) for number, end in enumerate(ends)]
    assignments = [tuple(ranges[number::tasks]) for number in range(tasks)]
    return deliver_events.deliver(spark, assignments, tools, source, MadeRecords(values))
