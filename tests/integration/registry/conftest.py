"""Fixtures: a registry with its schema, and a second connection that changes it meanwhile."""

import concurrent.futures

import pytest

from delivery.config import settings
from subscriptions_db.postgres import connect
from subscriptions_db.secrets import keyring


@pytest.fixture
def ring_key():
    return keyring.generate()


@pytest.fixture
def ring(ring_key):
    return keyring.KeyRing.from_settings(settings.KeysSettings(ring={"k1": ring_key}))


@pytest.fixture
def connection(database):
    with connect.connect(settings.DatabaseSettings(url=database)) as opened:
        yield opened


@pytest.fixture
def other(database):
    """Yield a second connection to the registry, for plain SQL."""
    with connect.connect(settings.DatabaseSettings(url=database)) as opened:
        yield opened


@pytest.fixture
def in_background():
    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as executor:
        yield executor.submit
