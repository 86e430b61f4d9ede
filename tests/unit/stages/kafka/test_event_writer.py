"""The events of a batch record are in Kafka, or Kafka refuses them for good, or the task fails."""

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

from delivery import errors
from delivery.stages import process_state
from delivery.stages.kafka import event_writer
from delivery.webhooks.events import batch_records
from tests.support import builders


class Message:
    def __init__(self, offset):
        self._offset = offset

    def offset(self):
        return self._offset


class Producer:
    """Answers each record when it is flushed, as confluent_kafka's does: with an offset, None, or the code of an error."""

    def __init__(self, *answers):
        self._answers, self._reports, self.produced = list(answers), [], []

    def produce(self, topic, value, *, on_delivery, **fields):
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        self.produced.append((topic, value, fields))
        self._reports.append((on_delivery, answer))

    def poll(self, _):
        pass

    def purge(self, *, in_queue, in_flight):
        assert (in_queue, in_flight) == (True, False)

    def flush(self, _):
        for report, (error, offset) in self._reports:
            report(None if error is None else KafkaError(error), Message(offset))
        self._reports.clear()


def placed(offset):
    return None, offset


REFUSED = (KafkaError.TOPIC_AUTHORIZATION_FAILED, None)
AWAY = (KafkaError._MSG_TIMED_OUT, None)


@pytest.fixture
def write(monkeypatch):
    """Write batches of these events to a Kafka that gives these answers; return the results and what was asked of Kafka."""

    def begin(batches, *answers, **options):
        begin.producer = Producer(*answers)
        begin.forgotten = []
        monkeypatch.setattr(event_writer.KafkaEventWriter, "_producer", lambda _: begin.producer)
        monkeypatch.setattr(process_state.EVENT_PRODUCERS, "clear", lambda: begin.forgotten.append(1))
        found = [
            batch_records.BatchRecord(
                builders.record(offset=offset, key=b"k", partition=2, value=b"[%s]" % b",".join(events)), len(events), 1000
            )
            for offset, events in enumerate(batches)
        ]
        return event_writer.take_apart(found, event_writer.to({}), **options)

    return begin


def test_events_are_taken_apart_when_the_broker_has_said_where_each_is(write):
    results = write([[b"1", b"2"], [b"3"]], placed(7), placed(8), placed(9))
    assert [batch.record.offset for batch in results.batch_records] == [0, 1]
    assert (results.rejections, write.forgotten) == ([], [])
    assert [value for _, value, _ in write.producer.produced] == [b"1", b"2", b"3"]
    topic, _, fields = write.producer.produced[0]
    headers = [("content-type", b"application/cloudevents+json")]
    assert (topic, fields) == ("events.order.created", {"key": b"k", "partition": 2, "headers": headers})


def test_a_batch_that_kafka_refuses_for_good_is_rejected_and_no_other(write):
    results = write([[b"1"], [b"2", b"3"], [b"4"]], placed(7), placed(8), REFUSED, placed(9))
    assert [batch.record.offset for batch in results.batch_records] == [0, 2]
    [rejection] = results.rejections
    assert (rejection.record.offset, rejection.reason) == (1, "not_written")
    assert "refuses 1 of the 2 events" in rejection.detail
    assert write.forgotten  # a producer that was refused a record is not to be trusted


def test_a_task_holds_the_events_of_some_batches_at_once(write, monkeypatch):
    asked, flush = [], Producer.flush
    monkeypatch.setattr(Producer, "flush", lambda self, s: asked.append(len(self._reports)) or flush(self, s))
    results = write([[b"1"], [b"2"], [b"3"], [b"4"], [b"5"]], *map(placed, range(5)), group_bytes=3000)
    assert asked == [2, 2, 1]
    assert [batch.record.offset for batch in results.batch_records] == [0, 1, 2, 3, 4]


def test_an_event_that_is_refused_at_once_rejects_its_batch(write):
    too_large = KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    results = write([[b"1", b"2"]], too_large, placed(8))
    assert [rejection.reason for rejection in results.rejections] == ["not_written"]


@pytest.mark.parametrize("answers", [(placed(7), AWAY), (REFUSED, AWAY), (placed(7), placed(None))])
def test_a_write_that_may_succeed_later_fails_the_task(write, answers):
    """Only an answer that would be the same next time rejects a batch."""
    with pytest.raises(errors.KafkaUnavailable, match=r"topic events\.order\.created.*The batch record is read again"):
        write([[b"1", b"2"]], *answers)
    assert write.forgotten


def test_a_confirmation_without_an_offset_beside_a_refusal_is_no_success(write):
    """After a refusal, librdkafka may take the answer to a refused record for success, as test_sink.py says."""
    results = write([[b"1"], [b"2"]], REFUSED, placed(None))
    assert [rejection.record.offset for rejection in results.rejections] == [0, 1]


def test_each_error_that_is_for_good_has_a_code_in_the_client():
    assert all(getattr(confluent_kafka.KafkaError, name) > 0 for name in event_writer.FOR_GOOD)


def test_the_password_of_the_client_is_not_in_what_describes_a_writer():
    assert "hunter2" not in repr(event_writer.to({"sasl.password": "hunter2"}))
