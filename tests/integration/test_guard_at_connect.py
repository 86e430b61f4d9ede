"""The guard where the socket is made: aiohttp's own connector, a real server, and a resolver that says what the test wants.

127.0.0.1 plays the public address here, opened by name; 127.0.0.2 and ::1 stand for everything inside.
"""

import asyncio
import contextlib
import errno
import os
import socket

import aiohttp
import pytest
import uvloop
import yarl
from aiohttp import abc, client_reqrep
from aiohttp.helpers import TimerNoop

from delivery import errors
from delivery.registry_model import Auth, AuthKind
from delivery.secret import Secret
from delivery.webhooks.http import connection_pool, guard, origin, transport
from delivery.webhooks.sending import request
from tests.integration.serving import OPEN
from tests.support import addresses, builders

pytestmark = pytest.mark.integration
CLOSED = guard.Guard(allow_http=True, allow_ports=())
PUBLIC, INSIDE, INSIDE_V6 = "127.0.0.1", "127.0.0.2", "::1"
ONE_IS_PUBLIC = guard.Guard(allow_networks=(f"{PUBLIC}/32",), allow_http=True, allow_ports=())
NAME = "hooks.example.com"
REFUSING_PORT = 1
HEAD = b"POST / HTTP/1.1\r\nhost: hooks.example.com\r\n"
BODY = b"POST / HTTP/1.1\r\nhost: smuggled\r\n\r\n"
FRAMING = {b"content-length", b"transfer-encoding", b"trailer", b"te", b"expect", b"connection", b"upgrade"}


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


class Listener:
    """A server that keeps what it is asked, as (head, body) in raw bytes, and always gives `answer`."""

    def __init__(self, host, port=0):
        self._host, self.port = host, port
        self.requests, self._writers = [], []
        self.answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, self._host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader, writer):
        self._writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.requests.append((head, await reader.readexactly(len(BODY))))
                writer.write(self.answer)
        writer.close()


@contextlib.asynccontextmanager
async def network(address_guard, **options):
    using = transport.Transport(address_guard, **options)
    try:
        yield using
    finally:
        await using.close()


async def post(using, url, auth=None):
    endpoint = builders.endpoint(url=url, auth=auth or Auth())
    return await using.post(request.prepare(endpoint, OPEN), b"webhook-id: msg_1\r\n", BODY, 5.0)


def run(main, loop_factory=asyncio.new_event_loop):
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(main())


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


@pytest.mark.parametrize("address", addresses.INSIDE)
def test_every_address_that_leads_inside_is_blocked_where_a_name_leads_there(address):
    assert_blocked(connect(NAME, CLOSED, [address]))


class TestTransport:
    """The transport itself, against servers that count who comes: one that the guard lets through, one inside."""

    @pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
    @pytest.mark.parametrize(
        "host", ["127.1", "0", "0x7f.1", "0177.0.0.1", "2130706433", "0x7f000001", "127.0.0.1.", "localhost", "localhost."]
    )
    def test_no_spelling_that_the_systems_resolver_takes_for_loopback_gets_there(self, host, loop_factory):
        """Past the check of the URL, as if it were not there."""

        async def main():
            async with Listener(PUBLIC) as inside, network(CLOSED) as using:
                url = yarl.URL(f"http://{host}:{inside.port}/", encoded=True)
                to = origin.Target(
                    endpoint=builders.endpoint(), url=url, origin=origin.Origin(str(url.origin()), "c1", None), head=HEAD
                )
                with pytest.raises(errors.AttemptFailed):
                    await using.post(to, b"", b"", 5.0)
                return inside.requests

        assert run(main, loop_factory) == []

    def test_a_name_that_moves_inside_is_blocked_at_the_next_connection(self, monkeypatch):
        """A time to live of 0, and a CNAME: to the system's resolver both are just other addresses at the next question."""
        moved = iter([(PUBLIC, NAME), (INSIDE, "db.internal.example.com")])

        def resolve(host, port, *_, **__):
            assert host == NAME
            address, canonical_name = next(moved)
            return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, canonical_name, (address, port))]

        async def main():
            not_caching = network(ONE_IS_PUBLIC, bounds=connection_pool.PoolBounds(dns_ttl_s=0))
            async with Listener(PUBLIC) as outside, Listener(INSIDE, outside.port) as inside, not_caching as using:
                monkeypatch.setattr(socket, "getaddrinfo", resolve)  # what the servers needed has been resolved by now
                first = await post(using, f"http://{NAME}:{outside.port}/")
                with pytest.raises(errors.AddressBlocked, match=r"^the host name leads to no address that is allowed$"):
                    await post(using, f"http://{NAME}:{outside.port}/")
                return first.status, len(outside.requests), inside.requests

        assert run(main) == (200, 1, [])

    @pytest.mark.parametrize("status", [200, 201, 300, 301, 302, 303, 305, 307, 308, 401, 407, 421, 426, 503])
    def test_no_answer_leads_anywhere_else(self, status):
        """Nothing is fetched that a response names, and the next request goes where the first went."""

        async def main():
            async with Listener(PUBLIC) as outside, Listener(INSIDE) as inside, network(OPEN) as using:
                there = f"{INSIDE}:{inside.port}"
                outside.answer = (
                    b"HTTP/1.1 %d X\r\nlocation: http://%s/\r\nrefresh: 0; url=http://%s/\r\ncontent-location: http://%s/\r\n"
                    b'alt-svc: http/1.1="%s"; ma=86400; persist=1, h2="%s"\r\n'
                    b"link: <http://%s/>; rel=preload, <//%s>; rel=preconnect\r\n"
                    b"proxy-authenticate: basic\r\nwww-authenticate: basic realm=x\r\nupgrade: h2c\r\ncontent-length: 0\r\n\r\n"
                ) % (status, *[there.encode()] * 7)
                url = f"http://{PUBLIC}:{outside.port}/"
                statuses = [(await post(using, url)).status for _ in range(2)]
                return statuses, len(outside.requests), inside.requests

        assert run(main) == ([status] * 2, 2, [])

    def test_no_proxy_of_the_environment_is_asked(self, monkeypatch):
        async def main():
            async with Listener(PUBLIC) as outside, Listener(INSIDE) as inside:
                for name in ("http_proxy", "https_proxy", "all_proxy"):
                    monkeypatch.setenv(name, f"http://{INSIDE}:{inside.port}")
                    monkeypatch.setenv(name.upper(), f"http://{INSIDE}:{inside.port}")
                async with network(OPEN) as using:
                    response = await post(using, f"http://{PUBLIC}:{outside.port}/")
                return response.status, len(outside.requests), inside.requests

        assert run(main) == (200, 1, [])


API_KEY_HEADERS = ["X-Api-Key", "X-Content-Length", "x-transfer-encoding", "Authorization", "!#$%&'*+.^`|~0-9", "x" * 128]


@pytest.mark.parametrize(
    "auth",
    [
        Auth(),
        Auth(kind=AuthKind.BASIC, username="ann\r\ncontent-length: 0", secret=Secret(b"\r\n\r\n\xff")),
        Auth(kind=AuthKind.BEARER, secret=Secret(b"content-length: 0")),
        *[Auth(kind=AuthKind.API_KEY, header=name, secret=Secret(b"chunked")) for name in API_KEY_HEADERS],
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["", "/a%0d%0acontent-length:%200", "/?transfer-encoding=chunked", "/%20HTTP/1.1%0d%0a"])
def test_the_receiver_sees_one_framing_header_one_host_and_the_whole_body(auth, path):
    """A second length or a coding of the customer's once lost the body, and was still a 200."""

    async def main():
        async with Listener(PUBLIC) as outside, network(OPEN) as using:
            await post(using, f"http://{PUBLIC}:{outside.port}{path}", auth)
            return outside.port, outside.requests

    port, [(head, body)] = run(main)
    request_line, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    names = [line.partition(b":")[0].lower() for line in lines]
    assert request_line == f"POST {path or '/'} HTTP/1.1".encode()
    assert [line for line, name in zip(lines, names, strict=True) if name in FRAMING] == [b"content-length: %d" % len(BODY)]
    assert [line for line, name in zip(lines, names, strict=True) if name == b"host"] == [f"host: {PUBLIC}:{port}".encode()]
    assert len(names) == len(set(names))
    assert b"\n" not in head.replace(b"\r\n", b"")
    assert body == BODY


class NoAddressToConnectFrom(guard.Guard):
    """A guard on a machine on which the system finds no local address or port for a connection."""

    def socket_factory(self, addr_info):  # noqa: ARG002  # the guard's
        raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize(("host", "failure"), [("[2606:4700::1111]", errors.ConnectFailed), ("127.0.0.1", errors.LocalFailure)])
def test_an_ipv6_address_without_ipv6_is_no_fault_of_the_platform(host, failure, loop_factory):
    """Regression: it counted as used-up ports, so no wait of the schedule was used up and no breaker opened."""

    async def main():
        async with network(NoAddressToConnectFrom(allow_http=True, allow_ports=())) as using:
            await post(using, f"http://{host}:{REFUSING_PORT}/")

    with pytest.raises(failure):
        run(main, loop_factory)


def test_the_socket_neither_blocks_nor_waits_to_fill_a_packet():
    with OPEN.socket_factory((socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 80))) as made:
        assert not made.getblocking()
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
