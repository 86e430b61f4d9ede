"""The transport against real sockets: what comes back, what is cut off, what is never followed. The fake does the same."""

import asyncio
import concurrent.futures
import contextlib
import gc
import gzip
import multiprocessing
import resource
import socket
import ssl
import threading
import warnings

import pytest

from delivery import errors
from delivery.registry_model import Tls
from delivery.webhooks.http import guard, http_connection
from tests.integration import serving
from tests.integration.serving import HEADERS, OK, OPEN, saying
from tests.support import certificates, descriptors, fakes

pytestmark = pytest.mark.integration
AUTHORITY = certificates.authority()
TRUSTED = Tls(authorities=AUTHORITY.pem)


def post(answer, *, timeout_s=1.0, path="/hook", tls=None, trust=None, times=1, body=b"body"):
    """Post to a server that answers so; return (responses, raw requests, connections)."""

    async def main():
        async with serving.serve(answer, tls) as server, serving.network() as network:
            to = serving.to(server.url(path=path), tls=trust)
            responses = [await network.post(to, HEADERS, body, timeout_s) for _ in range(times)]
        return responses, server.requests, len(server.connections)

    return serving.run(main())


def test_the_raw_request_has_one_framing_header_and_ends_with_the_body():
    _, [raw], _ = post(saying(b"HTTP/1.1 204 No Content\r\n\r\n"), path="/a%2Fb?x=%20")
    head, body = raw.split(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    assert lines[0] == b"post /a%2fb?x=%20 http/1.1"
    assert [line for line in lines if line.startswith((b"content-length", b"transfer-encoding"))] == [b"content-length: 4"]
    assert body == b"body"
    assert b"webhook-id: msg_1" in lines


@pytest.mark.parametrize("status", [200, 204, 301, 304, 404, 500, 503])
def test_a_status_comes_back_as_it_is_and_a_redirect_is_not_followed(status):
    raw = b"HTTP/1.1 %d X\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n" % status
    [response], requests, _ = post(saying(raw))
    assert (response.status, len(requests)) == (status, 1)


def test_interim_answers_precede_the_final_one():
    raw = b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 202 Accepted\r\ncontent-length: 2\r\n\r\nok"
    [response], _, _ = post(saying(raw))
    assert (response.status, response.body) == (202, b"ok")


def test_one_connection_serves_many_requests():
    _, requests, connections = post(saying(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"), times=5)
    assert (len(requests), connections) == (5, 1)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\ncontent-length: 10000000000\r\n\r\n" + b"x" * 100_000, id="10 GB body"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"4000\r\n" + b"x" * 0x4000, id="endless chunks"
        ),
    ],
)
def test_no_more_than_the_bound_is_read_and_the_connection_is_not_used_again(raw):
    responses, _, connections = post(saying(raw), times=2)
    assert [(response.status, len(response.body)) for response in responses] == [(200, http_connection.MAX_RESPONSE_BYTES)] * 2
    assert connections == 2


def test_a_compressed_body_is_not_unfolded():
    bomb = gzip.compress(b"\0" * 10_000_000)[:10_000]
    raw = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(bomb)
    [response], _, _ = post(saying(raw + bomb))
    assert response.body == bomb


def test_a_body_that_drips_is_cut_off_and_its_status_counts():
    async def drip(_, writer):
        writer.write(b"HTTP/1.1 500 X\r\ncontent-length: 100\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.05)

    [response], _, _ = post(drip, timeout_s=0.3)
    assert response.status == 500


def test_a_body_that_breaks_off_does_not_take_the_status_back():
    async def break_off(_, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
        await writer.drain()
        writer.close()

    responses, _, connections = post(break_off, times=2)
    assert [(response.status, response.body) for response in responses] == [(200, b"half")] * 2
    assert connections == 2


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"HTTP/1.0 200 OK\r\n\r\nok", id="HTTP/1.0, length by the end"),
        pytest.param(b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", id="HTTP/1.0 with a length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok", id="HTTP/1.1 that closes"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\nok", id="HTTP/1.1, length by the end"),
    ],
)
def test_a_connection_that_ends_with_its_answer_is_not_used_again(raw):
    async def answer_and_close(_, writer):
        writer.write(raw)
        await writer.drain()
        writer.close()

    responses, _, connections = post(answer_and_close, times=2)
    assert [(response.status, response.body) for response in responses] == [(200, b"ok")] * 2
    assert connections == 2


async def drip_head(_, writer):
    for byte in b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.05)


async def half_a_head(_, writer):
    writer.write(b"HTTP/1.1 200 OK\r\nx: ")
    await writer.drain()
    writer.close()


@pytest.mark.parametrize(
    ("answer", "failure", "detail"),
    [
        pytest.param(serving.hanging, errors.AttemptTimedOut, "while waiting for the answer", id="never answers"),
        pytest.param(drip_head, errors.AttemptTimedOut, "inside the head of the answer", id="drips its head"),
        pytest.param(serving.closing, errors.ConnectionLost, "broke", id="closes"),
        pytest.param(serving.resetting, errors.ConnectionLost, "broke", id="resets after the body"),
        pytest.param(half_a_head, errors.ConnectionLost, "broke", id="closes inside its head"),
        pytest.param(saying(b"SSH-2.0-OpenSSH\r\n\r\n"), errors.ResponseInvalid, "not valid HTTP", id="is not HTTP"),
        pytest.param(saying(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 1_000_000), errors.ResponseInvalid, "128 KiB", id="1 MB header"),
        pytest.param(
            saying(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 10_000 + b"\r\n"),
            errors.ResponseInvalid,
            "128 headers",
            id="10,000 headers",
        ),
    ],
)
@pytest.mark.parametrize("over", ["plain", "tls"])
def test_what_is_no_answer_has_its_class(over, answer, failure, detail):
    context = certificates.server_context(certificates.issue("server", issuer=AUTHORITY)) if over == "tls" else None
    with pytest.raises(failure, match=detail):
        post(answer, timeout_s=0.5, tls=context, trust=TRUSTED)


def one_attempt(url, *, address_guard=OPEN, timeout_s=5.0, body=b"", tls=None):
    async def main():
        async with serving.network(address_guard) as network:
            return await network.post(serving.to(url, tls=tls), b"", body, timeout_s)

    return serving.run(main())


def listening(backlog=16):
    """Return a socket that listens; what connects is accepted by the kernel and by nobody else."""
    made = socket.create_server(("127.0.0.1", 0), backlog=backlog)
    return made, f"127.0.0.1:{made.getsockname()[1]}/"


def test_a_refused_connection_is_no_answer():
    with pytest.raises(errors.ConnectFailed, match="refused"):
        one_attempt("http://127.0.0.1:1/")


def test_a_connection_that_is_never_made_runs_out_of_time_while_connecting():
    server, address = listening(backlog=0)
    filling_the_queue = socket.create_connection(server.getsockname())  # what comes next is dropped
    with server, filling_the_queue, pytest.raises(errors.AttemptTimedOut, match="while connecting"):
        one_attempt(f"http://{address}", timeout_s=0.3)


def test_a_server_that_never_shakes_hands_runs_out_of_time_in_the_handshake():
    server, address = listening()
    with server, pytest.raises(errors.AttemptTimedOut, match="in the TLS handshake"):
        one_attempt(f"https://{address}", timeout_s=0.3)


def test_a_server_that_never_reads_runs_out_of_time_while_sending():
    server, address = listening()
    with server, pytest.raises(errors.AttemptTimedOut, match="while sending the request"):
        one_attempt(f"http://{address}", timeout_s=0.3, body=b"x" * 20_000_000)


def test_a_reset_before_the_body_is_read_is_a_lost_connection():
    server, address = listening()

    def reset():
        accepted, _ = server.accept()
        accepted.recv(10)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        accepted.close()

    thread = threading.Thread(target=reset)
    thread.start()
    with server, pytest.raises(errors.ConnectionLost):
        one_attempt(f"http://{address}", body=b"x" * 20_000_000)
    thread.join()


def test_a_name_that_does_not_resolve_has_a_class_of_its_own():
    with pytest.raises(errors.DnsFailed):
        one_attempt("http://no-such-name.invalid/")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_guard_stands_at_the_socket_for_literals_and_names_alike(host):
    """The URL was allowed when it was registered; where it leads now is not."""
    with pytest.raises(errors.AddressBlocked):
        one_attempt(f"http://{host}:8080/", address_guard=guard.Guard())


def old_tls(context, version):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that it is old is the point
        context.minimum_version = context.maximum_version = version
    context.set_ciphers("ALL:@SECLEVEL=0")
    return context


SERVER = certificates.issue("server", issuer=AUTHORITY)
BETWEEN = certificates.issue("between", issuer=AUTHORITY, is_authority=True)
BELOW = certificates.issue("below", issuer=BETWEEN)
EXPIRED = certificates.issue("expired", issuer=AUTHORITY, days=-1)
ELSEWHERE = certificates.issue("elsewhere", issuer=AUTHORITY, address="127.0.0.9")


def up_to(context, version):
    context.maximum_version = version
    return context


@pytest.mark.parametrize(
    ("context", "detail"),
    [
        pytest.param(certificates.server_context(EXPIRED), "expired", id="expired"),
        pytest.param(certificates.server_context(certificates.issue("self")), "self-signed", id="self-signed"),
        pytest.param(certificates.server_context(ELSEWHERE), "mismatch", id="wrong host"),
        pytest.param(certificates.server_context(BELOW), "unable to get local issuer", id="incomplete chain"),
        pytest.param(old_tls(certificates.server_context(SERVER), ssl.TLSVersion.TLSv1), "protocol version", id="TLS 1.0"),
        pytest.param(old_tls(certificates.server_context(SERVER), ssl.TLSVersion.TLSv1_1), "protocol version", id="TLS 1.1"),
        pytest.param(
            up_to(certificates.server_context(SERVER, clients_of=AUTHORITY), ssl.TLSVersion.TLSv1_2),
            "handshake failure",
            id="wants a client certificate, TLS 1.2",
        ),
        pytest.param(
            certificates.server_context(SERVER, clients_of=AUTHORITY),
            "certificate required",
            id="wants a client certificate, TLS 1.3",
        ),
    ],
)
def test_a_connection_that_cannot_be_trusted_is_never_used(context, detail):
    server, address = listening()

    def shake_hands():  # not by uvloop, whose server closes without telling why
        accepted, _ = server.accept()
        raw = accepted.dup()
        with raw, context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False) as wrapped:
            with contextlib.suppress(OSError):
                wrapped.do_handshake()
            with contextlib.suppress(OSError):
                while raw.recv(1000):
                    pass

    thread = threading.Thread(target=shake_hands)
    thread.start()
    with server, pytest.raises(errors.TlsFailed, match=detail):
        one_attempt(f"https://{address}", tls=TRUSTED)
    thread.join()


def test_a_plain_server_behind_an_https_url_is_a_tls_failure():
    server, address = listening()

    def speak():
        accepted, _ = server.accept()
        with accepted:
            accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            while accepted.recv(1000):
                pass

    thread = threading.Thread(target=speak)
    thread.start()
    with server, pytest.raises(errors.TlsFailed, match="wrong version"):
        one_attempt(f"https://{address}")
    thread.join()


def test_a_complete_chain_to_the_customers_own_authority_is_trusted():
    [response], _, _ = post(saying(OK), tls=certificates.server_context(BELOW, BETWEEN), trust=TRUSTED)
    assert response.status == 200


def test_the_systems_trust_does_not_vouch_for_a_private_authority():
    with pytest.raises(errors.TlsFailed):
        post(saying(OK), tls=certificates.server_context(SERVER))


def test_our_own_exhaustion_is_local_and_says_nothing_of_the_endpoint():
    async def main():
        async with serving.serve(saying(OK)) as server, serving.network() as network:
            gc.collect()  # otherwise sockets of earlier tests may be closed, and their descriptors be free, during the request
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            with socket.socket() as highest:
                resource.setrlimit(resource.RLIMIT_NOFILE, (highest.fileno() + 1, hard))
            with contextlib.ExitStack() as taken:
                taken.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
                with contextlib.suppress(OSError):
                    while True:
                        taken.enter_context(socket.socket())
                await network.post(serving.to(server.url()), HEADERS, b"body", 1.0)

    def tried():
        for _ in range(5):  # the thread of tests/budget.py may have closed a file just before the request
            with contextlib.suppress(errors.ConnectionLost):
                serving.run(main())

    with pytest.raises(errors.LocalFailure, match="Too many open files"):
        tried()


def left_behind(url, timeout_s):
    """Return the descriptors that stay open after failed attempts."""

    async def main():
        (await asyncio.start_server(print, "127.0.0.1", 0)).close()  # with the first stream of a loop, libuv opens /dev/null
        server, address = listening()
        with server:
            async with serving.network() as network:
                before = None
                for _ in range(20):
                    with pytest.raises(errors.AttemptFailed):
                        await network.post(serving.to(url.format(address)), b"", b"", timeout_s)
                    await asyncio.sleep(0.01)  # uvloop closes a socket in its next round
                    before = before or descriptors.held()
                return descriptors.held() - before

    return serving.run(main())


@pytest.fixture(scope="module")
def own_process():
    """A process without the threads of other tests, such as those of Kafka's clients, which open descriptors at any time."""
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize(
    ("url", "timeout_s"),
    [("http://127.0.0.1:1/", 1.0), ("https://{}", 0.02), ("http://{}", 0.02)],
    ids=["refused", "tls", "answer"],
)
def test_a_failed_attempt_leaves_no_socket_behind(own_process, url, timeout_s):
    assert own_process.submit(left_behind, url, timeout_s).result() == set()


@pytest.mark.parametrize("kind", ["real", "fake"])
@pytest.mark.parametrize("status", [200, 500])
def test_the_fake_answers_as_the_real_one(kind, status):
    if kind == "real":
        [response], _, _ = post(saying(b"HTTP/1.1 %d X\r\ncontent-length: 2\r\n\r\nok" % status))
    else:
        response = asyncio.run(fakes.FakeTransport(status).post(None, HEADERS, b"body", 1.0))
    assert (response.status, response.body) == (status, b"ok")
