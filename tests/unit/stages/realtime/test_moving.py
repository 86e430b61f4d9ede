"""Topics that change lanes take their positions with them."""

import pytest

from delivery import errors, job_lanes
from delivery.config import settings
from delivery.stages.realtime import topic_moves


def test_positions_part_by_topic():
    positions = {"slow": {"0": 1}, "fast": {"0": 2, "1": 3}}
    assert topic_moves.split_by_topic(positions, {"fast"}.__contains__) == ({"slow": {"0": 1}}, {"fast": {"0": 2, "1": 3}})


def test_of_a_partition_that_both_lanes_know_the_farther_position_holds():
    """After a crash between the two steps of a move both have it, and one of them has gone on."""
    assert topic_moves.merged({"a": {"0": 5, "1": 1}}, {"a": {"0": 3, "1": 2}, "b": {"0": 7}}) == {
        "a": {"0": 5, "1": 2},
        "b": {"0": 7},
    }


def config_of(pattern="", checkpoint="checkpoint"):
    return settings.Settings(
        source=settings.SourceSettings(realtime_pattern=pattern), spark=settings.SparkSettings(checkpoint=checkpoint)
    )


def test_a_checkpoint_on_a_store_gives_topics_back_if_both_lanes_are_named():
    """It has no file locks, so the real-time lane may run in another application."""
    config = config_of(checkpoint="s3a://bucket/checkpoint")
    with pytest.raises(errors.SettingsError, match=r"moves fast between .* name both lanes in one job once"):
        topic_moves._require_both_lanes(config, ["direct", "batch"], ["fast"])
    topic_moves._require_both_lanes(config, ["direct", "realtime"], ["fast"])


@pytest.mark.parametrize(
    ("pattern", "named", "names"),
    [
        ("", None, ["direct", "batch", "retry"]),
        ("fast", None, ["direct", "batch", "retry", "realtime"]),
        ("", ["direct", "realtime"], ["direct"]),
        ("fast", ["realtime"], ["realtime"]),
    ],
)
def test_the_real_time_lane_runs_only_with_its_pattern(pattern, named, names, caplog):
    """Regression: a job that named the lane without a pattern, to give its topics back, was refused."""
    assert job_lanes.names_to_run(config_of(pattern), named) == names
    assert ("does not run, because source.realtime_pattern is empty" in caplog.text) == (named == ["direct", "realtime"])


def test_a_job_of_the_real_time_lane_alone_needs_a_pattern():
    with pytest.raises(errors.SettingsError, match=r"has no topics, so the job did not start: set source\.realtime_pattern"):
        job_lanes.names_to_run(config_of(), ["realtime"])
