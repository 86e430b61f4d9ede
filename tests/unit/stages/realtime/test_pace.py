"""When the real-time lane catches up in micro-batches, when it comes back, and from where a query goes on."""

import pytest

from delivery.config import settings
from delivery.stages.kafka import topic_source
from delivery.stages.realtime import mode_switch, slots, start_offsets
from delivery.stages.realtime.start_offsets import HandledRange

REALTIME, CATCHING_UP = mode_switch.Mode.REALTIME, mode_switch.Mode.CATCHING_UP


def after(state, *delays_s, behind_s=5.0, first_s=0.0):
    """Return the state after one observation each second."""
    for second, delay_s in enumerate(delays_s):
        state = state.observe(delay_s, behind_s, first_s + second)
    return state


def test_old_records_for_three_seconds_make_it_catch_up():
    assert after(mode_switch.ModeSwitch(since=0), 6, 6, 6).mode is REALTIME
    assert after(mode_switch.ModeSwitch(since=0), 6, 6, 6, 6).mode is CATCHING_UP


def test_a_single_pause_does_not():
    assert after(mode_switch.ModeSwitch(since=0), 6, 6, 0, 6, 6, 6).mode is REALTIME


def test_looks_between_two_reports_do_not_make_records_young():
    """A task reports each 0.25 s, and the driver looks each 0.1 s."""
    state = mode_switch.ModeSwitch(since=0)
    for look in range(41):
        state = state.observe(6.0 if look % 3 == 0 else 0.0, 5.0, look / 10)
    assert state.mode is CATCHING_UP


def test_young_records_bring_it_back_after_the_least_time():
    behind = mode_switch.ModeSwitch(mode=CATCHING_UP, since=0, least_s=10)
    assert after(behind, *[0] * 10).mode is CATCHING_UP
    assert after(behind, *[0] * 11).mode is REALTIME


def test_records_of_half_the_bound_keep_it_catching_up():
    assert after(mode_switch.ModeSwitch(mode=CATCHING_UP, since=0, least_s=1), *[2.5] * 60).mode is CATCHING_UP


def test_one_old_record_each_second_keeps_the_lane_catching_up():
    """One producer with a slow clock does that, though no record waits: docs/operations.md says what to set."""
    state = mode_switch.ModeSwitch(since=0)
    for look in range(6_000):
        state = state.observe(6.0 if look % 10 == 0 else 0.01, 5.0, look / 10)
    assert (state.mode, state.since < 10) == (CATCHING_UP, True)


@pytest.mark.parametrize(("lasted_s", "least_s"), [(10, 40), (100, 40), (200, mode_switch.LEAST_S)])
def test_catching_up_lasts_longer_when_it_has_not_helped(lasted_s, least_s):
    back = mode_switch.ModeSwitch(mode=REALTIME, since=0, least_s=20)
    assert after(back, 6, 6, 6, 6, first_s=lasted_s).least_s == least_s


def test_it_never_lasts_longer_than_the_most():
    assert after(mode_switch.ModeSwitch(since=0, least_s=200), 6, 6, 6, 6).least_s == mode_switch.MOST_S


@pytest.mark.parametrize(
    ("runs", "at"),
    [
        ((), 5),
        ((HandledRange(5, 9), HandledRange(10, 12)), 13),
        ((HandledRange(10, 12), HandledRange(5, 9)), 13),
        ((HandledRange(6, 9),), 5),  # of 5 nobody says that it is handled
        ((HandledRange(5, 9), HandledRange(11, 12)), 10),
        ((HandledRange(0, 9),), 10),  # a part of it is committed
        ((HandledRange(0, 3),), 5),
        ((HandledRange(5, 9), HandledRange(7, 8)), 10),
    ],
)
def test_a_query_goes_on_where_receipts_follow_on_each_other(runs, at):
    assert start_offsets.handled_up_to(5, runs) == at


def test_slots_for_each_partition_and_for_the_other_lanes():
    assert slots.refusal({"a": 2, "b": 1}, 5, 2) is None
    refused = slots.refusal({"a": 2, "b": 1}, 4, 2)
    assert "needs 5 slots: one for each of 3 partitions of 2 topics, and 2 for the other lanes. Spark has 4" in refused
    assert "local[5,4]" in refused


def test_the_check_for_slots_asks_spark_nothing():
    """Regression: this check, ten times a second, copied all of Spark's settings. It took a third of a core."""
    topics = slots.LaneTopics(settings.Settings(), context=None, for_others=0)
    assert topics.have_slots()


@pytest.mark.parametrize(("topic", "is_realtime"), [("events.fast", True), ("events.fast.er", False), ("other.fast", False)])
def test_topics_of_both_patterns_are_the_real_time_lanes(topic, is_realtime):
    wanted = settings.SourceSettings(topic_pattern=r"events\..+", realtime_pattern=r".+\.fast")
    assert topic_source.is_realtime(wanted, topic) is is_realtime


def test_without_a_pattern_no_topic_is():
    assert not topic_source.is_realtime(settings.SourceSettings(), "events.fast")
