"""Fixtures that integration tests of several files share."""

import pytest

from delivery.config import settings


@pytest.fixture
def connection(kafka):
    """Return the settings of a client of the tests' Kafka broker."""
    return settings.KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)
