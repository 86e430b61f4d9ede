"""A refusal does not tell what is inside, neither by its words nor by its time: nobody is asked there.

Python itself tells of each socket that is made, connected or looked up for (audit events), and the kernel of what came to the
listener. 127.0.0.1 stands for what is inside.
"""

import asyncio
import contextlib
import functools
import socket
import sys

import pytest
import uvloop

from delivery import errors
from delivery.config import settings
from delivery.webhooks.http import guard, transport
from tests.integration import serving
from tests.integration.api import world
from tests.support import addresses

pytestmark = pytest.mark.integration
CLOSED = guard.Guard(allow_http=True, allow_ports=())
INSIDE = "127.0.0.1"
NAME = "hooks.example.com"
LOOPS = pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])

_watching = []
"""One list of socket events for each open `watched`. The audit hook stays for the life of the process."""


@functools.cache
def hook():
    def record(event, arguments):
        if _watching and event.startswith("socket."):
            _watching[-1].append((event, arguments))

    sys.addaudithook(record)


@contextlib.contextmanager
def watched():
    """Yield what is done with sockets meanwhile, as (event, arguments)."""
    hook()
    _watching.append([])
    try:
        yield _watching[-1]
    finally:
        _watching.pop()


class Places:
    """Three ports of 127.0.0.1: a listener, nobody, and one where a connection would hang."""

    def __init__(self, opened):
        self._listener = opened.enter_context(socket.create_server((INSIDE, 0)))
        nobody = opened.enter_context(socket.socket())
        nobody.bind((INSIDE, 0))  # without listening: the port stays ours, and refuses
        full = opened.enter_context(socket.create_server((INSIDE, 0), backlog=0))
        opened.enter_context(socket.create_connection(full.getsockname()))  # the only place in its queue
        self.ports = [listener.getsockname()[1] for listener in (self._listener, nobody, full)]

    def came(self):
        """Return the number of connections to the listener. The kernel completes them without an accept."""
        self._listener.setblocking(False)
        count = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                self._listener.accept()[0].close()
                count += 1
        return count


@pytest.fixture
def places():
    with contextlib.ExitStack() as opened:
        yield Places(opened)


async def attempt(using, url):
    """Return what an attempt ends with: the error, with its text."""
    with pytest.raises(errors.AttemptFailed) as failed:
        await using.post(serving.to(url), serving.HEADERS, b"", 1.0)
    return type(failed.value), str(failed.value)


def attempts(address_guard, urls, loop_factory):
    """Return for each URL how the attempt ended, and what was done with sockets."""

    async def main():
        using, ended = transport.Transport(address_guard), []
        for url in urls:
            with watched() as seen:
                ended.append((await attempt(using, url), list(seen)))
        await using.close()
        return ended

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(main())


@LOOPS
def test_without_the_guard_the_three_answers_differ_and_each_connection_is_seen(places, loop_factory):
    """The control: the other tests are of nothing but for this."""
    ended = attempts(serving.OPEN, [f"http://{INSIDE}:{port}/" for port in places.ports], loop_factory)
    assert [said for said, _ in ended] == [
        (errors.AttemptTimedOut, "the attempt's time ran out while waiting for the answer"),
        (errors.ConnectFailed, "Connection refused"),
        (errors.AttemptTimedOut, "the attempt's time ran out while connecting"),
    ]
    connected = [arguments[1] for _, seen in ended for event, arguments in seen if event == "socket.connect"]
    assert connected == [(INSIDE, port) for port in places.ports]
    assert places.came() == 1


@LOOPS
@pytest.mark.parametrize(
    ("host", "asked"),
    [(INSIDE, []), ("[::ffff:127.0.0.1]", []), ("localhost", ["socket.getaddrinfo"])],
    ids=["address", "mapped", "name"],
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_refused_attempt_makes_no_socket_whatever_is_there(places, scheme, host, asked, loop_factory):
    ended = attempts(CLOSED, [f"{scheme}://{host}:{port}/" for port in places.ports], loop_factory)
    assert [(said, [event for event, _ in seen]) for said, seen in ended] == [
        ((errors.AddressBlocked, "the host name leads to no address that is allowed"), asked)
    ] * 3
    assert places.came() == 0


def test_no_form_of_an_address_or_name_makes_registering_look_anything_up():
    with watched() as seen:
        for host in [*addresses.INSIDE, *addresses.NAMES]:
            with pytest.raises(errors.TargetRefused):
                CLOSED.check_url(addresses.url_of(host))
    assert seen == []


VALIDATION = {"test": "none", "validate": "cloudevents"}
NO_ADDRESS = "the host name leads to no address that is allowed"
SAID = {"test": NO_ADDRESS, "validate": f"no answer (dns): {NO_ADDRESS}"}


@pytest.fixture(scope="module")
def served(postgres):
    closed = settings.DeliverySettings(
        allow_http=True, allow_ports=(), webhook_origin="fanout.example.com", attempt_timeout_s=1.0
    )
    with world.served(postgres, delivery=closed) as made:
        yield made


def shown(answer):
    """Return the answer to a customer, without the fields that differ each time."""
    return answer.status, {name: value for name, value in answer.json.items() if name not in {"webhook_id", "duration_ms"}}


def connected(seen, ports):
    return [arguments for event, arguments in seen if event == "socket.connect" and arguments[1][1] in ports]


def test_registering_over_http_tells_and_asks_the_same_whatever_is_there(places, served):
    acme = served.client(served.keys["acme"])
    with watched() as seen:
        answers = [shown(acme.post("/v1/endpoints", {"url": f"http://{INSIDE}:{port}/"})) for port in places.ports]
    assert answers == answers[:1] * 3
    status, document = answers[0]
    assert (status, [error["field"] for error in document["errors"]]) == (422, ["url"])
    assert (connected(seen, places.ports), places.came()) == ([], 0)


@pytest.mark.parametrize("action", VALIDATION)
def test_a_test_event_and_a_question_tell_and_ask_the_same_whatever_is_there(places, served, monkeypatch, action):
    """By a name, which nothing is wrong with until it leads inside."""

    def resolve(host, port, *arguments, **options):
        return looked_up(INSIDE if host == NAME else host, port, *arguments, **options)

    looked_up = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    acme = served.client(served.keys["acme"])
    documents = [{"url": f"http://{NAME}:{port}/", "validation": VALIDATION[action]} for port in places.ports]
    endpoints = [acme.post("/v1/endpoints", document).json["id"] for document in documents]
    with watched() as seen:
        answers = [shown(acme.post(f"/v1/endpoints/{endpoint}/{action}", {})) for endpoint in endpoints]
    assert answers == answers[:1] * 3
    status, document = answers[0]
    assert (status, document.get("detail") or document["reason"]) == (200, SAID[action])
    assert sum(event == "socket.getaddrinfo" and arguments[1] in places.ports for event, arguments in seen) == len(places.ports)
    assert (connected(seen, places.ports), places.came()) == ([], 0)


@pytest.mark.parametrize("action", VALIDATION)
def test_a_name_that_leads_inside_and_an_unknown_name_get_the_same_answer(served, monkeypatch, action):
    """Regression: `dns` against `address_blocked` showed a customer which internal names exist."""

    def resolve(host, port, *arguments, **options):
        if host == f"not.{NAME}":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return looked_up(INSIDE if host == NAME else host, port, *arguments, **options)

    looked_up = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    acme = served.client(served.keys["acme"])
    documents = [{"url": f"http://{name}/", "validation": VALIDATION[action]} for name in (NAME, f"not.{NAME}")]
    endpoints = [acme.post("/v1/endpoints", document).json["id"] for document in documents]
    inside, nowhere = [shown(acme.post(f"/v1/endpoints/{endpoint}/{action}", {})) for endpoint in endpoints]
    assert inside == nowhere
