"""Connections between requests: kept, bounded, separate by identity, and replaced when stale."""

import asyncio
import contextlib
import resource
import ssl
import sys
from pathlib import Path

import pytest
from cryptography import x509

from delivery import errors
from delivery.registry_model import Tls
from delivery.webhooks.http import connection_pool
from tests.integration import serving
from tests.integration.serving import HEADERS, OK, closing, in_turn, resetting, saying
from tests.support import certificates

pytestmark = pytest.mark.integration
AUTHORITY = certificates.authority()


def posted(answer, times, *, timeout_s=1.0):
    """Post one after another; return (statuses or errors, number of requests received, number of connections)."""

    async def main():
        results = []
        async with serving.serve(answer) as server, serving.network() as network:
            for _ in range(times):
                try:
                    results.append((await network.post(serving.to(server.url()), HEADERS, b"body", timeout_s)).status)
                except errors.AttemptFailed as exc:
                    results.append(type(exc))
        return results, len(server.requests), len(server.connections)

    return serving.run(main())


@pytest.mark.parametrize("ending", [closing, resetting])
def test_a_kept_connection_that_the_server_closed_is_replaced_in_the_attempt(ending):
    """Servers close idle connections whenever they like; the request can be on its way by then."""
    assert posted(in_turn(saying(OK), ending, saying(OK)), 2) == ([200, 200], 3, 2)


@pytest.mark.parametrize("ending", [closing, resetting])
def test_a_new_connection_that_closes_is_the_endpoints_failure(ending):
    assert posted(ending, 1) == ([errors.ConnectionLost], 1, 1)


def test_a_connection_is_replaced_once_and_not_again():
    assert posted(in_turn(saying(OK), closing), 2) == ([200, errors.ConnectionLost], 3, 2)


async def half_a_head(_, writer):
    writer.write(b"HTTP/1.1 2")
    await writer.drain()
    writer.close()


def test_what_began_to_answer_is_not_asked_again():
    assert posted(in_turn(saying(OK), half_a_head), 2) == ([200, errors.ConnectionLost], 2, 1)


def test_a_kept_connection_that_never_answers_is_not_replaced():
    assert posted(in_turn(saying(OK), serving.hanging), 2, timeout_s=0.3) == ([200, errors.AttemptTimedOut], 2, 1)


CLOSING_408 = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


def test_a_408_for_an_idle_connection_is_no_answer_to_the_next_request():
    """Regression: a server's 408 for its idle connection, sent while a request left, failed the attempt as `refused`."""
    assert posted(in_turn(saying(OK), saying(CLOSING_408), saying(OK)), 2) == ([200, 200], 3, 2)


def test_a_408_of_a_new_or_an_open_connection_is_an_answer():
    """A request is sent at most once more."""
    kept = CLOSING_408.replace(b"connection: close\r\n", b"")
    assert posted(saying(CLOSING_408), 1) == ([408], 1, 1)
    assert posted(in_turn(saying(OK), saying(CLOSING_408)), 2) == ([200, 408], 3, 2)
    assert posted(in_turn(saying(OK), saying(kept)), 2) == ([200, 408], 2, 1)


def test_an_answer_that_nobody_asked_for_is_not_taken_for_the_next_one():
    """An example is the 408 that some servers send before they close an idle connection."""

    async def main():
        unasked = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n"
        async with serving.serve(saying(OK + unasked)) as server, serving.network() as network:
            statuses = [(await network.post(serving.to(server.url()), HEADERS, b"body", 1.0)).status for _ in range(2)]
        return statuses, len(server.connections)

    assert serving.run(main()) == ([200, 200], 2)


def test_an_unasked_answer_that_comes_later_spoils_the_connection_too():
    async def main():
        async with serving.serve(saying(OK)) as server, serving.network() as network:
            await network.post(serving.to(server.url()), HEADERS, b"body", 1.0)
            server.connections[0].write(b"HTTP/1.1 4")
            await server.connections[0].drain()
            await asyncio.sleep(0.05)  # until it has been read
            answer = await network.post(serving.to(server.url()), HEADERS, b"body", 1.0)
        return answer.status, len(server.connections)

    assert serving.run(main()) == (200, 2)


def test_requests_do_not_queue_behind_one_that_its_server_does_not_read():
    """Regression: the worker kept the unsent requests of such a server, hundreds of MB for one endpoint."""
    connections = []

    async def answer_early(reader, writer):
        connections.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):  # later heads are behind bodies that are never read
                writer.write(OK)
                await writer.drain()
                await asyncio.Event().wait()

    async def main():
        server = await asyncio.start_server(answer_early, "127.0.0.1", 0)
        to = serving.to(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        async with server, serving.network() as network:
            statuses = [(await network.post(to, HEADERS, bytes(16 * 2**20), 5.0)).status for _ in range(3)]
            for writer in connections:
                writer.transport.abort()
        return statuses, len(connections)

    assert serving.run(main()) == ([200, 200, 200], 3)


def test_no_connection_carries_the_requests_of_two_customers():
    """An answer that came late was taken for the next customer's request at the same origin."""

    async def main():
        async with serving.serve(saying(OK)) as server, serving.network() as network:
            for customer in ("acme", "beta", "acme", "beta"):
                await network.post(serving.to(server.url(), customer_id=customer), HEADERS, b"body", 1.0)
        return len(server.requests), len(server.connections)

    assert serving.run(main()) == (4, 2)


def test_a_late_answer_never_reaches_another_customer():
    answers = iter(range(1000))

    async def late(_, writer):
        body = b"%d" % next(answers)
        head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        await writer.drain()
        await asyncio.sleep(0.01)
        writer.write(head + b"x" * len(body))  # one that nobody has asked for

    async def main():
        async with serving.serve(late) as server, serving.network() as network:
            bodies = []
            for number in range(20):
                to = serving.to(server.url(), customer_id=f"c{number % 4}")
                with contextlib.suppress(errors.AttemptFailed):
                    bodies.append((await network.post(to, HEADERS, b"body", 1.0)).body)
                await asyncio.sleep(0.02)
        return bodies

    bodies = serving.run(main())
    assert bodies
    assert all(b"x" not in body for body in bodies)


def test_a_host_has_no_more_connections_than_it_may_with_the_idle_ones():
    async def main():
        async with serving.serve(saying(OK)) as server, serving.network(soft_connection_limit=lambda _: 3) as network:
            for number in range(30):
                await network.post(serving.to(server.url(), customer_id=f"c{number}"), HEADERS, b"body", 1.0)
            await asyncio.sleep(0.05)
        return server.most_open

    assert serving.run(main()) <= 4  # one that was closed may still be seen by the server


def test_a_connection_that_the_server_closes_while_it_is_idle_is_forgotten():
    """By aiohttp's connector too, which remembered each for ever."""

    async def main():
        async with serving.serve(saying(OK)) as server, serving.network() as network:
            await network.post(serving.to(server.url()), HEADERS, b"body", 1.0)
            server.connections[0].close()
            async with asyncio.timeout(5):
                while network._pool._by_age:  # noqa: ASYNC110  # it tells nobody
                    await asyncio.sleep(0)
            return len(network._pool._connector._acquired)

    assert serving.run(main()) == 0


def test_the_parser_goes_on_from_answer_to_answer_of_every_shape():
    shapes = [
        OK,
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + OK,
        b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n",
        OK,
    ]
    assert posted(in_turn(*map(saying, shapes)), len(shapes)) == ([200, 204, 200, 304, 200, 500, 200], len(shapes), 1)


def test_an_idle_connection_is_closed_after_a_while():
    bounds = connection_pool.PoolBounds(keepalive_s=0.1)

    async def main():
        async with serving.serve(saying(OK)) as server, serving.network(bounds=bounds) as network:
            await network.post(serving.to(server.url()), HEADERS, b"body", 1.0)
            async with asyncio.timeout(5):
                await server.connections[0].wait_closed()
        return True

    assert serving.run(main())


def test_beyond_the_bound_the_longest_unused_connection_is_closed_first():
    async def main():
        async with serving.serve(saying(OK), host="0.0.0.0") as server, serving.network(max_connections=2) as network:
            for host in ("127.0.0.1", "127.0.0.2", "127.0.0.1", "127.0.0.3", "127.0.0.1"):
                await network.post(serving.to(server.url(host)), HEADERS, b"body", 1.0)
        return len(server.connections)

    assert serving.run(main()) == 3  # .1 was used again before .3 needed a place, so .2 had to go


def test_at_the_bound_requests_wait_for_a_place_and_all_get_one():
    async def main():
        async with serving.serve(saying(OK), host="0.0.0.0") as server, serving.network(max_connections=3) as network:
            urls = [server.url(f"127.0.0.{n + 1}") for n in range(40)]
            answers = await asyncio.gather(*(network.post(serving.to(url), HEADERS, b"body", 5.0) for url in urls))
        return {answer.status for answer in answers}, len(answers), server.most_open

    statuses, count, most_open = serving.run(main())
    assert (statuses, count) == ({200}, 40)
    # The server sees a moment later which connections were closed.
    assert most_open <= 3 + 3


def test_a_request_that_gets_no_place_in_its_time_fails_by_our_own_fault():
    async def main():
        async with serving.serve(serving.hanging, host="0.0.0.0") as server, serving.network(max_connections=1) as network:
            first = asyncio.create_task(network.post(serving.to(server.url("127.0.0.1")), HEADERS, b"body", 1.0))
            await asyncio.sleep(0.1)
            with pytest.raises(errors.LocalFailure, match="no free connection"):
                await network.post(serving.to(server.url("127.0.0.2")), HEADERS, b"body", 0.2)
            with pytest.raises(errors.AttemptTimedOut):
                await first
            # The place is free again.
            with pytest.raises(errors.AttemptTimedOut, match="waiting for the answer"):
                await network.post(serving.to(server.url("127.0.0.3")), HEADERS, b"body", 0.2)

    serving.run(main())


def test_by_default_half_of_the_descriptors_may_be_connections():
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert connection_pool.default_max_connections() == min(soft // 2, 16_384)


THREE_HUNDRED_ENDPOINTS = """
import asyncio, sys, time
import uvloop
from delivery.webhooks.sending import sender
from tests.support import builders
from tests.integration import serving

async def main(port):
    async with serving.network() as network:
        using = sender.Sender(network, serving.OPEN, timeout_s=5.0, clock=time.time)
        urls = [f"http://127.0.{n // 200}.{n % 200 + 1}:{port}/" for n in range(300)]
        due = [builders.delivery(endpoint=builders.endpoint(f"ep{n}", url=url)) for n, url in enumerate(urls)]
        for _ in range(2):
            made = await asyncio.gather(*(using.attempt(delivery, 1) for delivery in due))
            assert [one.detail for one in made if one.error_class] == [], made

with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main(int(sys.argv[1])))
"""


def test_more_endpoints_than_descriptors_are_all_served():
    """`ulimit -n 256`, 300 endpoints at once, each a host of its own, twice."""

    async def main():
        async with serving.serve(saying(OK), host="0.0.0.0") as server:
            command = ["/bin/sh", "-c", 'ulimit -n 256 && exec "$@"', "-", sys.executable, "-c", THREE_HUNDRED_ENDPOINTS]
            child = await asyncio.create_subprocess_exec(
                *command, str(server.port), cwd=Path(__file__).parents[2], stderr=asyncio.subprocess.PIPE
            )
            _, said = await child.communicate()
        return child.returncode, said.decode(), len(server.requests)

    assert serving.run(main()) == (0, "", 600)


def common_name(writer):
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return None if der is None else x509.load_der_x509_certificate(der).subject.rfc4514_string().removeprefix("CN=")


def test_a_client_certificate_never_travels_on_behalf_of_another_endpoint():
    context = certificates.server_context(certificates.issue("server", issuer=AUTHORITY), clients_of=AUTHORITY)
    context.verify_mode = ssl.CERT_OPTIONAL
    a, b = (certificates.issue(name, issuer=AUTHORITY).client_tls(authorities=AUTHORITY.pem) for name in ("a", "b"))
    nobody = Tls(authorities=AUTHORITY.pem)
    seen = []

    async def answer(_, writer):
        seen.append(common_name(writer))
        writer.write(OK)

    async def main():
        async with serving.serve(answer, context) as server, serving.network() as network:
            for identity in (a, b, nobody, a, b, nobody):
                await network.post(serving.to(server.url(), tls=identity), HEADERS, b"body", 1.0)
        return len(server.connections)

    assert serving.run(main()) == 3
    assert seen == ["a", "b", None, "a", "b", None]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("rsa_bits", [0, 2048], ids=["ECDSA", "RSA"])
def test_servers_of_both_kinds_and_versions_are_reached(rsa_bits, version):
    context = certificates.server_context(certificates.issue("server", issuer=AUTHORITY, rsa_bits=rsa_bits))
    context.minimum_version = context.maximum_version = version

    async def main():
        async with serving.serve(saying(OK), context) as server, serving.network() as network:
            return (
                await network.post(serving.to(server.url(), tls=Tls(authorities=AUTHORITY.pem)), HEADERS, b"body", 5.0)
            ).status

    assert serving.run(main()) == 200


def test_changed_tls_settings_take_effect_at_once_although_a_connection_is_open():
    """An authority that is no longer trusted must not be reached through a connection from when it was."""
    context = certificates.server_context(certificates.issue("server", issuer=AUTHORITY))

    async def main():
        async with serving.serve(saying(OK), context) as server, serving.network() as network:
            await network.post(serving.to(server.url(), tls=Tls(authorities=AUTHORITY.pem)), HEADERS, b"body", 1.0)
            changed = Tls(authorities=certificates.authority("another").pem)
            with pytest.raises(errors.TlsFailed):
                await network.post(serving.to(server.url(), tls=changed), HEADERS, b"body", 1.0)

    serving.run(main())
