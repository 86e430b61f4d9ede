"""`fanout publish` refuses lines that the job would reject, with number and reason, unless --unchecked is set."""

import pytest
from confluent_kafka import KafkaError
from typer.testing import CliRunner

from delivery import errors
from delivery.config import plan_builder, settings
from fanout.cli import main
from fanout.kafka import publishing

CONFIG = settings.Settings()
LAYOUT = plan_builder.layout_of(CONFIG)
GOOD = b'{"id": "e1", "type": "order.created", "tenant_id": "t1", "amount": 1}'


def read(*lines, topic=None, layout=LAYOUT):
    return list(publishing.from_lines(lines, CONFIG.source, topic, layout))


def test_a_line_goes_unchanged_to_the_topic_of_its_type():
    assert read(GOOD + b"\n", b"\n") == [publishing.Message(topic="events.order.created", value=GOOD)]


def test_the_type_may_be_a_field_within_another():
    """Regression: `source.type_field` is a path, and was taken for a name with a dot."""
    source = CONFIG.source.model_copy(update={"type_field": "meta.type"})
    [message] = publishing.from_lines([b'{"meta": {"type": "order.created"}}'], source, None, None)
    assert message.topic == "events.order.created"


def test_a_line_goes_to_the_topic_of_the_option():
    assert [message.topic for message in read(GOOD, topic="events.other")] == ["events.other"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "line 2: is not JSON"),
        (b"[1]", "line 2: is JSON, but no object: write the event as a JSON object"),
        (b'{"id": "e1", "tenant_id": "t1"}', "line 2: has no 'type': add it, or name a topic with --topic"),
        (
            b'{"type": "order.created", "id": "e1"}',
            r"line 2: the job would reject this event \(missing_attribute: .*tenant.*--unchecked",
        ),
        (GOOD[:-1] + b', "note": "' + b"x" * 300_000 + b'"}', r"line 2: the job would reject this event \(too_large"),
    ],
)
def test_a_line_that_the_job_would_reject_is_refused_with_number(line, said):
    with pytest.raises(errors.RegistrationError, match=said):
        read(GOOD, line)


def test_a_line_that_the_job_would_reject_is_published_unchecked():
    line = b'{"type": "order.created"}'
    assert [message.value for message in read(line, layout=None)] == [line]
    assert [message.value for message in read(b"[1]", topic="events.other", layout=None)] == [b"[1]"]


def test_a_record_that_is_too_large_for_kafka_is_named_with_its_size():
    """Regression: the KafkaException MSG_SIZE_TOO_LARGE ended `fanout publish --unchecked` in a traceback."""
    publisher = publishing.Publisher(settings.KafkaSettings(bootstrap_servers="127.0.0.1:1"))
    said = r"refused a record.*topic events\.a: a record with a value of 2000000 bytes is too large.*make the value smaller"
    with pytest.raises(errors.KafkaUnavailable, match=said):
        publisher.publish(publishing.Message(topic="events.a", value=b"x" * 2_000_000))


def test_a_file_with_a_refused_line_is_not_published_at_all(tmp_path):
    file = tmp_path / "events.ndjson"
    file.write_bytes(GOOD + b"\n{}\n")
    result = CliRunner(env={"FANOUT_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}).invoke(main.app, ["publish", str(file)])
    assert isinstance(result.exception, errors.RegistrationError)  # and not KafkaUnavailable: nobody asked there


class Producer:
    """Kafka refuses each message when the client is polled."""

    def __init__(self):
        self.produced, self._reports = [], []

    def produce(self, topic, *_, on_delivery, **__):
        self.produced.append(topic)
        self._reports.append(on_delivery)

    def poll(self, _):
        for report in self._reports:
            report(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), None)
        self._reports.clear()

    def flush(self, _):
        self.poll(0)
        return 0


@pytest.fixture
def producer(monkeypatch):
    made = Producer()
    monkeypatch.setattr(publishing.kafka_clients, "producer", lambda *_: made)
    return made


def test_publishing_ends_when_kafka_refuses_an_event(producer, monkeypatch):
    """Regression: `fanout publish -` read on to the end of its input, and dropped every event."""
    monkeypatch.setattr(publishing.topics, "ensure", lambda *_: None)
    events = (publishing.Message(topic="events.a", value=b"{}") for _ in range(100))
    with pytest.raises(errors.KafkaUnavailable, match=r"Kafka refused a record.*are then written twice$"):
        publishing.publish_all(CONFIG, events)
    assert len(producer.produced) == 1


def test_no_event_of_a_file_is_published_if_a_topic_cannot_be_created(producer, monkeypatch):
    """Regression: the events of other topics were in Kafka, and publishing the file again wrote them twice."""
    asked = []

    def ensure(_, names, *__):
        asked.extend(names)
        raise errors.KafkaUnavailable("this login may not create events.b")

    monkeypatch.setattr(publishing.topics, "ensure", ensure)
    with pytest.raises(errors.KafkaUnavailable, match=r"^this login may not create events\.b$"):
        publishing.publish_all(CONFIG, [publishing.Message(topic=name, value=b"{}") for name in ("events.a", "events.b")])
    assert (asked, producer.produced) == (["events.a", "events.b"], [])
