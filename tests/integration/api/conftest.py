"""The API, served on a real socket over a real Postgres: one server for each test file."""

import pytest

from tests.integration.api import world


@pytest.fixture(scope="module")
def served(postgres):
    """The API over a registry of two customers, each with an endpoint and a subscription."""
    with world.served(postgres) as made:
        yield made


@pytest.fixture(scope="module")
def acme(served):
    return served.client(served.keys["acme"])


@pytest.fixture(scope="module")
def other(served):
    return served.client(served.keys["other"])


@pytest.fixture(scope="module")
def operator(served):
    return served.client(served.keys["operator"])


@pytest.fixture(scope="module")
def poller(served):
    return served.client(served.keys["poller"])


@pytest.fixture
def emptied(served):
    """Begin with no letter, and a consumer that has seen none."""
    with served.registry() as opened:
        opened.execute("delete from dead_letters")
        opened.execute("delete from dead_letter_leases")
        opened.execute("delete from dead_letter_consumers where name <> 'billing'")
        opened.execute("update dead_letter_consumers set read_until = 0")
