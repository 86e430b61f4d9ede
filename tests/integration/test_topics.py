"""The job's topics are there, and take what it writes, before anything is consumed."""

import socket
import uuid

import pytest
from confluent_kafka.admin import AdminClient

from delivery import errors
from delivery.config import kafka_clients, settings
from delivery.stages.kafka import topics
from fanout.admin import diagnosis

pytestmark = pytest.mark.integration


@pytest.fixture
def config(kafka):
    name = uuid.uuid4().hex[:8]
    names = {f"{role}_topic": f"{role}-{name}" for role in ("attempts", "dead_letter", "rejected", "retries")}
    connection = settings.KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)
    return settings.Settings(kafka=connection, delivery=settings.DeliverySettings(**names))


def doctor(config):
    [finding] = diagnosis._findings(config, {"topics": diagnosis._topics})
    return finding


def test_the_topics_are_made_as_they_have_to_be(config):
    assert doctor(config).is_fine  # what is missing will be made
    topics.ensure_all(config)
    topics.ensure_all(config)
    known = AdminClient(kafka_clients.for_librdkafka(config.kafka)).list_topics(timeout=30).topics
    assert set(topics.of_results(config.delivery)) <= set(known)
    assert doctor(config).is_fine


def test_a_retries_topic_with_too_little_room_is_refused_at_the_start(config):
    """Somebody had made it with Kafka's default of 1 MiB; the first batch of 1 MiB that failed was sent again and again."""
    name = config.delivery.retries_topic
    topics.ensure(config.kafka, [name], 1)
    fix = f"--alter --entity-type topics --entity-name {name} --add-config max.message.bytes=16777216"
    with pytest.raises(errors.SettingsError, match=fix):
        topics.ensure_all(config)
    finding = doctor(config)
    assert (finding.is_fine, fix in finding.text) == (False, True)


def test_a_login_that_may_not_see_the_topic_s_options_gets_a_warning(config, monkeypatch, caplog):
    topics.ensure_all(config)
    refused = topics.KafkaException(topics.KafkaError(topics.KafkaError.TOPIC_AUTHORIZATION_FAILED))

    def describe_configs(*_, **__):
        raise refused

    monkeypatch.setattr(topics.AdminClient, "describe_configs", describe_configs)
    topics.require_room(config.kafka, config.delivery.retries_topic)
    assert "DescribeConfigs" in caplog.text


def test_a_kafka_that_does_not_answer_is_named_by_its_address():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        away = settings.KafkaSettings(bootstrap_servers=address)
        with pytest.raises(errors.KafkaUnavailable, match=f"Kafka at {address} does not answer"):
            topics.ensure(away, ["retries"], 1, timeout_s=1)
