"""The transport against real sockets: what comes back, what is cut off, what is never followed. The fake does the same."""

import asyncio
import contextlib
import gzip
import ssl
import subprocess

import pytest
import uvloop

from delivery import errors
from delivery.webhooks import guard, target, transport
from tests import builders, fakes

pytestmark = pytest.mark.integration
OPEN = guard.Guard(allow_networks=("127.0.0.0/8",), allow_http=True, allow_ports=())
HEADERS = b"webhook-id: msg_1\r\n"


def post(answer, *, timeout_s=1.0, path="/hook", tls=None, times=1, address_guard=OPEN):
    """Serve `answer(reader, writer)` for each connection, post, and return (responses, raw requests, connections)."""
    requests = []
    connections = []

    async def serve(reader, writer):
        connections.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                requests.append(head + await reader.readexactly(length))
                await answer(writer)

    async def main():
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
        port = server.sockets[0].getsockname()[1]
        network = transport.Transport(address_guard)
        endpoint = builders.endpoint(url=f"http{'s' if tls else ''}://127.0.0.1:{port}{path}")
        to = target.prepare(endpoint, OPEN)
        try:
            responses = [await network.post(to, HEADERS, b"body", timeout_s) for _ in range(times)]
        finally:
            await network.close()
            server.close()
            for writer in connections:
                writer.transport.abort()
        return responses, requests, len(connections)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def saying(raw):
    async def answer(writer):
        writer.write(raw)
        await writer.drain()

    return answer


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
    assert [(one.status, len(one.body)) for one in responses] == [(200, transport.MAX_RESPONSE_BYTES)] * 2
    assert connections == 2


def test_a_compressed_body_is_not_unfolded():
    bomb = gzip.compress(b"\0" * 10_000_000)[:10_000]
    raw = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(bomb)
    [response], _, _ = post(saying(raw + bomb))
    assert response.body == bomb


def test_a_body_that_drips_is_cut_off_and_its_status_counts():
    async def drip(writer):
        writer.write(b"HTTP/1.1 500 X\r\ncontent-length: 100\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.05)

    [response], _, _ = post(drip, timeout_s=0.3)
    assert response.status == 500


async def hang(_):
    await asyncio.Event().wait()


async def drip_head(writer):
    for byte in b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.05)


async def close(writer):
    writer.close()


async def reset(writer):
    writer.transport.abort()


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        pytest.param(hang, errors.AttemptTimedOut, id="never answers"),
        pytest.param(drip_head, errors.AttemptTimedOut, id="drips its head"),
        pytest.param(close, errors.ConnectionLost, id="closes"),
        pytest.param(reset, errors.ConnectionLost, id="resets"),
        pytest.param(saying(b"SSH-2.0-OpenSSH\r\n\r\n"), errors.ResponseInvalid, id="is not HTTP"),
        pytest.param(saying(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 1_000_000), errors.ResponseInvalid, id="1 MB header"),
        pytest.param(
            saying(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 10_000 + b"\r\n"), errors.ResponseInvalid, id="10,000 headers"
        ),
    ],
)
def test_what_is_no_answer_has_its_class(answer, failure):
    with pytest.raises(failure):
        post(answer, timeout_s=0.3)


def one_attempt(url, address_guard=OPEN):
    async def main():
        network = transport.Transport(address_guard)
        try:
            return await network.post(target.prepare(builders.endpoint(url=url), OPEN), b"", b"", 5.0)
        finally:
            await network.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def test_a_refused_connection_is_no_answer():
    with pytest.raises(errors.ConnectFailed):
        one_attempt("http://127.0.0.1:1/")


def test_a_name_that_does_not_resolve_has_a_class_of_its_own():
    with pytest.raises(errors.DnsFailed):
        one_attempt("http://no-such-name.invalid/")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_guard_stands_at_the_socket_for_literals_and_names_alike(host):
    """The URL was allowed when it was registered; where it leads now is not."""
    with pytest.raises(errors.AddressBlocked):
        one_attempt(f"http://{host}:8080/", guard.Guard())


def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1", "-days", "1"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with pytest.raises(errors.TlsFailed):
        post(saying(b"HTTP/1.1 200 OK\r\n\r\n"), tls=context)


@pytest.mark.parametrize("kind", ["real", "fake"])
@pytest.mark.parametrize("status", [200, 500])
def test_the_fake_answers_as_the_real_one(kind, status):
    if kind == "real":
        [response], _, _ = post(saying(b"HTTP/1.1 %d X\r\ncontent-length: 2\r\n\r\nok" % status))
    else:
        response = asyncio.run(fakes.FakeTransport(status).post(None, HEADERS, b"body", 1.0))
    assert (response.status, response.body) == (status, b"ok")
