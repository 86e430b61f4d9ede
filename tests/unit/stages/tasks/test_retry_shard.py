"""The retry lane's first step handles the records of its topic. Without Spark."""

import pyarrow as pa

from delivery.registry_model import EndpointId
from delivery.stages.tasks import retry_shard
from delivery.webhooks.batching import segment

KEYS = (11, 22, 33)


class Tools:
    """The steps of the tasks, in order."""

    def __init__(self):
        self.story = []

    def begin(self):
        self.story.append("began")
        return self

    def finish(self):
        self.story.append("ended")


def spread(*records, tools=None):
    columns = dict(zip(retry_shard.COLUMNS, map(list, zip(*records, strict=True)), strict=True))
    kinds = [pa.int32(), pa.int64(), pa.binary(), pa.binary()]
    schema = pa.schema(list(zip(retry_shard.COLUMNS, kinds, strict=True)))
    batches = retry_shard.SpreadPartition(tools=tools or Tools(), shard_keys=KEYS)(
        [pa.RecordBatch.from_pydict(columns, schema=schema)]
    )
    return [row for batch in batches for row in batch.to_pylist()]


def test_every_shard_is_asked_to_look_and_a_record_goes_to_its_endpoints_shard():
    rows = spread((0, 5, b"ep1", b"one"), (1, 3, b"ep2", b"two"), (0, 6, None, None))
    assert [(row["shard"], row["value"]) for row in rows[:3]] == [(key, None) for key in KEYS]
    assert [(row["shard"], row["value"]) for row in rows[3:]] == [
        (KEYS[segment.shard_of(EndpointId(name), 3)], value) for name, value in (("ep1", b"one"), ("ep2", b"two"))
    ]


def test_the_key_of_a_row_keeps_the_order_of_the_topic():
    places = [(0, 2), (0, 10), (0, 2**40), (1, 0), (300, 1)]
    rows = spread(*((partition, offset, b"ep1", b"x") for partition, offset in reversed(places)))[3:]
    assert [row["key"] for row in rows][::-1] == sorted(row["key"] for row in rows)


def test_a_task_begins_and_ends_in_its_worker():
    tools = Tools()
    spread((0, 5, b"ep1", b"one"), tools=tools)
    assert tools.story == ["began", "ended"]
