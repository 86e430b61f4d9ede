"""The retry lane's first step handles the records of its topic. Without Spark."""

import itertools
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
NOW = retries.NOW


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
    kinds = [pa.int32(), pa.int64(), pa.int64(), pa.binary(), pa.binary()]
    schema = pa.schema(list(zip(retry_shard.COLUMNS, kinds, strict=True)))
    batches = retry_shard.SpreadPartition(tools=tools or Tools(), shard_keys=KEYS)(
        [pa.RecordBatch.from_pydict(columns, schema=schema)]
    )
    return [row for batch in batches for row in batch.to_pylist()]


def test_every_shard_is_asked_to_look_and_a_record_goes_to_its_endpoints_shard():
    rows = spread((0, 5, NOW, b"ep1", b"one"), (1, 3, NOW, b"ep2", b"two"), (0, 6, NOW, None, None))
    assert [(row["shard"], row["value"]) for row in rows[:3]] == [(key, None) for key in KEYS]
    assert [(row["shard"], row["value"]) for row in rows[3:-3]] == [
        (KEYS[segment.shard_of(EndpointId(name), 3)], value) for name, value in (("ep1", b"one"), ("ep2", b"two"))
    ]


def test_the_key_of_a_row_keeps_the_order_of_the_topic():
    places = [(0, 2), (0, 10), (0, 2**40), (1, 0), (300, 1)]
    rows = spread(*((partition, offset, NOW, b"ep1", b"x") for partition, offset in reversed(places)))[3:-3]
    assert [row["key"] for row in rows][::-1] == sorted(row["key"] for row in rows)


def test_a_task_begins_and_ends_in_its_worker():
    tools = Tools()
    spread((0, 5, NOW, b"ep1", b"one"), tools=tools)
    assert tools.story == ["began", "ended"]


def test_padding_yields_no_row_and_counts_as_read():
    rows = spread((0, 5, NOW - 9, b"ep1", b"one"), (0, 6, NOW - 2, b"ep1", None))
    assert [row["value"] for row in rows[3:-3]] == [b"one"]
    assert behind_ms(rows) == 2


def test_each_shard_learns_how_far_the_lane_is_behind():
    """A report may be in any partition, and not each micro-batch has a record of the shard in the partition that is behind."""
    rows = spread((0, 5, NOW, b"ep1", b"x"), (0, 6, NOW - 300, b"ep1", b"x"), (1, 3, NOW - 80, b"ep2", b"x"))
    assert [(row["shard"], row["key"]) for row in rows[-3:]] == [(key, None) for key in KEYS]
    assert behind_ms(rows) == 300
    assert behind_ms(rows, spread((2, 7, NOW - 700, b"ep3", b"x"))) == 700


def test_a_micro_batch_without_records_is_not_behind():
    rows = [row for batch in retry_shard.SpreadPartition(tools=Tools(), shard_keys=KEYS)([]) for row in batch.to_pylist()]
    assert [row["value"] for row in rows] == [None] * len(KEYS)
    assert behind_ms(rows) == 0


def test_a_record_with_a_future_time_is_not_behind():
    assert behind_ms(spread((0, 5, NOW + 600_000, b"ep1", b"x"))) == 0


def behind_ms(*tasks):
    """Return how far a shard counts the lane as behind, by the rows that these tasks yield for the first shard."""
    arrived = [
        shard_state.Arrived(row["key"] or b"", row["value"])
        for row in itertools.chain(*tasks)
        if row["shard"] == KEYS[0] and row["value"] is not None
    ]
    return retry_shard.behind_ms(arrived, NOW)


def test_a_lease_of_a_lane_that_is_behind_does_not_expire():
    decide = retry_shard.RetryDecision(topic="fanout.retries", policy=window.ShardPolicy(), look_ahead_ms=0)
    place, kept = b"\0" * 12, {}

    def decided(index, value, key, at_ms):
        out = decide(index, [shard_state.Arrived(key, value)], kept.__getitem__, at_ms)
        kept.update(out.append)
        return out

    first = decided(None, retries.postponed(retries.entry()), place, NOW)
    since = decided(first.written, (NOW - 400_000).to_bytes(8, "big"), b"", NOW + 1000)
    later = decided(since.written, (NOW - 1000).to_bytes(8, "big"), b"", NOW + 400_000)
    assert (len(first.due), later.due, later.written) == (1, [], None)
    assert len(decided(since.written, (NOW + 121_000).to_bytes(8, "big"), b"", NOW + 400_000).due) == 1


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
    [row] = spread((3, 2**40, NOW, b"\xff", value))[len(KEYS) : -len(KEYS)]
    good = shard_state.Arrived(b"\0" * 12, retries.postponed(retries.entry()))
    decide = retry_shard.RetryDecision(topic="fanout.retries", policy=window.ShardPolicy(), look_ahead_ms=0)
    with pytest.raises(errors.RecordUnreadable) as raised:
        decide(None, [good, shard_state.Arrived(row["key"], row["value"])], {}.__getitem__, retries.NOW)
    message = str(pickle.loads(pickle.dumps(raised.value)))
    assert message.startswith(f"record fanout.retries:3:{2**40} is no message that this version of fanout reads (")
    assert cause in message
    assert "fanout accept-loss" in message
