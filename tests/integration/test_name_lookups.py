"""The transport looks up names of hosts: it remembers an address, forgets a failure, and waits for no name that hangs."""

import asyncio
import errno
import socket
import threading
from typing import ClassVar

import pytest

from delivery import errors
from delivery.registry_model import Tls
from delivery.webhooks.http import connection_pool, dns, guard
from tests.integration import serving
from tests.integration.serving import HEADERS, OK, saying
from tests.support import certificates

pytestmark = pytest.mark.integration
AUTHORITY = certificates.authority()


class Names:
    """In the place of the system's resolver. Names that begin with `hangs` are never found, until `release`."""

    def __init__(self, monkeypatch):
        self.asked = []
        self.answers = {}
        self._real = socket.getaddrinfo
        self._asking = threading.Condition()
        self._released = threading.Event()
        monkeypatch.setattr(socket, "getaddrinfo", self)

    def __call__(self, host, port, *args, **kwargs):
        with self._asking:
            self.asked.append(host)
            self._asking.notify_all()
        if host.startswith("hangs"):
            self._released.wait()
        answer = self.answers.get(host, "127.0.0.1")
        if isinstance(answer, Exception):
            raise answer
        addresses = [answer] if isinstance(answer, str) else answer
        return [info for address in addresses for info in self._real(address, port, *args, **kwargs)]

    def were_asked(self, times):
        with self._asking:
            return self._asking.wait_for(lambda: len(self.asked) >= times, timeout=5)

    def release(self):
        self._released.set()


@pytest.fixture
def names(monkeypatch):
    made = Names(monkeypatch)
    yield made
    made.release()


def test_a_name_that_was_found_is_not_looked_up_for_each_connection(names):
    async def main():
        last_words = OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
        async with serving.serve(saying(last_words)) as server, serving.network() as network:
            for _ in range(3):
                await network.post(serving.to(server.url("hooks.example.com")), HEADERS, b"body", 1.0)
        return len(server.connections)

    assert serving.run(main()) == 3
    assert names.asked == ["hooks.example.com"]


def test_a_server_gets_the_host_name_before_it_chooses_a_certificate(names):
    of_the_name = certificates.server_context(certificates.issue("hooks", issuer=AUTHORITY, address="hooks.example.com"))
    context = certificates.server_context(certificates.issue("server", issuer=AUTHORITY))

    def choose(connection, name, _):
        if name == "hooks.example.com":
            connection.context = of_the_name

    context.sni_callback = choose

    async def main():
        async with serving.serve(saying(OK), context) as server, serving.network() as network:
            to = serving.to(server.url("hooks.example.com"), tls=Tls(authorities=AUTHORITY.pem))
            return (await network.post(to, HEADERS, b"body", 1.0)).status

    assert serving.run(main()) == 200
    assert names.asked == ["hooks.example.com"]


def test_a_busy_connection_is_replaced_so_that_a_moved_name_is_followed(names):
    """Regression: only idle time closed a connection, so one in steady use kept its address and its certificate for ever."""
    bounds = connection_pool.PoolBounds(dns_ttl_s=0)

    async def main():
        async with serving.serve(saying(OK), host="0.0.0.0") as server, serving.network(bounds=bounds) as network:
            for age_s in (0, 0, connection_pool.MAX_AGE_S + 1, 0, 0):
                for idle in network._pool._by_age:
                    idle.opened_at -= age_s
                await network.post(serving.to(server.url("hooks.example.com")), HEADERS, b"body", 5.0)
                names.answers["hooks.example.com"] = "127.0.0.2"
        return [writer.get_extra_info("sockname")[0] for writer in server.connections], len(server.requests)

    assert serving.run(main()) == (["127.0.0.1", "127.0.0.2"], 5)


def test_that_a_name_was_not_found_is_not_remembered(names):
    async def main():
        async with serving.serve(saying(OK)) as server, serving.network() as network:
            to = serving.to(server.url("hooks.example.com"))
            names.answers["hooks.example.com"] = socket.gaierror(socket.EAI_NONAME, "not known")
            with pytest.raises(errors.DnsFailed):
                await network.post(to, HEADERS, b"body", 1.0)
            names.answers.clear()
            return (await network.post(to, HEADERS, b"body", 1.0)).status

    assert serving.run(main()) == 200


def test_names_that_hang_keep_nobody_else_waiting(names):
    async def main():
        async with serving.serve(saying(OK)) as server, serving.network() as network:
            hanging = [
                asyncio.create_task(network.post(serving.to(server.url(f"hangs{n}.example.com")), HEADERS, b"body", 1.0))
                for n in range(16)
            ]
            assert await asyncio.to_thread(names.were_asked, len(hanging))
            answer = await network.post(serving.to(server.url("hooks.example.com")), HEADERS, b"body", 0.4)
            for task in hanging:
                with pytest.raises(errors.AttemptTimedOut, match="while looking up the name"):
                    await task
            names.release()
        return answer.status

    assert serving.run(main()) == 200


def test_more_hanging_names_than_lookups_never_count_against_another_endpoint(names):
    """Regression: a name that waited for a thread of ours was a timeout of its endpoint, whose circuit breaker opened.

    Two customers wait for the same name. The names that hang themselves are still timeouts.
    """
    bounds = connection_pool.PoolBounds(max_lookups=4)

    async def main():
        async with serving.serve(saying(OK)) as server, serving.network(bounds=bounds) as network:

            def post(host, customer_id, timeout_s):
                to = serving.to(server.url(host), customer_id=customer_id)
                return asyncio.create_task(network.post(to, HEADERS, b"body", timeout_s))

            hanging = [post(f"hangs{number}.example.com", "evil", 1.0) for number in range(4)]
            assert await asyncio.to_thread(names.were_asked, 4)
            for waiting in [post("hooks.example.com", customer, 0.2) for customer in ("acme", "beta")]:
                with pytest.raises(errors.LocalFailure, match="no free thread to look up"):
                    await waiting
            for task in hanging:
                with pytest.raises(errors.AttemptTimedOut, match="while looking up the name"):
                    await task
            names.release()
            return (await post("hooks.example.com", "acme", 5.0)).status

    assert serving.run(main()) == 200
    assert names.asked.count("hooks.example.com") == 1


class CountingGuard(guard.Guard):
    """A guard that keeps the addresses for which it made a socket."""

    sockets: ClassVar[list[str]] = []

    def socket_factory(self, addr_info):
        self.sockets.append(addr_info[4][0])
        return super().socket_factory(addr_info)


def test_a_name_with_hundreds_of_addresses_takes_few_connections(names):
    """Regression: aiohttp makes n(n+1)/2 attempts for n addresses. 500 delayed all other requests of the worker by 0.3 s."""
    names.answers["hooks.example.com"] = [f"127.0.1.{number}" for number in range(200)]
    CountingGuard.sockets.clear()

    async def main():
        async with serving.network(CountingGuard(allow_networks=("127.0.0.0/8",))) as network:
            await network.post(serving.to("http://hooks.example.com:1/"), HEADERS, b"body", 5.0)

    with pytest.raises(errors.ConnectFailed):
        serving.run(main())
    assert set(CountingGuard.sockets) == set(names.answers["hooks.example.com"][: dns.MAX_ADDRESSES])
    assert len(CountingGuard.sockets) <= dns.MAX_ADDRESSES * (dns.MAX_ADDRESSES + 1) / 2


@pytest.mark.parametrize(("last", "expected"), [("127.0.0.1", 200), ("10.0.1.1", errors.AddressBlocked)])
def test_refused_addresses_take_no_place_of_an_allowed_one(names, last, expected):
    names.answers["hooks.example.com"] = [*(f"10.0.0.{number}" for number in range(20)), last]

    async def main():
        async with serving.serve(saying(OK)) as server, serving.network() as network:
            try:
                return (await network.post(serving.to(server.url("hooks.example.com")), HEADERS, b"body", 5.0)).status
            except errors.AttemptFailed as exc:
                return type(exc)

    assert serving.run(main()) == expected


def test_running_out_of_descriptors_while_looking_up_is_local(names):
    names.answers["hooks.example.com"] = OSError(errno.EMFILE, "Too many open files")

    async def main():
        async with serving.network() as network:
            await network.post(serving.to("http://hooks.example.com/"), HEADERS, b"body", 1.0)

    with pytest.raises(errors.LocalFailure):
        serving.run(main())
