"""A test event is sent like every delivery, and the answer shows the result of its attempt."""

import contextlib
import socket
import time

import orjson
import pytest

from delivery.config import settings
from fanout.local import receiver
from subscriptions_db.api.contract import problems
from tests.integration.api import world

pytestmark = pytest.mark.integration
OPEN = settings.DeliverySettings(allow_networks=("127.0.0.0/8",), allow_http=True, allow_ports=(), attempt_timeout_s=0.5)
CLOSED = settings.DeliverySettings(allow_http=True, allow_ports=())


@pytest.fixture(scope="module")
def served(postgres):
    with world.served(postgres, delivery=OPEN) as made:
        yield made


@pytest.fixture
def received():
    return []


@pytest.fixture
def listening(received):
    secrets = []
    with receiver.Receiver(
        secrets_of=lambda _: secrets, on_received=received.append, answer=lambda path: 503 if "broken" in path else 200, port=0
    ) as server:
        server.secrets = secrets
        yield server


def made(acme, **fields):
    answer = acme.post("/v1/endpoints", fields)
    assert answer.status == 201, answer.text
    return answer.json


@pytest.mark.parametrize("mode", ["direct", "batch"])
def test_a_test_event_is_signed_and_arrives(acme, served, listening, received, mode):
    endpoint = made(acme, url=f"{listening.url}/hook", mode=mode)
    listening.secrets.append(endpoint["signing_secret"])
    answer = acme.post(f"/v1/endpoints/{endpoint['id']}/test", {"type": "order.created", "data": {"amount": 5}})
    assert answer.status == 200
    result = answer.json
    assert (result["is_delivered"], result["status"], result["error_class"]) == (True, 200, None)
    [request] = received
    assert (request.webhook_id, request.is_verified) == (result["webhook_id"], True)
    body = orjson.loads(request.body)
    event = body[0] if mode == "batch" else body
    assert (event["type"], event["tenant_id"], event["data"]) == ("order.created", "fanout-test", {"amount": 5})
    assert [entry["action"] for entry in served.audit(endpoint["id"])] == ["create", "test"]


def test_a_test_event_has_the_first_example_of_its_type(acme, listening, received):
    for body in ({"type": "order.created"}, {"type": "order.created", "data": None}):
        endpoint = made(acme, url=f"{listening.url}/hook")
        acme.post(f"/v1/endpoints/{endpoint['id']}/test", body)
    assert [orjson.loads(request.body)["data"] for request in received] == [{"amount": 20}, None]


def nested(levels):
    """Return a payload of lists within lists."""
    payload = 1
    for _ in range(levels):
        payload = [payload]
    return payload


@pytest.mark.parametrize(("levels", "status"), [(250, 200), (300, 422)])
def test_a_payload_that_is_nested_too_deeply_is_refused_by_its_field(acme, listening, levels, status):
    """Regression: the answer was 500, because orjson decodes more levels than it encodes."""
    endpoint = made(acme, url=f"{listening.url}/hook")
    event = {"type": "order.created", "tenant_id": "t1", "data": nested(levels)}
    explained = acme.post(f"/v1/endpoints/{endpoint['id']}/explain", {"event": event})
    tested = acme.post(f"/v1/endpoints/{endpoint['id']}/test", {"data": nested(levels)})
    assert (explained.status, tested.status) == (status, status)
    if status == 422:
        wrong = [answer.json["errors"][0] for answer in (explained, tested)]
        assert [error["field"] for error in wrong] == ["event.data", "data"]
        assert all("nested too deeply" in error["problem"] for error in wrong)


def test_the_response_of_the_endpoint_is_shown(acme, listening):
    endpoint = made(acme, url=f"{listening.url}/broken")
    result = acme.post(f"/v1/endpoints/{endpoint['id']}/test", {}).json
    assert (result["is_delivered"], result["status"], result["error_class"]) == (False, 503, "unavailable")


def test_a_test_event_has_the_timeout_of_a_delivery(acme):
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as hanging:
        endpoint = made(acme, url=f"http://127.0.0.1:{hanging.getsockname()[1]}/")
        began = time.monotonic()
        result = acme.post(f"/v1/endpoints/{endpoint['id']}/test", {}).json
    assert result["error_class"] == "timeout"
    assert time.monotonic() - began < 5


def test_an_endpoint_gets_one_test_event_a_second(acme, listening, received):
    endpoint = made(acme, url=f"{listening.url}/hook")
    answers = [acme.post(f"/v1/endpoints/{endpoint['id']}/test", {}) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 429, 429]
    assert answers[1].headers["retry-after"] == "1"
    assert len(received) == 1


def test_one_customer_cannot_occupy_all_test_events(served, listening, received):
    """Regression: endpoints of one customer that did not answer kept the test events of all others out, with 503."""
    with (
        contextlib.closing(socket.create_server(("127.0.0.1", 0))) as hanging,
        world.beside(served, test_events_at_once=2) as limited,
    ):
        acme, other = (limited.client(served.keys[name]) for name in ("acme", "other"))
        silent = [made(acme, url=f"http://127.0.0.1:{hanging.getsockname()[1]}/")["id"] for _ in range(2)]
        theirs = made(other, url=f"{listening.url}/hook")["id"]
        first = world.in_background(lambda: acme.post(f"/v1/endpoints/{silent[0]}/test", {}))
        with contextlib.closing(hanging.accept()[0]):
            second, of_other = acme.post(f"/v1/endpoints/{silent[1]}/test", {}), other.post(f"/v1/endpoints/{theirs}/test", {})
            assert first().json["error_class"] == "timeout"
    assert (second.status, of_other.status, len(received)) == (429, 200, 1)
    assert second.headers["retry-after"] == str(problems.RETRY_AFTER_S)


@pytest.mark.parametrize(("bounds", "status"), [({"test_events_per_s": 0.01}, 429), ({"test_events_at_once": 0}, 503)])
def test_a_refused_test_event_leaves_no_audit_entry(served, listening, received, bounds, status):
    """Regression: the audit log had an entry `test` for each request that got 429 or 503, although nothing was sent."""
    with world.beside(served, **bounds) as limited:
        clients = [server.client(served.keys["acme"]) for server in (limited if status == 429 else served, limited)]
        endpoint = made(clients[0], url=f"{listening.url}/hook")
        first, answer = (client.post(f"/v1/endpoints/{endpoint['id']}/test", {}) for client in clients)
    assert first.status == 200
    assert (answer.status, "nothing was sent" in answer.json["detail"]) == (status, True)
    actions = [entry["action"] for entry in served.audit(endpoint["id"])]
    assert (actions, len(received)) == (["create", "test"], 1)


def test_a_test_event_is_guarded_like_a_delivery(acme, served, listening, received):
    endpoint = made(acme, url=f"{listening.url}/hook")
    with world.running(served.config.model_copy(update={"delivery": CLOSED})) as port:
        answer = world.Client(port, served.keys["acme"]).post(f"/v1/endpoints/{endpoint['id']}/test", {})
    assert answer.status == 409
    assert answer.json["detail"] == (
        "the endpoint cannot be used (url: the address is not allowed: an endpoint is a public https address), and nothing was "
        "sent: correct the endpoint, or ask the operator"
    )
    assert received == []


@pytest.fixture
def lead(monkeypatch):
    """Make a host name resolve to an address; other names resolve as before."""
    leads = {}
    ask = socket.getaddrinfo

    def resolve(host, *others, **named):
        # Without flags: asked for what this machine can reach, it would leave out ::1 where there is no IPv6.
        return ask(leads[host], *others, **named | {"flags": 0}) if host in leads else ask(host, *others, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return leads.__setitem__


def connections(listening):
    """Return the number of connections to a listening socket."""
    listening.setblocking(False)
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            listening.accept()[0].close()
            count += 1
    return count


def test_a_name_of_an_internal_address_is_refused_on_connect(acme, served, lead):
    """The URL is valid, so only the guard at the connection keeps the request from the listening socket."""
    results = set()
    closed = served.config.model_copy(update={"delivery": CLOSED})
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as inside, world.running(closed) as closed_port:
        guarded = world.Client(closed_port, served.keys["acme"])
        url = f"http://%s.example.com:{inside.getsockname()[1]}/"
        # Where somebody listens; where nobody does; the other family; a metadata service; a private network.
        for number, address in enumerate(["127.0.0.1", "127.0.0.2", "::1", "169.254.169.254", "10.0.0.1"]):
            lead(f"hooks-{number}.example.com", address)
            answer = guarded.post(f"/v1/endpoints/{made(acme, url=url % f'hooks-{number}')['id']}/test", {})
            assert answer.status == 200
            results.add(tuple(value for name, value in answer.json.items() if name not in {"webhook_id", "duration_ms"}))
        assert connections(inside) == 0
        # Where that network is open, such a name does lead to the listener.
        lead("opened.example.com", "127.0.0.1")
        assert acme.post(f"/v1/endpoints/{made(acme, url=url % 'opened')['id']}/test", {}).json["error_class"] == "timeout"
        assert connections(inside) == 1
    assert results == {(False, None, "dns", "the host name leads to no address that is allowed", "")}
