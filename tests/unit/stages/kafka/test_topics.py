"""The message after a request to Kafka has failed, by who failed it. With a real Kafka: tests/integration/test_topics.py."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from delivery.config import settings
from delivery.stages.kafka import topics


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (KafkaError._TRANSPORT, "Kafka at k:1 does not answer (_TRANSPORT): start it, or correct the settings of [kafka]"),
        (KafkaError._TIMED_OUT, "Kafka at k:1 does not answer (_TIMED_OUT): start it, or correct the settings of [kafka]"),
        (
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            "Kafka at k:1 refuses a request (Broker: Topic authorization failed): if the text names a right, grant it",
        ),
    ],
)
def test_a_refusal_is_not_taken_for_an_absence(code, message):
    """A login without a right was told that Kafka does not answer."""
    exc = topics.unavailable(settings.Kafka(bootstrap_servers="k:1"), KafkaException(KafkaError(code)))
    assert str(exc).startswith(message)
