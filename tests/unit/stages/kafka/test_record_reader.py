"""Unread takes the records of ranges from each poll, knows which ranges are read, and fails on a lost record. No Kafka."""

import dataclasses

import pytest
from confluent_kafka import KafkaError, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from delivery import errors
from delivery.model import Record
from delivery.stages.kafka import kafka_outage, record_reader
from delivery.stages.kafka.offset_ranges import RecordRange

RANGE = RecordRange("events.a", 0, 10, 13)


@dataclasses.dataclass
class Polled:
    """A message as librdkafka returns it: a record, or an error."""

    at: int
    code: int | None = None
    of: tuple[str, int] = ("events.a", 0)

    def topic(self):
        return self.of[0]

    def partition(self):
        return self.of[1]

    def offset(self):
        return self.at

    def error(self):
        return None if self.code is None else KafkaError(self.code)


def taken(unread, *polled):
    return [message.at for message in unread.take(polled)]


def test_a_range_is_read_when_its_last_record_has_come():
    unread = record_reader.Unread([RANGE])
    assert taken(unread, Polled(10), Polled(11)) == [10, 11]
    assert unread
    assert taken(unread, Polled(12)) == [12]
    assert not unread


def test_a_record_behind_the_range_ends_it_and_is_not_taken():
    unread = record_reader.Unread([RANGE])
    assert taken(unread, Polled(10), Polled(20), Polled(21)) == [10]
    assert not unread
    assert unread.drain_passed() == [TopicPartition("events.a", 0)]
    assert unread.drain_passed() == []


@pytest.mark.parametrize(("at", "is_read"), [(12, False), (13, True), (14, True)])
def test_the_end_of_a_partition_ends_a_range_unless_it_is_before_its_end(at, is_read):
    unread = record_reader.Unread([RANGE])
    assert taken(unread, Polled(10), Polled(at, KafkaError._PARTITION_EOF)) == [10]
    assert bool(unread) is not is_read


def test_a_record_that_came_before_is_not_taken_again():
    unread = record_reader.Unread([RANGE])
    assert taken(unread, Polled(9), Polled(10), Polled(10), Polled(11)) == [10, 11]


@pytest.mark.parametrize("code", [KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE])
def test_records_that_kafka_no_longer_has_fail_the_task(code):
    unread = record_reader.Unread([RANGE])
    unread.take([Polled(10)])
    with pytest.raises(errors.TopicUnreadable, match=r"no longer has the records from offset 11 to 12:.*accept-loss"):
        unread.take([Polled(11, code)])


def test_a_refused_topic_fails_the_task():
    with pytest.raises(errors.TopicUnreadable, match=r"partition 0 of topic events.a cannot be read from offset 10 on: "):
        record_reader.Unread([RANGE]).take([Polled(-1001, KafkaError.TOPIC_AUTHORIZATION_FAILED)])


@pytest.mark.parametrize("code", [KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION, KafkaError.UNKNOWN_TOPIC_OR_PART])
def test_a_batch_that_cannot_be_read_is_no_gap_and_fails_the_task(code):
    """librdkafka may continue behind such a batch. The next record would then look as if the offsets had no record."""
    unread = record_reader.Unread([RANGE])
    with pytest.raises(errors.TopicUnreadable, match="cannot be read from offset 11 on"):
        unread.take([Polled(10), Polled(11, code), Polled(12)])


@pytest.mark.parametrize("code", [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.KAFKA_STORAGE_ERROR])
def test_a_change_of_leaders_fails_no_task(code):
    unread = record_reader.Unread([RANGE])
    assert taken(unread, Polled(10), Polled(11, code), Polled(11), Polled(12)) == [10, 11, 12]


@pytest.mark.parametrize("at", [9, 13])
def test_an_error_of_what_an_earlier_task_fetched_ahead_fails_no_task(at):
    unread = record_reader.Unread([RANGE])
    assert taken(unread, Polled(at, KafkaError._AUTO_OFFSET_RESET), Polled(10)) == [10]


def test_an_error_about_a_partition_that_is_read_changes_nothing():
    unread = record_reader.Unread([RANGE, RecordRange("events.b", 3, 0, 1)])
    assert taken(unread, Polled(0, of=("events.b", 3)), Polled(1, KafkaError._AUTO_OFFSET_RESET, ("events.b", 3))) == [0]
    assert unread


def test_a_lost_connection_is_named_when_no_record_comes():
    unread = record_reader.Unread([RANGE, RecordRange("events.b", 3, 0, 1)])
    unread.take([Polled(10), Polled(-1001, KafkaError._TRANSPORT, ("", -1))])
    assert (
        unread.explain()
        == "partition 0 of topic events.a from offset 11 and 1 other partitions (Local: Broker transport failure)"
    )


def test_silence_counts_as_an_outage_of_kafka_and_a_lost_record_does_not():
    assert kafka_outage.is_kafka_outage(f"delivery.errors.KafkaUnavailable: {record_reader.NO_RECORDS}: partition 0")
    assert not kafka_outage.is_kafka_outage("delivery.errors.TopicUnreadable: partition 0 of topic a no longer has the records")


SPANS = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 2)), st.tuples(st.integers(0, 20), st.integers(1, 8)), min_size=1
)


@given(SPANS, st.data())
def test_each_record_of_the_ranges_is_taken_once_whatever_comes_beside(spans, data):
    """Records come in polls of any size, with others before and behind, and gaps; a stale one may come again."""
    unread = record_reader.Unread([RecordRange(*place, start, start + count) for place, (start, count) in spans.items()])
    coming, expected = [], []
    for place, (start, count) in spans.items():
        gaps = data.draw(st.sets(st.integers(start, start + count - 1)))
        held = [at for at in range(start, start + count) if at not in gaps]
        expected += [(place, at) for at in held]
        before = data.draw(st.lists(st.integers(0, max(0, start - 1)), max_size=2)) if start else []
        end = data.draw(
            st.sampled_from([Polled(start + count, None, place), Polled(start + count, KafkaError._PARTITION_EOF, place)])
        )
        coming.append([*(Polled(at, None, place) for at in [*before, *held]), end])
    found = []
    while unread:
        queue = data.draw(st.sampled_from([queue for queue in coming if queue]))
        polled = [queue.pop(0) for _ in range(data.draw(st.integers(1, len(queue))))]
        found += [(message.of, message.at) for message in unread.take(polled)]
    assert sorted(found) == sorted(expected)
    for place in spans:
        assert [at for of, at in found if of == place] == sorted(at for of, at in found if of == place)


def released(order, unread, *polled):
    taken = [Record(*message.of, message.at, 0, b"x" * (1000 - record_reader.RECORD_BYTES)) for message in unread.take(polled)]
    return [(record.topic, record.offset) for record in order.release(taken, unread)]


def of(topic, offset, code=None):
    return Polled(offset, code, (topic, 0))


A, B, C = (RecordRange(topic, 0, 0, 2) for topic in "abc")


def test_records_come_in_the_order_of_the_ranges():
    unread, order = record_reader.Unread([B, A, C]), record_reader.RangeOrder([B, A, C])
    assert released(order, unread, of("a", 0), of("b", 0), of("c", 0)) == [("b", 0)]
    assert released(order, unread, of("a", 1), of("c", 1)) == []
    assert released(order, unread, of("b", 1)) == [("b", 1), ("a", 0), ("a", 1), ("c", 0), ("c", 1)]
    assert not unread


def test_the_end_of_a_partition_releases_the_records_of_the_next_range():
    unread, order = record_reader.Unread([A, B]), record_reader.RangeOrder([A, B])
    assert released(order, unread, of("b", 0), of("a", 0)) == [("a", 0)]
    assert released(order, unread, of("a", 2, KafkaError._PARTITION_EOF)) == [("b", 0)]


def test_it_is_full_until_half_of_the_bytes_are_released():
    ranges = [A, B, RecordRange("c", 0, 0, 10)]
    unread, order = record_reader.Unread(ranges), record_reader.RangeOrder(ranges, max_bytes=4000)
    released(order, unread, *(of("c", at) for at in range(3)), of("b", 0), of("a", 0))
    assert not order.is_full, "4,000 bytes wait"
    released(order, unread, of("b", 1))
    assert order.is_full
    assert released(order, unread, of("a", 1)) == [("a", 1), ("b", 0), ("b", 1), ("c", 0), ("c", 1), ("c", 2)]
    assert not order.is_full


def test_it_stays_full_until_then():
    ranges = [A, B, RecordRange("c", 0, 0, 10)]
    unread, order = record_reader.Unread(ranges), record_reader.RangeOrder(ranges, max_bytes=4000)
    released(order, unread, *(of("c", at) for at in range(4)), of("b", 0))
    assert order.is_full
    released(order, unread, of("a", 0), of("a", 1))
    assert order.is_full, "4,000 bytes wait, and more waited before"


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_each_record_is_released_once_in_order_however_the_partitions_are_mixed(counts, drawn):
    ranges = [RecordRange(f"t{number}", 0, 0, count) for number, count in enumerate(counts)]
    unread, order, out = record_reader.Unread(ranges), record_reader.RangeOrder(ranges, max_bytes=5000), []
    rests = [[of(found.topic, at) for at in range(found.end)] for found in ranges]
    while any(rests):
        out += released(order, unread, drawn.choice([rest for rest in rests if rest]).pop(0))
    assert out == [(found.topic, at) for found in ranges for at in range(found.end)]
