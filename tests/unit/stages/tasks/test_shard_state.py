"""Batches and leases that leave a shard share rows on their way to a worker. Without Spark: a shard's state is empty here."""

from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.sql import Row

from delivery.stages.tasks import shard_state
from delivery.webhooks.state.backlog import ShardBacklog


class Nothing:
    """A state that holds nothing, an accumulator that nobody reads, and a task that does nothing else."""

    _statefulProcessorApiClient = None  # noqa: N815  # its name in PySpark

    def getValueState(self, *_):  # noqa: N802  # Spark's name
        return SimpleNamespace(get=lambda: None)

    def getMapState(self, *_):  # noqa: N802  # the same
        return None

    def add(self, _):
        pass

    def finish(self):
        pass


def rows_of(*left):
    """Return the rows in which these leave a shard."""

    def decide(*_):
        return shard_state.Decided(list(left), {}, [], None, ShardBacklog())

    shard = shard_state.Shard(decide, Nothing(), Nothing)
    shard.init(Nothing())
    return list(shard.handleInputRows((0,), iter([Row(shard=0, key=None, value=None, now_ms=1)]), None))


def arrived(rows):
    """Return what is read of the rows by who delivers it."""
    return list(shard_state.items_of([pa.record_batch([pa.array([row.value for row in rows], pa.binary())], ["value"])]))


def test_a_thousand_small_ones_share_a_few_rows_and_keep_their_order():
    left = [b"%d" % number * 300 for number in range(1000)]
    rows = rows_of(*left)
    assert len(rows) <= sum(map(len, left)) // shard_state.ROW_BYTES + 1
    assert arrived(rows) == left


@pytest.mark.parametrize(
    "left", [[], [b""], [b"large" * shard_state.ROW_BYTES], [b"a", b"large" * shard_state.ROW_BYTES, b"b"]]
)
def test_what_is_larger_than_a_row_has_one_alone_and_nothing_has_none(left):
    rows = rows_of(*left)
    assert len(rows) == len(left)
    assert arrived(rows) == left
