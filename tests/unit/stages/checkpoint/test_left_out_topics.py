"""The positions of topics are split by what a lane reads now, and none is lost."""

from delivery.stages.checkpoint import left_out_topics

A, B, C = {"0": 5, "1": 7}, {"0": 3}, {"0": 9}


def split(logged, kept, *read):
    return tuple(left_out_topics.split(logged, kept, read.__contains__))


def test_a_topic_that_is_read_no_longer_is_kept_and_comes_back_at_its_position():
    read, left_out = split({"a": A, "b": B}, {}, "a")
    assert (read, left_out) == ({"a": A}, {"b": B})
    assert split(read, left_out, "a", "b") == ({"a": A, "b": B}, {})


def test_a_topic_that_stays_left_out_keeps_its_position():
    assert split({"a": A}, {"b": B, "c": C}, "a", "c") == ({"a": A, "c": C}, {"b": B})


def test_after_a_crash_between_two_writes_the_offset_log_counts():
    """The topic is in both places. The lane has read on since it came back."""
    assert split({"a": {"0": 6}}, {"a": A}, "a") == ({"a": {"0": 6, "1": 7}}, {})
    assert split({"a": {"0": 6}}, {"a": A}) == ({}, {"a": {"0": 6, "1": 7}})
