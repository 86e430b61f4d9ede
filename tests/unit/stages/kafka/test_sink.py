"""When a row counts as written."""

import pytest

from delivery import errors
from delivery.stages import process_state
from delivery.stages.kafka import sink
from delivery.webhooks.results.topic_rows import TopicRow


class Message:
    def __init__(self, topic, offset):
        self._topic, self._offset = topic, offset

    def topic(self):
        return self._topic

    def offset(self):
        return self._offset


class Refusal:
    """Kafka's error for a row. While its text is read, call `meanwhile`, as a switch to another thread would."""

    def __init__(self, meanwhile):
        self._meanwhile = meanwhile

    def str(self):
        self._meanwhile()
        return "Message size too large"


class Producer:
    """Confirms each row when it is flushed, as confluent_kafka's does, at the offsets given."""

    def __init__(self, *offsets):
        self._offsets, self._reports = list(offsets), []

    def produce(self, topic, _, *, on_delivery, **__):
        self._reports.append((on_delivery, Message(topic, self._offsets.pop(0))))

    def poll(self, _):
        pass

    def flush(self, _):
        for report, message in self._reports:
            report(None, message)
        self._reports.clear()


@pytest.fixture
def written_at(monkeypatch):
    def begin(*offsets):
        made = []
        monkeypatch.setattr(sink.KafkaSink, "_producer", lambda self: made.append(self.client) or Producer(*offsets))
        process_state.RESULT_PRODUCERS.clear()
        monkeypatch.setattr(process_state.RESULT_PRODUCERS, "clear", lambda: made.append("forgotten"))
        return sink.to({})(), made

    yield begin
    monkeypatch.undo()
    process_state.RESULT_PRODUCERS.clear()


ROWS = [TopicRow("attempts", b"ep1", b"one"), TopicRow("attempts", b"ep1", b"two")]


def test_rows_are_written_when_the_broker_has_said_where_each_is(written_at):
    writing, made = written_at(7, 8)
    writing.write(ROWS)
    writing.finish()
    assert "forgotten" not in made


def test_a_row_without_an_offset_counts_as_unwritten_and_ends_its_producer(written_at):
    """Regression: librdkafka 2.16 confirmed 1 in 15 rows that the broker had refused as too large, without an offset."""
    writing, made = written_at(7, None)
    writing.write(ROWS)
    with pytest.raises(errors.KafkaUnavailable, match=r"attempts could not be written: the broker.s answer has no offset"):
        writing.finish()
    assert made[-1] == "forgotten"


def test_a_refused_row_never_counts_as_written_meanwhile(written_at):
    """Regression: the row counted as answered before its failure was known.

    Then `finish`, in another thread, took it for written.
    """
    writing, _ = written_at(None)
    writing.write(ROWS[:1])
    unconfirmed = []
    writing._confirm(Refusal(lambda: unconfirmed.append(writing._unconfirmed)), Message("attempts", None))
    assert unconfirmed == [1]
    with pytest.raises(errors.KafkaUnavailable, match="attempts could not be written: Message size too large"):
        writing.finish()
