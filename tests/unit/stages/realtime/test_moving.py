"""Topics that change lanes take their positions with them."""

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
