"""Requests for offsets are repeated while a leader moves, and other errors are raised at once."""

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from delivery.stages.kafka import offset_requests

PLACE = TopicPartition("orders", 0, 1000)
REQUESTS = {
    "partitions_of": lambda consumer, timeout_s: offset_requests.partitions_of(
        consumer, "orders", timeout_s=timeout_s, wait_s=0
    ),
    "first_and_end": lambda consumer, timeout_s: offset_requests.first_and_end(
        consumer, "orders", 0, timeout_s=timeout_s, wait_s=0
    ),
    "first_since": lambda consumer, timeout_s: offset_requests.first_since(consumer, [PLACE], timeout_s=timeout_s, wait_s=0),
}


class Consumer:
    """A client of Kafka whose requests fail with these errors in turn, and then succeed.

    With `in_part`, a request for times fails for the second of two partitions only.
    """

    def __init__(self, *codes, in_part=False):
        self.failures = [KafkaException(KafkaError(code)) for code in codes]
        self.in_part = in_part

    def list_topics(self, topic, *_):
        error = self.failures.pop(0).args[0] if self.failures else None
        return SimpleNamespace(topics={topic: SimpleNamespace(error=error, partitions={} if error else {0: None, 1: None})})

    def get_watermark_offsets(self, *_):
        return self._answer((3, 7))

    def offsets_for_times(self, *_):
        if self.in_part and self.failures:
            failure = self.failures.pop(0).args[0]
            return [TopicPartition("orders", 0, 5), SimpleNamespace(offset=1000, error=failure)]
        return self._answer([TopicPartition("orders", 0, 5)])

    def _answer(self, found):
        if self.failures:
            raise self.failures.pop(0)
        return found


@pytest.mark.parametrize("request_offsets", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("code", sorted(offset_requests.MOVING))
def test_a_leader_that_moves_is_waited_for(request_offsets, code):
    """Regression: a command that reads a topic failed with "Not leader for partition" after the topic was created."""
    assert request_offsets(Consumer(code, code), 30) == request_offsets(Consumer(), 30)


@pytest.mark.parametrize("request_offsets", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize(
    ("code", "timeout_s"), [(KafkaError.TOPIC_AUTHORIZATION_FAILED, 30), (KafkaError.NOT_LEADER_FOR_PARTITION, -1)]
)
def test_other_errors_and_the_end_of_the_time_are_raised(request_offsets, code, timeout_s):
    consumer = Consumer(code, code)
    with pytest.raises(KafkaException):
        request_offsets(consumer, timeout_s)
    assert len(consumer.failures) == 1


def test_a_topic_that_does_not_exist_has_no_partitions():
    """A refusal is raised. Regression: the real-time lane took such a topic for a missing one, and repeated its deliveries."""
    assert REQUESTS["partitions_of"](Consumer(KafkaError.UNKNOWN_TOPIC_OR_PART), 30) == {}


def test_an_error_of_one_partition_is_an_error_of_the_request():
    """Regression: the time that was asked for became the partition's offset, so its records were left out without a word."""
    request_offsets = REQUESTS["first_since"]
    assert request_offsets(Consumer(KafkaError.LEADER_NOT_AVAILABLE, in_part=True), 30) == request_offsets(Consumer(), 30)
    with pytest.raises(KafkaException):
        request_offsets(Consumer(KafkaError.TOPIC_AUTHORIZATION_FAILED, in_part=True), 30)
