"""The retry lane's first step handles the records of its topic. Without Spark."""

import pickle

import pyarrow as pa
import pytest

from delivery import errors
from delivery.registry_model import EndpointId
from delivery.stages.tasks import retry_shard, shard_state
from delivery.webhooks.batching import segment
from delivery.webhooks.retries import window
from tests.support import retries

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


POSTPONED = retries.postponed(retries.entry(), endpoint="ep1")


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        (b'{"id": 1}', "has format 123, and this version of fanout reads format 1"),
        (b"", "is empty, and"),
        (b"\x01{}", "Expected `array`"),
        (POSTPONED.replace(b"ep1", b"ep\xff"), "can't decode byte 0xff"),
        (b"\x01\xdc\x00\x20" + POSTPONED[2:] + b"\x91" * 100_000, "maximum recursion depth"),
    ],
)
def test_an_unreadable_record_is_named_with_the_cure(value, cause):
    """Regression: the lane ended at every start, and its error named neither topic nor partition nor offset."""
    [row] = spread((3, 2**40, b"\xff", value))[len(KEYS) :]
    good = shard_state.Arrived(b"\0" * 12, retries.postponed(retries.entry()))
    decide = retry_shard.RetryDecision(topic="fanout.retries", policy=window.ShardPolicy(), look_ahead_ms=0)
    with pytest.raises(errors.RecordUnreadable) as raised:
        decide(None, [good, shard_state.Arrived(row["key"], row["value"])], {}.__getitem__, retries.NOW)
    message = str(pickle.loads(pickle.dumps(raised.value)))
    assert message.startswith(f"record fanout.retries:3:{2**40} is no message that this version of fanout reads (")
    assert cause in message
    assert "fanout accept-loss" in message
