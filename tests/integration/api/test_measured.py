"""Metrics of the API: requests by route, long polls, connections; and the probes on the operator's port."""

import contextlib
import time

import prometheus_client
import psycopg
import pytest
from psycopg.pq import TransactionStatus

from delivery import errors
from delivery.config import settings
from fanout.local import kafka_server
from subscriptions_db.api.contract.principals import Principal, Scope
from subscriptions_db.api.server import transactions
from tests.integration.api import world
from tests.integration.api.world import Client, in_background, lease

pytestmark = pytest.mark.integration


def sample(name, **labels):
    return prometheus_client.REGISTRY.get_sample_value(name, labels) or 0.0


@contextlib.contextmanager
def counting(**labels):
    """Assert that one request with these labels is counted in the context."""
    before = sample("fanout_api_requests_total", **labels)
    yield
    assert sample("fanout_api_requests_total", **labels) == before + 1


def test_requests_are_counted_by_path_method_and_class_of_status(served, acme, other):
    path = "/v1/customers/{customer_id}"
    with counting(route=path, method="GET", status="2xx"):
        acme.get("/v1/customers/acme")
    with counting(route=path, method="GET", status="4xx"):
        other.get("/v1/customers/acme")
    took = sample("fanout_api_request_seconds_count", route=path)
    served.client("no key").get("/v1/customers/acme")
    assert sample("fanout_api_request_seconds_count", route=path) == took + 1


@pytest.mark.parametrize(("method", "path"), [("GET", "/anything-at-all"), ("PROPFIND", "/v1/endpoints"), ("DELETE", "/x")])
def test_requests_for_unknown_paths_are_counted_together(acme, method, path):
    with counting(route="none", method="none", status="4xx"):
        acme.ask(method, path)


@pytest.mark.usefixtures("emptied")
def test_a_long_poll_is_counted_while_it_waits(served, poller):
    answer = in_background(lambda: lease(poller, wait_s=20))
    deadline = time.monotonic() + 10
    while sample("fanout_api_polls_waiting") != 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    world.write(served)
    assert len(answer().json["items"]) == 1
    assert sample("fanout_api_polls_waiting") == 0


def test_a_connection_counts_as_in_use_during_a_request(served):
    with transactions.Store(served.config) as opened:
        assert sample("fanout_api_connections_in_use") == 0
        with opened.transaction(Principal("fk_1", None, Scope.OPERATOR)):
            assert sample("fanout_api_connections_in_use") == 1


def test_a_connection_is_replaced_when_its_prepared_statements_are_refused(served):
    """Regression: after a migration changed a column's type, the connection answered the same requests with 500 for ever."""
    config = served.config.model_copy(update={"api": served.config.api.model_copy(update={"max_connections": 1})})
    operator, statement = Principal("fk_1", None, Scope.OPERATOR), "select a from changed"
    with transactions.Store(config) as opened, served.registry() as other:
        other.execute("create table changed (a integer); grant select on changed to fanout_operator")
        with opened.transaction(operator) as connection:
            for _ in range(connection.prepare_threshold + 1):
                connection.execute(statement)
        other.execute("alter table changed alter column a type text")
        with pytest.raises(errors.RegistryUnavailable), opened.transaction(operator) as connection:
            connection.execute(statement)
        with opened.transaction(operator) as connection:
            assert connection.execute(statement).fetchall() == []
        other.execute("drop table changed")


@pytest.mark.parametrize(
    ("asked", "document", "most"),
    [
        ("GET /v1/endpoints/acme-orders", None, 3),
        ("GET /v1/subscriptions", None, 4),
        ("PATCH /v1/endpoints/acme-orders", {"max_in_flight": 5}, 12),
        ("POST /v1/endpoints", {"url": "https://hooks.acme.example.com/new"}, 11),
        (f"POST {world.CONSUMER_PATH}/lease", {}, 7),
    ],
)
def test_a_request_makes_few_round_trips_to_postgres(acme, monkeypatch, asked, document, most):
    """docs/adr/0020-few-round-trips.md says why each round trip counts."""
    acme.get("/v1/endpoints")  # the key is known from now on, and a connection is there
    waits = []
    wait = psycopg.Connection.wait

    def counted(connection, generator, *of, **how):
        # After a change has committed, the pool's own commit sends nothing.
        if generator.__name__ != "_commit_gen" or connection.info.transaction_status != TransactionStatus.IDLE:
            waits.append(generator)
        return wait(connection, generator, *of, **how)

    monkeypatch.setattr(psycopg.Connection, "wait", counted)
    assert acme.ask(*asked.split(), document).status in {200, 201}
    assert 3 <= len(waits) <= most


@pytest.fixture
def measured(served):
    """Serve the same API a second time, with a port for metrics and probes."""
    metrics = settings.MetricsSettings(port=kafka_server.free_port())
    with world.running(served.config.model_copy(update={"metrics": metrics})) as port:
        yield Client(port, served.keys["acme"]), Client(metrics.port, None)


def test_metrics_and_probes_have_a_port_of_their_own(served, measured):
    customers, operators = measured
    assert customers.get("/metrics").status == 404
    assert b"fanout_api_requests_total" in operators.get("/metrics").text
    assert operators.get("/readyz").json["lanes"]["api"]["ok"]
    with served.registry() as opened:
        opened.execute("alter table migrations rename to away")
        try:
            answer = operators.get("/readyz")
            assert (answer.status, operators.get("/healthz").status) == (503, 200)
            assert "fanout db migrate" in answer.json["reason"]
        finally:
            opened.execute("alter table away rename to migrations")
