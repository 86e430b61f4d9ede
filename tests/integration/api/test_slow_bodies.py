"""Clients that send their bodies slowly, or read no answers, block neither other customers nor the liveness probe."""

import contextlib
import queue
import selectors
import socket
import threading

import pytest

from delivery.config import settings
from subscriptions_db import server_bounds
from subscriptions_db.api.server import answer_sender, app, transactions
from tests.integration.api import world
from tests.support.waiting import assert_becomes

pytestmark = pytest.mark.integration

LEASE, PUT, PUBLISH = f"POST {world.CONSUMER_PATH}/lease", "PUT /v1/event-types/a.b", "POST /v1/events?topic=orders"
KEYS = [("poller", LEASE), ("operator", PUT), ("publisher", PUBLISH)]
NEW = {"url": "https://hooks.acme.example.com/"}


@pytest.fixture(scope="module")
def served(postgres):
    """Serve the API with room for four requests in flight, two of them of one customer or key."""
    source = settings.SourceSettings(topic_prefix="none.", topic_pattern="none.+")
    with world.served(postgres, source=source, max_waiting=4) as made:
        yield made


@contextlib.contextmanager
def slow(served, key, request=LEASE, announced="content-length: 2"):
    """Yield a connection on which a request has begun whose body does not arrive. The server waits for the body.

    The key is in the cache of the API, so nothing delays the request between `100 Continue` and the wait for its body.
    """
    assert served.client(served.keys[key]).get("/v1/endpoints").status in {200, 403}
    head = f"{request} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nexpect: 100-continue\r\n"
    head += f"authorization: Bearer {served.keys[key]}\r\nx-request-id: slow\r\n{announced}\r\n\r\n"
    with contextlib.closing(socket.create_connection(("127.0.0.1", served.port), timeout=20)) as client:
        client.sendall(head.encode())
        assert client.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        yield client


@pytest.mark.parametrize(("key", "request_line"), KEYS)
def test_slow_bodies_of_one_key_do_not_lock_out_others(served, key, request_line):
    """Regression: bodies that did not arrive occupied all requests in flight, and every other request got 503."""
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as waiting:
        for _ in range(4):
            waiting.register(stack.enter_context(slow(served, key, request_line)), selectors.EVENT_READ)
        answered = []
        while len(answered) < 2:
            ready = [found.fileobj for found, _ in waiting.select(20)]
            assert ready, "the server waits for more than two bodies"
            for client in ready:
                waiting.unregister(client)
                answered.append(client.recv(12))
        assert answered == [b"HTTP/1.1 429"] * 2
        assert served.client(served.keys["other"]).get("/v1/endpoints").status == 200


def test_publishing_requests_of_all_keys_leave_places_to_other_requests(served):
    """Regression: with Kafka away, two keys that published filled all places, and customers could not poll."""
    publishing = "POST /v1/events?topic=orders"
    with contextlib.ExitStack() as stack:
        for key in ("publisher", "publisher", "publisher of t1"):
            stack.enter_context(slow(served, key, publishing))
        answer = served.client(served.keys["publisher of t1"]).post("/v1/events?topic=orders", [])
        assert (answer.status, "publishing requests" in answer.json["detail"]) == (503, True)
        assert served.client(served.keys["acme"]).get("/v1/endpoints").status == 200


def test_slow_bodies_of_a_customer_leave_places_when_they_end(served):
    acme = served.client(served.keys["acme"])
    with slow(served, "poller") as first, slow(served, "poller"):
        assert acme.post("/v1/endpoints", NEW).status == 429
        first.sendall(b"{}")
        assert first.recv(12) == b"HTTP/1.1 200"
        assert acme.post("/v1/endpoints", NEW).status == 201


def test_health_is_answered_however_many_requests_are_in_flight(served):
    """Regression: Kubernetes restarted every process of the API while Postgres stalled and requests waited."""
    with contextlib.ExitStack() as stack:
        for key, request_line in KEYS[:2] * 2:
            stack.enter_context(slow(served, key, request_line))
        assert served.client(served.keys["other"]).get("/v1/endpoints").status == 503
        assert served.client(None).get("/healthz").status == 200


def test_an_announced_body_counts_in_the_rate_before_it_arrives(postgres):
    """Regression: one key could begin many requests with large bodies at once, as only whole bodies counted."""
    announced = "content-length: 400000"
    with world.served(postgres, max_requests_per_s=20) as served, slow(served, "poller", announced=announced):
        refused = served.client(served.keys["poller"]).get("/v1/dead-letters/count")
        assert (refused.status, "4096 bytes of a body count as one" in refused.json["detail"]) == (429, True)


@pytest.fixture
def answered(monkeypatch):
    """Return a queue of the log lines about answers and failures of the request `slow`: their events and their statuses."""
    lines = queue.Queue()

    def note(event, extra):
        if extra["request_id"] == "slow":
            lines.put((event, extra.get("status")))

    monkeypatch.setattr(app.log, "info", note)
    monkeypatch.setattr(app.log, "exception", note)
    return lines


@pytest.mark.parametrize("announced", ["content-length: 2", "transfer-encoding: chunked"])
@pytest.mark.parametrize(("key", "request_line"), KEYS)
def test_a_client_that_hangs_up_is_no_failure(served, answered, key, request_line, announced):
    """Regression: it was logged as `api.failed`, with a traceback and the advice to send this to the maintainers."""
    with slow(served, key, request_line, announced):
        pass
    assert answered.get(timeout=20) == ("api.answered", 400)


@pytest.mark.parametrize(("key", "request_line"), KEYS)
def test_a_body_that_cannot_be_decompressed_is_refused(served, key, request_line):
    """Regression: the answer was 500."""
    method, path = request_line.split()
    answer = served.client(served.keys[key]).ask(method, path, raw=b"{}", content_encoding="gzip")
    assert (answer.status, "Content-Encoding" in answer.json["detail"]) == (400, True)


def test_clients_that_read_no_answer_do_not_keep_others_out(served, monkeypatch):
    """Regression: unread answers were in flight for a minute, and all others got 503. Nobody needs a key for the document."""
    cut_off = queue.Queue()
    monkeypatch.setattr(answer_sender.log, "info", lambda _, extra: cut_off.put(extra["after_s"]))
    with contextlib.ExitStack() as unread:
        for _ in range(served.config.api.max_waiting + 2):
            client = unread.enter_context(contextlib.closing(socket.create_connection(("127.0.0.1", served.port))))
            client.sendall(b"GET /v1/openapi.json HTTP/1.1\r\nhost: x\r\n\r\n" * 500)
        assert max(cut_off.get(timeout=20) for _ in range(2)) < server_bounds.DEFAULT.sending_s
        assert served.client(None).get("/readyz").status == 200
        assert served.client(served.keys["acme"]).get("/v1/endpoints/acme-orders").status == 200


def test_readiness_probes_do_not_keep_customers_out(served, monkeypatch):
    """Regression: each probe, which needs no key, occupied a thread. So a flood of probes kept customers out, with 503."""
    began, may_end = threading.Event(), threading.Event()

    def require_ready(_):
        began.set()
        may_end.wait(10)

    monkeypatch.setattr(transactions.Store, "require_ready", require_ready)
    with contextlib.ExitStack() as probing:
        probing.callback(may_end.set)
        for _ in range(2 * served.config.api.max_connections):  # the last ones get 503 at once
            client = probing.enter_context(contextlib.closing(socket.create_connection(("127.0.0.1", served.port))))
            client.sendall(b"GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert began.wait(10)
        assert served.client(served.keys["acme"]).get("/v1/endpoints/acme-orders").status == 200
    assert_becomes(lambda: served.client(None).get("/readyz").status, 200)  # the probes end on the server a moment later
