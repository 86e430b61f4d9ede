"""The errors of requests to Kafka about topics. With a real Kafka: tests/integration/test_topics.py."""

import re
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from delivery import errors
from delivery.config import settings
from delivery.stages.kafka import topics


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (KafkaError._TRANSPORT, "does not answer (_TRANSPORT: 127.0.0.1:1/bootstrap: Connect to "),
        (KafkaError._TIMED_OUT, "does not answer (_TIMED_OUT: 127.0.0.1:1/bootstrap: Connect to "),
        (
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            "refuses a request to list topics (Broker: Topic authorization failed): grant the right to this login",
        ),
        (KafkaError.INVALID_REQUEST, "refuses a request to list topics (Broker: Invalid request): check the brokers"),
    ],
)
def test_a_refusal_is_not_taken_for_an_absence(code, message):
    """A login without a right was told that Kafka does not answer."""
    kafka = settings.KafkaSettings(bootstrap_servers="127.0.0.1:1")
    exc = topics.unavailable(kafka, KafkaException(KafkaError(code)), "to list topics")
    assert str(exc).startswith(f"Kafka at 127.0.0.1:1 {message}")


@pytest.fixture
def stalled(monkeypatch):
    """Connection settings of a Kafka that has listed its topics, none, and answers nothing more."""
    monkeypatch.setattr(topics.AdminClient, "list_topics", lambda *_, **__: SimpleNamespace(topics={}))
    return settings.KafkaSettings(bootstrap_servers="127.0.0.1:1")


@pytest.mark.parametrize(
    "request_of",
    [
        lambda kafka: topics.ensure(kafka, ["retries"], 1, timeout_s=0.2),
        lambda kafka: topics.require_room(kafka, "retries", timeout_s=0.2),
    ],
    ids=["ensure", "require_room"],
)
def test_a_kafka_that_stalls_is_reported_as_unavailable(stalled, request_of):
    """Regression: the wait for the answer ended before the request, with the builtin TimeoutError, which no caller catches."""
    with pytest.raises(errors.KafkaUnavailable, match=r"Kafka at 127.0.0.1:1 does not answer \(_TIMED_OUT: "):
        request_of(stalled)


def test_a_start_without_kafka_says_that_the_job_did_not_start(monkeypatch):
    """Regression: the message of the start left open if the job waits for Kafka, as a running job does."""

    def list_topics(*_, **__):
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    monkeypatch.setattr(topics.AdminClient, "list_topics", list_topics)
    with pytest.raises(errors.KafkaUnavailable, match=r"does not answer .* The job did not start; only a running job waits"):
        topics.prepare(settings.Settings(kafka=settings.KafkaSettings(bootstrap_servers="127.0.0.1:1")))


@pytest.mark.parametrize("name", ["attempts", "dead-letters", "rejected-events", "retries"])
def test_a_job_that_would_read_its_own_results_does_not_start(name):
    """Regression: only `fanout doctor` reported it. The job read its results as events, of some topics without end."""
    source = settings.SourceSettings(topic_pattern=rf"events\..+|fanout\.{name}")
    message = rf"source\.topic_pattern: .* matches fanout\.{name}, to which the job writes\. .* does not start"
    with pytest.raises(errors.SettingsError, match=message):
        topics.prepare(settings.Settings(kafka=settings.KafkaSettings(bootstrap_servers="127.0.0.1:1"), source=source))


@pytest.mark.parametrize(
    ("given", "pair"),
    [
        ({"delivery": {"dead_letter_topic": "fanout.retries"}}, "delivery.dead_letter_topic and delivery.retries_topic"),
        ({"delivery": {"attempts_topic": "fanout.rejected-events"}}, "delivery.attempts_topic and delivery.rejected_topic"),
        ({"batch": {"ticks_topic": "fanout.attempts"}}, "delivery.attempts_topic and batch.ticks_topic"),
        ({"retry": {"ticks_topic": "fanout.ticks"}}, "batch.ticks_topic and retry.ticks_topic"),
    ],
)
def test_a_job_whose_own_topics_are_one_topic_does_not_start(given, pair):
    """Regression: the job started, and the retry lane read the dead letters as retry entries."""
    config = settings.Settings.model_validate({"kafka": {"bootstrap_servers": "127.0.0.1:1"}} | given)
    with pytest.raises(errors.SettingsError, match=rf"settings {re.escape(pair)}: both name topic fanout\."):
        topics.prepare(config)


def test_a_new_topic_without_partitions_in_the_metadata_is_awaited(monkeypatch):
    """Regression: such a topic counted as one whose partitions all have leaders, and was used before it had any."""
    leaders = iter([{}, {0: -1, 1: 1}, {0: 2, 1: 1}])

    def list_topics(**_):
        found = {number: SimpleNamespace(leader=leader) for number, leader in next(leaders).items()}
        return SimpleNamespace(topics={"new": SimpleNamespace(partitions=found)})

    monkeypatch.setattr(topics.time, "sleep", lambda _: None)
    topics._await_leaders(SimpleNamespace(list_topics=list_topics), {"new"}, "kafka:9092")
    assert next(leaders, None) is None


def test_topics_without_a_leader_are_named_and_no_right_is_blamed():
    """Regression: the message said that Kafka refused the request, and asked for a right."""
    unknown = SimpleNamespace(list_topics=lambda **_: SimpleNamespace(topics={}))
    with pytest.raises(
        errors.KafkaUnavailable,
        match=r"topics a, b, and they have no leader after 0 s\. Nothing was written",
    ):
        topics._await_leaders(unknown, {"b", "a"}, "kafka:9092", within_s=0)
