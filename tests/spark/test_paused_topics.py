"""A lane that pauses a topic reads all other topics, and later continues at the first waiting record: on a real Spark."""

import re
import threading

import pytest

from delivery import errors
from delivery.config import settings
from delivery.observability import health
from delivery.stages.checkpoint import offset_log, paused_topics
from delivery.stages.kafka import topic_source
from delivery.stages.lanes import streaming_lane
from tests.spark.test_checkpoints import Topic

pytestmark = pytest.mark.spark


class Broken(Exception):
    """The lane's process ends here."""


class Lane:
    """A lane of two topics, whose first waiting record of `framed` is at `waits_at` while the registry is away."""

    def __init__(self, spark, kafka, folder):
        self._spark, self._folder = spark, folder
        self.framed, self.plain = (Topic(spark, kafka, folder) for _ in range(2))
        self.waits_at = None
        self.taken, self.asked, self.breaks = [], 0, False
        self.watch = health.Watch(pause_reason=lambda: None, stop=threading.Event())

    def run(self):
        paused_topics.restore(self._spark, str(self._folder), ["direct"])
        self._stop, self._numbers = threading.Event(), []
        folder = str(self._folder / "direct")
        self.paused = paused_topics.PausedTopics(self._spark, folder, self.watch, self._stop, self._answers, ask_s=0.01)
        pattern = "|".join(re.escape(topic.name) for topic in (self.framed, self.plain))
        wanted = settings.SourceSettings(topic_pattern=pattern, starting_offsets="earliest")

        def planned():
            left_out = self.paused.topics_to_leave_out()
            return topic_source.read(self._spark, self.framed.kafka, wanted, at_most=1_000, without=left_out)

        lane = streaming_lane.StreamingLane(
            "direct", acquire=lambda: (), handle=self._take, stop=self._stop, watch=self.watch, is_kafka_back=pytest.fail,
            on_begin=self._numbers.append, paused=self.paused,
        )  # fmt: skip
        lane.run(planned, settings.SparkSettings(checkpoint=str(self._folder)), 0, once=True)

    def _take(self, batch, _):
        if self.paused.must_replan:
            return streaming_lane.Result.REPLAN
        found, waiting = {}, self.waits_at
        for row in sorted(batch.collect(), key=lambda row: row.offset):
            if waiting is not None and row.topic == self.framed.name and row.offset >= waiting:
                found.setdefault((row.topic, row.partition), row.offset)
            else:
                self.taken.append(bytes(row.value))
        self.paused.note(self._numbers[-1], found)
        if self.breaks:
            raise Broken
        return streaming_lane.Result.COMMITTED

    def _answers(self):
        self.asked += 1
        self.meanwhile()
        self.waits_at = None
        return True

    def meanwhile(self):
        """Called while the topic is left out."""


@pytest.fixture
def lane(spark, kafka, tmp_path):
    return Lane(spark, kafka, tmp_path)


def test_the_other_topic_is_read_and_the_paused_one_continues(lane):
    lane.framed.publish(b"a", b"b", b"c")
    lane.plain.publish(b"1")
    lane.waits_at, seen = 1, []
    lane.meanwhile = lambda: seen.append((sorted(lane.taken), lane.watch.paused_topics))
    lane.run()
    assert seen == [([b"1", b"a"], {lane.framed.name: {0: 1}})]
    assert lane.taken[2:] == [b"b", b"c"]
    lane.framed.publish(b"d")
    lane.plain.publish(b"2")
    lane.run()
    assert sorted(lane.taken[4:]) == [b"2", b"d"]


def test_a_lane_may_have_no_topic_but_the_paused_one(lane):
    lane.plain.delete()
    lane.framed.publish(b"a", b"b")
    lane.waits_at = 0
    lane.run()
    assert (lane.taken, lane.asked) == ([b"a", b"b"], 1)


def test_a_crash_before_the_commit_reads_the_micro_batch_again(lane):
    lane.framed.publish(b"a", b"b")
    lane.waits_at, lane.breaks = 1, True
    with pytest.raises(errors.LaneFailed):
        lane.run()
    lane.taken, lane.breaks, lane.waits_at = [], False, None
    lane.run()
    assert lane.taken == [b"a", b"b"]


@pytest.mark.parametrize("name", ["change", "delete"])
def test_a_crash_between_file_and_offset_log_reads_each_record_once(lane, monkeypatch, name):
    """`change`: the file names the topic, and the offset log has it as well. `delete`: the same, after the topic came back."""
    lane.framed.publish(b"a", b"b")
    lane.plain.publish(b"1")
    lane.waits_at = 1

    def broken(*_):
        raise Broken

    with monkeypatch.context() as patched:
        patched.setattr(*((offset_log.Checkpoint, name) if name == "change" else (offset_log, name)), broken)
        with pytest.raises(Broken):
            lane.run()
    lane.waits_at = None
    lane.run()
    assert sorted(lane.taken) == [b"1", b"a", b"b"]
