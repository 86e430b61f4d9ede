"""Which topics the job reads."""

import re

import pytest

from delivery.stages.kafka import topic_source


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
def test_a_topic_pattern_matches_whole_names_though_spark_looks_for_a_part(topic, is_read):
    pattern = topic_source.whole(r"events\..+|shop", re.escape("fanout.ticks"))
    assert bool(re.search(pattern, topic)) is is_read
