"""The guard where the socket is made: aiohttp's own connector, a real server, and a resolver that says what the test wants.

127.0.0.1 plays the public address here, opened by name; 127.0.0.2 and ::1 stand for everything inside.
"""

import asyncio
import socket

import aiohttp
import pytest
import uvloop
import yarl
from aiohttp import abc, client_reqrep
from aiohttp.helpers import TimerNoop

from delivery import errors
from delivery.webhooks import guard, transport

pytestmark = pytest.mark.integration
CLOSED = guard.Guard(allow_http=True, allow_ports=())
OPEN = guard.Guard(allow_networks=("127.0.0.0/8",), allow_http=True, allow_ports=())
PUBLIC, INSIDE, INSIDE_V6 = "127.0.0.1", "127.0.0.2", "::1"
ONE_IS_PUBLIC = guard.Guard(allow_networks=(f"{PUBLIC}/32",), allow_http=True, allow_ports=())
NAME = "hooks.example.com"
REFUSING_PORT = 1


class Answers(abc.AbstractResolver):
    """Resolves every name to these addresses, in this order."""

    def __init__(self, addresses):
        self._addresses = addresses

    async def resolve(self, host, port=0, family=socket.AF_UNSPEC):  # noqa: ARG002  # the interface's
        return [
            {
                "hostname": host,
                "host": address,
                "port": port,
                "family": socket.AF_INET6 if ":" in address else socket.AF_INET,
                "proto": socket.IPPROTO_TCP,
                "flags": socket.AI_NUMERICHOST,
            }
            for address in self._addresses
        ]

    async def close(self):
        pass


def connect(host, address_guard, answers=(), port=None, loop_factory=asyncio.new_event_loop):
    """Connect as the transport does; return (address reached or error, addresses that got a socket, connections accepted)."""
    accepted, sockets = [], []

    async def serve(_, writer):
        accepted.append(writer)
        writer.close()

    def make_socket(addr_info):
        made = address_guard.socket_factory(addr_info)
        sockets.append(addr_info[4][0])
        return made

    async def main():
        server = await asyncio.start_server(serve, PUBLIC, 0)
        url = yarl.URL(f"http://{host}:{port or server.sockets[0].getsockname()[1]}/")
        connector = aiohttp.TCPConnector(resolver=Answers(answers), socket_factory=make_socket)
        async with server, aiohttp.ClientSession(connector=connector) as session:
            request = client_reqrep.ClientRequest(
                "POST", url, session=session, loop=asyncio.get_running_loop(), timer=TimerNoop(), ssl=True
            )
            try:
                connection = await connector.connect(request, [], aiohttp.ClientTimeout(total=None))
            except aiohttp.ClientConnectorError as exc:
                return exc
            reached = connection.transport.get_extra_info("peername")[0]
            connection.close()
            return reached

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        result = runner.run(main())
    return result, sockets, len(accepted)


def assert_blocked(outcome):
    error, sockets, accepted = outcome
    assert isinstance(error, aiohttp.ClientConnectorError)
    assert isinstance(error.os_error, guard.BlockedSocket)
    assert isinstance(transport.translated(error), errors.AddressBlocked)
    assert (sockets, accepted) == ([], 0)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "①②⑦.⓪.⓪.①", "１２７.0.0.1"])
def test_a_literal_address_is_blocked_though_no_resolver_is_asked(host):
    assert_blocked(connect(host, CLOSED))


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize(
    "answers",
    [
        pytest.param(["127.0.0.1"], id="one"),
        pytest.param(["127.0.0.1", "127.0.0.2", "10.0.0.1"], id="several"),
        pytest.param(["::1", "127.0.0.1"], id="both families"),
        pytest.param(["::ffff:127.0.0.1"], id="mapped"),
        pytest.param(["fe80::1%1"], id="zone"),
    ],
)
def test_a_name_that_leads_inside_by_the_time_of_the_connection_is_blocked(answers, loop_factory):
    """DNS rebinding: nothing was wrong with the URL."""
    CLOSED.check_url(f"http://{NAME}/")
    assert_blocked(connect(NAME, CLOSED, answers, loop_factory=loop_factory))


@pytest.mark.parametrize(("host", "answers"), [("127.0.0.1", []), (NAME, ["127.0.0.1"])])
def test_an_opened_network_is_let_through(host, answers):
    assert connect(host, OPEN, answers)[:2] == ("127.0.0.1", ["127.0.0.1"])


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize(
    "answers",
    [
        [PUBLIC, INSIDE],
        [INSIDE, PUBLIC],
        [INSIDE, "127.0.0.3", PUBLIC],
        [INSIDE_V6, PUBLIC],
        [PUBLIC, INSIDE_V6],
        [INSIDE_V6, INSIDE, PUBLIC],
    ],
    ids=", ".join,
)
def test_of_a_mixed_answer_only_what_is_public_is_used(answers, loop_factory):
    assert connect(NAME, ONE_IS_PUBLIC, answers, loop_factory=loop_factory)[:2] == (PUBLIC, [PUBLIC])


@pytest.mark.parametrize(
    ("answers", "kind", "failure"),
    [
        # aiohttp tries all addresses, then again without the first of each family, and so on; it tells the last round's error.
        pytest.param(
            [INSIDE, PUBLIC], ConnectionRefusedError, errors.ConnectFailed, id="the public one alone in the last round"
        ),
        pytest.param([PUBLIC, INSIDE], guard.BlockedSocket, errors.AddressBlocked, id="the inner one alone in the last round"),
        pytest.param([PUBLIC, INSIDE_V6], OSError, errors.ConnectFailed, id="one round with both, merged"),
    ],
)
def test_a_mixed_answer_whose_public_address_refuses_fails_by_its_order(answers, kind, failure):
    error, sockets, _ = connect(NAME, ONE_IS_PUBLIC, answers, port=REFUSING_PORT)
    assert type(error.os_error) is kind
    assert type(transport.translated(error)) is failure
    assert set(sockets) == {PUBLIC}


def test_the_socket_neither_blocks_nor_waits_to_fill_a_packet():
    with OPEN.socket_factory((socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 80))) as made:
        assert not made.getblocking()
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
