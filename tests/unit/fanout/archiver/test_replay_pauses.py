"""A replay that fails pauses for longer each time, until it succeeds."""

from fanout.archiver.replay_pauses import FIRST_PAUSE_S, LONGEST_PAUSE_S, ReplayPauses


def test_each_failure_in_a_row_doubles_the_pause_up_to_a_bound():
    pauses = ReplayPauses()
    seconds = [pauses.failed(1, now) for now in (0.0, 30.0, 90.0, 210.0, 450.0, 930.0, 1830.0)]
    assert seconds == [FIRST_PAUSE_S, 60.0, 120.0, 240.0, 480.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S]


def test_a_pause_ends_at_its_time_and_concerns_no_other_replay():
    pauses = ReplayPauses()
    pauses.failed(1, 100.0)
    assert [pauses.is_paused(1, now) for now in (100.0, 129.9, 130.0)] == [True, True, False]
    assert not pauses.is_paused(2, 100.0)


def test_a_success_forgets_the_failures():
    pauses = ReplayPauses()
    pauses.failed(1, 0.0)
    pauses.failed(1, 30.0)
    pauses.succeeded(1)
    assert not pauses.is_paused(1, 31.0)
    assert pauses.failed(1, 31.0) == FIRST_PAUSE_S


def test_replays_that_failed_long_ago_take_no_memory():
    pauses = ReplayPauses()
    for number in range(100):
        pauses.failed(number, 2.0 * LONGEST_PAUSE_S * number)
    assert len(pauses._pauses) == 1
