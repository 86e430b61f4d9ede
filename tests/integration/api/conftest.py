"""The API, served on a real socket over a real Postgres: one server for each test file."""

import pytest

from tests.integration.api import world


@pytest.fixture(scope="module")
def served(postgres):
    """Serve the API over a registry of two customers, each with an endpoint and a subscription."""
    with world.served(postgres) as made:
        yield made


def client_of(name):
    """Return a fixture: a client with the API key of this name."""

    @pytest.fixture(scope="module", name=name)
    def client(served):
        return served.client(served.keys[name])

    return client


acme, other, operator, poller = map(client_of, ("acme", "other", "operator", "poller"))


@pytest.fixture
def emptied(served):
    """Begin a test without dead letters, and with a consumer at the beginning."""
    with served.registry() as opened:
        opened.execute("delete from dead_letters")
        opened.execute("delete from dead_letter_leases")
        opened.execute("delete from dead_letter_consumers where name <> 'billing'")
        opened.execute("update dead_letter_consumers set read_until = 0")
