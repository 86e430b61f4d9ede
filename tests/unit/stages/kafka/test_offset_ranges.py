"""PlannedOffsets returns the offset ranges of Spark's plan, and each task gets its share of them. Without Spark."""

import random
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery import errors
from delivery.stages.kafka import offset_ranges
from delivery.stages.kafka.offset_ranges import RecordRange


class Offsets:
    """A set of Scala with partitions and offsets, as the JVM answers. `answered` keeps the length of each answer."""

    answered: ClassVar = []

    def __init__(self, entries):
        self._entries = list(entries)

    def diff(self, other):
        return Offsets(entry for entry in self._entries if entry not in other._entries)

    def toSet(self):  # noqa: N802  # Scala's names
        return self

    toSeq = toSet  # noqa: N815

    def size(self):
        return len(self._entries)

    def slice(self, begin, end):
        return Offsets(self._entries[begin:end])

    def mkString(self):  # noqa: N802
        self.answered.append(len(self._entries))
        return "".join(f"({topic}-{number},{offset})" for (topic, number), offset in self._entries)

    def partitionToOffsets(self):  # noqa: N802
        return self


class Spark:
    """A Spark session with one query, whose present micro-batch reads from `start` to `end`."""

    def __init__(self, start, end, name="direct", leaf="StreamingDataSourceV2ScanRelation"):
        self._start, self._end, self._name, self._leaf = start, end, name, leaf
        self._jsparkSession = self

    def getSimpleName(self):  # noqa: N802  # Java's name
        return self._leaf

    def active(self):
        return [self]

    def name(self):
        return self._name

    def get(self):
        return Offsets((self._start if self._is_start else self._end).items())

    def startOffset(self):  # noqa: N802
        self._is_start = True
        return self

    def endOffset(self):  # noqa: N802
        found = Spark(self._start, self._end)
        found._is_start = False
        return found

    def itself(self):
        return self

    streams = streamingQuery = lastExecution = analyzed = collectLeaves = head = getClass = itself  # noqa: N815


def ranges(start, end):
    return sorted(offset_ranges.PlannedOffsets(Spark(start, end), "direct").ranges())


def test_a_micro_batch_reads_the_partitions_whose_offset_has_changed():
    start = {("a.b-c_d", 0): 5, ("a.b-c_d", 1): 7, ("e", 0): 1}
    assert ranges(start, start | {("a.b-c_d", 1): 9, ("e", 0): 2}) == [
        RecordRange("a.b-c_d", 1, 7, 9),
        RecordRange("e", 0, 1, 2),
    ]


def test_a_new_partition_is_read_from_its_first_record():
    assert ranges({("a", 0): 5}, {("a", 0): 5, ("a", 1): 3, ("a-1", 0): 0}) == [RecordRange("a", 1, 0, 3)]


def test_offsets_in_another_form_than_expected_end_the_lane():
    """They would be committed without being read."""
    with pytest.raises(errors.LaneFailed, match="in an unknown form"):
        ranges({("a", 0): 5}, {("a", 0): 6, ("a", "?"): 7})


@pytest.mark.parametrize(
    ("end", "text"), [({}, r"no longer exists \(the lane's position is 5\)"), ({("a", 0): 4}, "ends at offset 4, but .* is 5")]
)
def test_a_partition_that_lost_the_position_of_the_lane_ends_it(end, text):
    """Regression: the batch lane would have committed the end offset, and events of a new topic would never have been read."""
    with pytest.raises(errors.LaneFailed, match=rf"^partition 0 of topic a {text}: .*accept-loss"):
        ranges({("a", 0): 5, ("b", 0): 1}, end | {("b", 0): 2})


def test_a_micro_batch_that_ends_where_it_starts_reads_nothing():
    """Such as an interrupted one of which all records are lost, after `fanout accept-loss`."""
    assert offset_ranges.PlannedOffsets(Spark({}, {}, leaf="LocalRelation"), "direct").ranges() == []


def test_an_answer_of_the_jvm_has_few_partitions():
    Offsets.answered.clear()
    end = {("a", number): number + 1 for number in range(250)}
    assert len(ranges(dict.fromkeys(end, 0), end)) == 250
    assert max(Offsets.answered) == offset_ranges.ENTRIES_AT_ONCE


class Properties(dict):
    """The local properties of a thread of Spark, and of its tasks."""

    setLocalProperty = dict.__setitem__  # noqa: N815  # Spark's names
    getLocalProperty = dict.get  # noqa: N815


def test_each_task_receives_the_ranges_that_were_sent_for_it(monkeypatch):
    properties = Properties()
    monkeypatch.setattr(offset_ranges.TaskContext, "get", lambda: properties)
    assignments = [[RecordRange("a", 0, 5, 7), RecordRange("b.c", 11, 0, 2**40)], [RecordRange("a", 1, 0, 1)]]
    offset_ranges.send(properties, assignments)
    assert [offset_ranges.received(number) for number in range(3)] == [*assignments, []]
    offset_ranges.send(properties, [])
    assert offset_ranges.received(0) == []


def test_a_task_without_ranges_fails_instead_of_reading_nothing(monkeypatch):
    for context in (None, Properties()):
        monkeypatch.setattr(offset_ranges.TaskContext, "get", lambda context=context: context)
        with pytest.raises(RuntimeError, match="no offset ranges"):
            offset_ranges.received(0)


def test_the_ranges_of_a_thousand_partitions_have_few_bytes():
    """Spark sends them to each task."""
    drawn = random.Random(1)
    starts = [drawn.randrange(10_000_000) for _ in range(1000)]
    ranges = [RecordRange(f"events.{n:x}", n % 3, start, start + drawn.randint(1, 99)) for n, start in enumerate(starts)]
    properties = Properties()
    offset_ranges.send(properties, offset_ranges.divided(ranges, 16))
    assert len(properties[offset_ranges.PROPERTY]) < 22_000


def test_it_asks_the_query_of_its_lane_only():
    with pytest.raises(errors.LaneFailed, match="the query direct has ended"):
        offset_ranges.PlannedOffsets(Spark({}, {}, name="batch"), "direct").ranges()


COUNTS = st.lists(st.integers(1, 1000), max_size=50)


@given(COUNTS, st.integers(1, 8))
def test_the_ranges_are_divided_among_the_tasks_and_none_is_idle(counts, tasks):
    given_ranges = [RecordRange("a", number, 0, count) for number, count in enumerate(counts)]
    assignments = offset_ranges.divided(given_ranges, tasks)
    assert sorted(found for assignment in assignments for found in assignment) == given_ranges
    assert len(assignments) == min(tasks, len(counts))
    assert all(assignments)
    assert offset_ranges.divided(given_ranges[::-1], tasks) == assignments, "a task that runs again would get others"


@given(COUNTS.filter(bool), st.integers(1, 8))
def test_no_task_has_more_than_its_share_and_one_partition(counts, tasks):
    cost = [count + offset_ranges.PARTITION_COST for count in counts]
    assignments = offset_ranges.divided([RecordRange("a", number, 0, count) for number, count in enumerate(counts)], tasks)
    loads = [sum(found.end + offset_ranges.PARTITION_COST for found in assignment) for assignment in assignments]
    assert max(loads) <= sum(cost) / len(assignments) + max(cost)
