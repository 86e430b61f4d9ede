"""The real-time lane reads keys from Kafka only to take batch records apart. Its fillers have the same columns."""

import pytest

from delivery.config import settings
from delivery.stages.realtime import realtime_source
from delivery.stages.tasks import deliver_events

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("treatment", "columns"),
    [("rejected", deliver_events.COLUMNS), ("taken_apart", (*deliver_events.COLUMNS, deliver_events.KEY))],
)
def test_keys_are_read_only_to_take_batch_records_apart(spark, treatment, columns):
    config = settings.Settings(source=settings.SourceSettings(batch_records=treatment, realtime_pattern="events[.]fast"))
    one_by_one = realtime_source.read_one_by_one(spark, config, {})
    in_batches = realtime_source.read_in_micro_batches(spark, config, {})
    assert tuple(one_by_one.columns) == tuple(in_batches.columns) == columns
