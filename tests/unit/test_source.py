"""Which topics the job reads."""

import re

import pytest

from delivery import settings
from delivery.stages import source
from delivery.webhooks import rows


@pytest.mark.parametrize(
    ("topic", "is_read"),
    [
        ("events.order", True),
        ("shop", True),
        ("fanout.ticks", True),
        ("other.events.order", False),
        ("shops", False),
        ("retry-fanout.ticks", False),
        ("fanout.ticks.old", False),
    ],
)
def test_a_topic_is_read_when_all_of_its_name_matches_though_spark_looks_for_a_part(topic, is_read):
    pattern = source.whole(r"events\..+|shop", re.escape("fanout.ticks"))
    assert bool(re.search(pattern, topic)) is is_read


def test_a_micro_batch_of_the_retry_lane_is_bounded_in_bytes_by_the_rows_that_it_reads():
    """2,000 rows of up to 256 KiB were 500 MB."""
    records = source.max_records_of_retries(settings.Source())
    assert (records, records * rows.MAX_POSTPONED_BYTES <= 64 * 1024 * 1024) == (1000, True)


def test_a_micro_batch_of_the_retry_lane_has_a_record_however_few_events_one_may_have():
    assert source.max_records_of_retries(settings.Source(max_events_per_batch=1)) == 1
