"""The positions of paused topics are the same after a crash at any point, and a topic that waits delays no other topic."""

import threading

import pytest

from delivery.observability import health
from delivery.stages.checkpoint import paused_topics
from delivery.stages.checkpoint.paused_topics import PausedTopic
from tests.support.fakes import Clock

COMMITTED = {"framed": {"0": 9, "1": 5}, "plain": {"0": 3}}
PAUSED = {"framed": PausedTopic(7, {"0": 4})}
AFTER = {"framed": {"0": 4, "1": 5}, "plain": {"0": 3}}
"""The positions with which the lane continues: partition 0 stopped at offset 4."""


def test_a_paused_partition_continues_at_its_first_waiting_record():
    assert paused_topics.moved_back(PAUSED, COMMITTED) == AFTER


def test_a_topic_that_was_left_out_comes_back_with_all_its_partitions():
    out = paused_topics.moved_out(PAUSED, COMMITTED)
    assert out == {"framed": PausedTopic(7, {"0": 4, "1": 5})}
    assert paused_topics.moved_back(out, {"plain": {"0": 8}}) == AFTER | {"plain": {"0": 8}}


def test_a_crash_before_the_offset_log_changed_ends_with_the_same_positions():
    assert paused_topics.moved_back(paused_topics.moved_out(PAUSED, COMMITTED), COMMITTED) == AFTER
    assert paused_topics.moved_back(PAUSED, AFTER) == AFTER


@pytest.mark.parametrize(("newest", "valid"), [(6, {}), (7, PAUSED), (8, PAUSED)])
def test_positions_of_an_uncommitted_micro_batch_are_void(newest, valid):
    assert paused_topics.committed(PAUSED, newest) == valid


def test_only_the_last_run_of_a_micro_batch_counts():
    first = paused_topics.noted({}, 7, {("framed", 0): 4, ("other", 0): 1})
    assert paused_topics.noted(first, 7, {("other", 0): 2}) == {"other": PausedTopic(7, {"0": 2})}
    assert paused_topics.noted(first, 7, {}) == {}
    assert paused_topics.noted(PAUSED, 9, {("other", 2): 1}) == PAUSED | {"other": PausedTopic(9, {"2": 1})}


def test_a_further_pause_leaves_the_topics_that_it_was_given_unchanged():
    """Regression: the offset was written into the entry of the caller, although the function is pure."""
    before = {"framed": PausedTopic(7, {"0": 4})}
    after = paused_topics.noted(before, 9, {("framed", 1): 6, ("other", 2): 1})
    assert after == {"framed": PausedTopic(7, {"0": 4, "1": 6}), "other": PausedTopic(9, {"2": 1})}
    assert before == {"framed": PausedTopic(7, {"0": 4})}


class File:
    """The file and the offset log, kept in memory."""

    def __init__(self):
        self.topics, self.positions, self.newest = None, COMMITTED, 7

    def write(self, topics):
        self.topics = topics

    def leave_out(self, topics):
        self.topics = paused_topics.moved_out(paused_topics.committed(topics, self.newest), self.positions)
        self.positions = {name: at for name, at in self.positions.items() if name not in self.topics}
        return self.topics

    def restore(self):
        self.positions = paused_topics.moved_back(self.topics, self.positions)
        self.topics = None


class Lane:
    def __init__(self):
        self.file, self.clock, self.stop = File(), Clock(), threading.Event()
        self.answers, self.asked = threading.Event(), threading.Semaphore(0)
        self.watch = health.Watch(pause_reason=lambda: None, stop=self.stop)
        self.paused = paused_topics.PausedTopics(
            None, "/c/direct", self.watch, self.stop, self._ask, clock=lambda: self.clock.now, ask_s=0.001
        )
        self.paused._file = self.file

    def _ask(self):
        self.asked.release()
        return self.answers.is_set()


@pytest.fixture
def lane():
    made = Lane()
    yield made
    made.stop.set()


def test_a_lane_leaves_a_topic_out_until_the_registry_answers(lane):
    assert (lane.paused.must_replan, lane.paused.topics_to_leave_out()) == (False, frozenset())
    assert not lane.paused.is_pausing
    lane.paused.note(7, {("framed", 0): 4})
    assert (lane.paused.must_replan, lane.paused.is_pausing) == (True, True)
    assert lane.paused.topics_to_leave_out() == {"framed"}
    assert lane.paused.is_pausing
    assert (lane.paused.must_replan, lane.file.positions) == (False, {"plain": {"0": 3}})
    assert lane.watch.paused_topics == {"framed": {0: 4, 1: 5}}
    assert lane.asked.acquire(timeout=10)
    assert lane.asked.acquire(timeout=10)
    lane.answers.set()
    assert lane.paused.await_registry()
    assert lane.paused.must_replan
    assert lane.paused.topics_to_leave_out() == frozenset()
    assert (lane.paused.must_replan, lane.file.positions, lane.watch.paused_topics) == (False, AFTER, {})
    assert not lane.paused.is_pausing


def test_a_pause_that_was_not_committed_leaves_nothing_out(lane):
    lane.paused.note(8, {("framed", 0): 4})
    assert lane.paused.topics_to_leave_out() == frozenset()
    assert not lane.paused.must_replan


def test_a_lane_that_stops_does_not_wait_for_the_registry(lane):
    assert not lane.paused.await_registry()
    lane.paused.note(7, {("framed", 0): 4})
    lane.paused.topics_to_leave_out()
    lane.stop.set()
    assert not lane.paused.await_registry()
    lane.paused.close()
    assert (lane.file.topics, lane.file.positions) == (None, AFTER)


def test_a_lane_that_cannot_move_the_positions_ends_as_it_would(lane, monkeypatch):
    """The next start moves them. An error here would hide the reason for which the lane ends."""
    lane.paused.note(7, {("framed", 0): 4})
    monkeypatch.setattr(lane.file, "restore", lambda: 1 / 0)
    lane.paused.close()


def test_pauses_in_quick_succession_are_apart_by_more_and_more(lane):
    """The registry may answer the driver and not the tasks. Each pause delays the other topics by some seconds."""
    lane.answers.set()
    waits = []
    for number in range(7, 12):
        lane.file.newest = number
        lane.paused.note(number, {("framed", 0): 4})
        lane.paused.topics_to_leave_out()
        waits.append(lane.paused._asks_every_s)
        assert lane.paused.await_registry()
        lane.paused.topics_to_leave_out()
        lane.clock.now += 1 if number < 10 else paused_topics.STEADY_S
    assert waits == [0.001, 0.002, 0.004, 0.008, 0.001]
