"""When the real-time lane catches up in micro-batches, when it comes back, and from where a query goes on."""

import pytest

from delivery.config import settings
from delivery.stages.kafka import source
from delivery.stages.realtime import floors, pace, slots
from delivery.stages.realtime.floors import Run

REALTIME, CATCHING_UP = pace.Mode.REALTIME, pace.Mode.CATCHING_UP


def told(state, *delays_s, behind_s=5.0, first_s=0.0):
    """Return the pace after a delay each second."""
    for second, delay_s in enumerate(delays_s):
        state = state.told(delay_s, behind_s, first_s + second)
    return state


def test_old_records_for_three_seconds_make_it_catch_up():
    assert told(pace.Pace(since=0), 6, 6, 6).mode is REALTIME
    assert told(pace.Pace(since=0), 6, 6, 6, 6).mode is CATCHING_UP


def test_a_single_pause_does_not():
    assert told(pace.Pace(since=0), 6, 6, 0, 6, 6, 6).mode is REALTIME


def test_looks_between_two_reports_do_not_make_records_young():
    """A task reports each 0.25 s, and the driver looks each 0.1 s."""
    state = pace.Pace(since=0)
    for look in range(41):
        state = state.told(6.0 if look % 3 == 0 else 0.0, 5.0, look / 10)
    assert state.mode is CATCHING_UP


def test_young_records_bring_it_back_after_the_least_time():
    behind = pace.Pace(mode=CATCHING_UP, since=0, least_s=10)
    assert told(behind, *[0] * 10).mode is CATCHING_UP
    assert told(behind, *[0] * 11).mode is REALTIME


def test_records_of_half_the_bound_keep_it_catching_up():
    assert told(pace.Pace(mode=CATCHING_UP, since=0, least_s=1), *[2.5] * 60).mode is CATCHING_UP


@pytest.mark.parametrize(("lasted_s", "least_s"), [(10, 40), (100, 40), (200, pace.LEAST_S)])
def test_catching_up_lasts_longer_when_it_has_not_helped(lasted_s, least_s):
    back = pace.Pace(mode=REALTIME, since=0, least_s=20)
    assert told(back, 6, 6, 6, 6, first_s=lasted_s).least_s == least_s


def test_it_never_lasts_longer_than_the_most():
    assert told(pace.Pace(since=0, least_s=200), 6, 6, 6, 6).least_s == pace.MOST_S


@pytest.mark.parametrize(
    ("runs", "at"),
    [
        ((), 5),
        ((Run(5, 9), Run(10, 12)), 13),
        ((Run(10, 12), Run(5, 9)), 13),
        ((Run(6, 9),), 5),  # of 5 nobody says that it is handled
        ((Run(5, 9), Run(11, 12)), 10),
        ((Run(0, 9),), 10),  # a part of it is committed
        ((Run(0, 3),), 5),
        ((Run(5, 9), Run(7, 8)), 10),
    ],
)
def test_a_query_goes_on_where_receipts_follow_on_each_other(runs, at):
    assert floors.beyond(5, runs) == at


def test_slots_for_each_partition_and_for_the_other_lanes():
    assert slots.refusal({"a": 2, "b": 1}, 5, 2) is None
    refused = slots.refusal({"a": 2, "b": 1}, 4, 2)
    assert "needs 5 slots and Spark has 4: one for each of 3 partitions of 2 topics, and 2 for the other lanes" in refused
    assert "local[5,4]" in refused


@pytest.mark.parametrize(("topic", "is_realtime"), [("events.fast", True), ("events.fast.er", False), ("other.fast", False)])
def test_topics_of_both_patterns_are_the_real_time_lanes(topic, is_realtime):
    wanted = settings.Source(topic_pattern=r"events\..+", realtime_pattern=r".+\.fast")
    assert source.is_realtime(wanted, topic) is is_realtime


def test_without_a_pattern_no_topic_is():
    assert not source.is_realtime(settings.Source(), "events.fast")
