"""The reader reads all ranges in order. Its timeout counts only time in which Kafka is silent. The consumer is in memory."""

import itertools
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st

from delivery import errors
from delivery.stages import process_state
from delivery.stages.kafka import record_reader
from delivery.stages.kafka.offset_ranges import RecordRange
from tests.unit.stages.kafka.test_record_reader import Polled

BOUNDS = record_reader.ReadingBounds(silence_s=5.0)


class Message(Polled):
    """A record with a value of 1,000 bytes, or an error."""

    def value(self):
        return b"x" * 1000

    def headers(self):
        return None

    def timestamp(self):
        return 1, 0


class Log:
    """A partition in memory: the offsets that have a record, and the end of the partition."""

    def __init__(self, place, offsets, end):
        self.place, self.offsets, self.end = place, offsets, end

    def after(self, position):
        """Return the message at a position or later, and the next position. The partition's end comes once, as an error."""
        found = min((offset for offset in self.offsets if offset >= position), default=None)
        if found is not None:
            return Message(found, None, self.place), found + 1
        if position <= self.end:
            return Message(self.end, KafkaError._PARTITION_EOF, self.place), self.end + 1
        return None, position


class MemoryConsumer:
    """A consumer that polls at random from the partitions that are assigned, and refuses a wrong change of assignment."""

    def __init__(self, logs, drawn):
        self._logs, self._drawn = {log.place: log for log in logs}, drawn
        self.positions = {}

    def list_topics(self, **_):
        return SimpleNamespace(topics={topic for topic, _ in self._logs})

    def assign(self, partitions):
        self.positions = {(partition.topic, partition.partition): partition.offset for partition in partitions}

    def incremental_assign(self, partitions):
        for partition in partitions:
            assert (partition.topic, partition.partition) not in self.positions
            self.positions[partition.topic, partition.partition] = partition.offset

    def incremental_unassign(self, partitions):
        for partition in partitions:
            del self.positions[partition.topic, partition.partition]

    def unassign(self):
        self.positions = {}

    def consume(self, count, *_):
        polled = []
        for _ in range(min(count, self._drawn.randint(1, 4))):
            place = self._drawn.choice(sorted(self.positions)) if self.positions else None
            if place is None:
                break
            message, self.positions[place] = self._logs[place].after(self.positions[place])
            polled += [message] if message is not None else []
        return polled


class ScriptedConsumer(MemoryConsumer):
    """A consumer whose polls return `polls` in turn, and then nothing. `wait` is called in each poll."""

    def __init__(self, topics, polls, wait=lambda: None):
        super().__init__([Log((topic, 0), set(), 0) for topic in topics], None)
        self._polls, self._wait = polls, wait

    def consume(self, count, *_):
        if count != 1:  # the reader asks for one message first, and then for the others that have arrived
            return []
        self._wait()
        return self._polls.pop(0) if self._polls else []


class Clock(SimpleNamespace):
    """The reader's module `time`. `wait` lets more time pass than Kafka may be silent."""

    now = 0.0

    def monotonic(self):
        return self.now

    def wait(self):
        self.now += BOUNDS.silence_s + 1


def reader(monkeypatch, consumer, **options):
    process_state.EVENT_CONSUMERS.clear()
    monkeypatch.setattr(record_reader, "Consumer", lambda _: consumer)
    return record_reader.KafkaReader(client=(), bounds=BOUNDS, **options)


@st.composite
def partitions(draw):
    """Partitions with gaps. Some partitions extend beyond their range."""
    logs, ranges = [], []
    for number in range(draw(st.integers(1, 5))):
        start, count = draw(st.integers(0, 3)), draw(st.integers(1, 6))
        beyond = draw(st.integers(0, 3))
        offsets = draw(st.sets(st.integers(start, start + count + beyond - 1)))
        logs.append(Log(("events", number), offsets, start + count + beyond))
        ranges.append(RecordRange("events", number, start, start + count))
    return logs, draw(st.permutations(ranges))


@given(partitions(), st.randoms(use_true_random=False), st.sampled_from([0, 3000, 8 * 1024 * 1024]))
def test_each_record_of_the_ranges_comes_once_and_in_their_order(drawn_partitions, drawn, max_buffered_bytes):
    logs, ranges = drawn_partitions
    offsets_of = {log.place: log.offsets for log in logs}
    expected = [
        (found.partition, offset)
        for found in ranges
        for offset in sorted(offsets_of[found.topic, found.partition])
        if found.start <= offset < found.end
    ]
    consumer = MemoryConsumer(logs, drawn)
    with pytest.MonkeyPatch.context() as patched:
        range_order = record_reader.RangeOrder
        patched.setattr(record_reader, "RangeOrder", lambda ranges: range_order(ranges, max_bytes=max_buffered_bytes))
        read = reader(patched, consumer, in_order=True)(ranges)
        assert [(record.partition, record.offset) for record in itertools.chain.from_iterable(read)] == expected
        read = reader(patched, consumer)(ranges)
        assert sorted((record.partition, record.offset) for record in itertools.chain.from_iterable(read)) == sorted(expected)
    assert consumer.positions == {}


def test_a_full_reader_fetches_the_earliest_range_only(monkeypatch):
    monkeypatch.setattr(record_reader, "RangeOrder", lambda ranges, of=record_reader.RangeOrder: of(ranges, max_bytes=2000))
    logs = [Log(("events", number), set(range(50)), 50) for number in range(3)]
    drawn = SimpleNamespace(randint=lambda *_: 4, choice=lambda places: places[-1])  # the last range comes first
    consumer = MemoryConsumer(logs, drawn)
    read = reader(monkeypatch, consumer, in_order=True)([RecordRange("events", number, 0, 50) for number in range(3)])
    first = next(read)
    assert set(consumer.positions) == {("events", 0)}
    assert len(first) + sum(map(len, read)) == 150


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(record_reader, "time", Clock())
    return record_reader.time


END_OF_A = Message(1, KafkaError._PARTITION_EOF, ("a", 0))


@pytest.mark.parametrize("topics", ["ab", "abc"], ids=["everything is read", "a range is unread"])
def test_the_time_that_the_task_needs_is_no_silence_of_kafka(monkeypatch, clock, topics):
    """Regression: at the end of partition a, the reader gave out records that it had held back. The task's work on them
    counted as silence of Kafka."""
    consumer = ScriptedConsumer(topics, [[Message(0, None, ("b", 0))], [END_OF_A], [], [Message(0, None, ("c", 0))]])
    read = []
    for records in reader(monkeypatch, consumer, in_order=True)([RecordRange(topic, 0, 0, 1) for topic in topics]):
        clock.wait()
        read += [record.topic for record in records]
    assert read == [*topics[1:]]


def test_a_last_answer_that_comes_late_completes_the_task(monkeypatch, clock):
    consumer = ScriptedConsumer("a", [[END_OF_A]], wait=clock.wait)
    assert list(reader(monkeypatch, consumer)([RecordRange("a", 0, 0, 1)])) == []


def test_a_silent_kafka_fails_the_task(monkeypatch, clock):
    consumer = ScriptedConsumer("a", [], wait=clock.wait)
    with pytest.raises(errors.KafkaUnavailable, match="partition 0 of topic a from offset 0"):
        list(reader(monkeypatch, consumer)([RecordRange("a", 0, 0, 1)]))
