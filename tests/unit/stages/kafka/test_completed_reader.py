"""The result topics of an interrupted micro-batch are read to their ends, also while leaders move."""

import math
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from delivery.stages.kafka import completed_reader


class Consumer:
    """A consumer of one partition, which is empty since the time asked for. Its look-ups fail with `codes` first."""

    def __init__(self, *codes):
        self._failures = [KafkaException(KafkaError(code)) for code in codes]
        self.lookups = 0

    def list_topics(self, topic, _):
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions={0: None})})

    def offsets_for_times(self, asked, _):
        self.lookups += 1
        if self._failures:
            raise self._failures.pop(0)
        return [TopicPartition(place.topic, place.partition, -1) for place in asked]

    def assign(self, _):
        pass

    def unassign(self):
        pass


def read(consumer, *, until=math.inf):
    return list(completed_reader.messages(consumer, "attempts", 1000, until=until))


@pytest.mark.parametrize("code", [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE])
def test_a_leader_that_moves_is_waited_for(code):
    """Regression: the job read nothing while a leader moved, and repeated every delivery of the micro-batch."""
    consumer = Consumer(code, code)
    assert (read(consumer), consumer.lookups) == ([], 3)


@pytest.mark.parametrize(
    ("code", "until"), [(KafkaError.NOT_LEADER_FOR_PARTITION, 0.0), (KafkaError.TOPIC_AUTHORIZATION_FAILED, math.inf)]
)
def test_other_errors_and_the_deadline_end_the_reading(code, until):
    consumer = Consumer(code)
    with pytest.raises(KafkaException):
        read(consumer, until=until)
    assert consumer.lookups == 1
