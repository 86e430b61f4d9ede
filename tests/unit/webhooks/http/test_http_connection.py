"""A connection and the bytes that arrive: valid responses, bounds, and reuse. Without a socket."""

import asyncio
import gc
import weakref

import pytest

from delivery import errors
from delivery.webhooks.http import http_connection
from tests.support import fakes

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def heard(*pieces, then=None):
    """Feed `pieces` to a connection with a request, then call `then`; return the connection and its failure or None."""

    async def main():
        connection = http_connection.HttpConnection(asyncio.get_running_loop())
        connection.connection_made(fakes.Wire())
        answer = connection.send(b"request")
        for piece in pieces:
            connection.data_received(piece)
        if then is not None:
            connection.connection_lost(then if isinstance(then, Exception) else None)
        assert answer.done(), "it waits for more"
        return connection, answer.exception()

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("raw", "status", "body", "should_close"),
    [
        pytest.param(OK, 200, b"ok", False, id="a length"),
        pytest.param(CHUNKED + b"2\r\nok\r\n1;x=y\r\n!\r\n0\r\nt: v\r\n\r\n", 200, b"ok!", False, id="chunks and a trailer"),
        pytest.param(b"HTTP/1.1 204 X\r\ncontent-length: 5\r\n\r\n", 204, b"", False, id="204 has no body, whatever it says"),
        pytest.param(b"HTTP/1.1 304 X\r\ncontent-length: 5\r\n\r\n", 304, b"", False, id="304 neither"),
        pytest.param(b"HTTP/1.1 103 X\r\nlink: </a>\r\n\r\n" * 3 + OK, 200, b"ok", False, id="interim answers"),
        pytest.param(b"HTTP/1.1 101 X\r\n\r\n", 101, b"", True, id="101"),
        pytest.param(b"HTTP/1.1 101 X\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n\0\1", 101, b"", True, id="101 and more"),
        pytest.param(b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", 200, b"ok", True, id="HTTP/1.0"),
        pytest.param(
            b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 0\r\n\r\n", 200, b"", False, id="1.0 that stays open"
        ),
        pytest.param(OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"), 200, b"ok", True, id="1.1 that closes"),
        pytest.param(OK.replace(b"\r\n", b"\n"), 200, b"ok", False, id="LF for CRLF"),
        pytest.param(OK.replace(b" OK", b""), 200, b"ok", False, id="no reason"),
        pytest.param(OK.replace(b"\r\n\r\n", b"\r\nx: \1\xff\r\n folded\r\n\r\n"), 200, b"ok", False, id="odd header values"),
        pytest.param(CHUNKED + b"2  \r\nok\r\n0\r\n\r\n", 200, b"ok", False, id="padded chunk size"),
        pytest.param(b"HTTP/1.1 999 X\r\ncontent-length: 0\r\n\r\n", 999, b"", False, id="no known status"),
    ],
)
def test_valid_responses_are_accepted(raw, status, body, should_close):
    connection, failure = heard(raw)
    assert failure is None
    assert (connection.status, bytes(connection.body), connection.should_close) == (status, body, should_close)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 4\r\n\r\nok", id="two lengths"),
        pytest.param(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\nok", id="two equal lengths"),
        pytest.param(b"HTTP/1.1 200 OK\r\ncontent-length: 2, 2\r\n\r\nok", id="two lengths in one"),
        pytest.param(b"HTTP/1.1 200 OK\r\ncontent-length: +2\r\n\r\nok", id="a signed length"),
        pytest.param(b"HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\nok", id="a negative length"),
        pytest.param(b"HTTP/1.1 200 OK\r\ncontent-length: 18446744073709551618\r\n\r\nok", id="a length beyond 64 bits"),
        pytest.param(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\nok", id="length, chunks"),
        pytest.param(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 2\r\n\r\nok", id="chunks, length"),
        pytest.param(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * (http_connection.MAX_HEADERS + 1) + b"\r\n", id="too many headers"),
        pytest.param(b"HTTP/1.1 200 OK\r\nx: " + b"y" * http_connection.MAX_ANSWER_BYTES, id="a header without end"),
        pytest.param(b"HTTP/1.1 103 X\r\n\r\n" * http_connection.MAX_ANSWER_BYTES, id="interim answers without end"),
        pytest.param(b"HTTP/3.0 200 OK\r\n\r\n", id="another version"),
        pytest.param(b"SSH-2.0-OpenSSH\r\n", id="another protocol"),
        pytest.param(b"\x15\3\3\0\2\2\50", id="a TLS alert"),
    ],
)
def test_invalid_responses_are_refused(raw):
    connection, failure = heard(raw)
    assert isinstance(failure, errors.ResponseInvalid)
    assert connection.should_close


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * (http_connection.MAX_HEADERS + 1) + b"\r\n", "more than 128 headers"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * http_connection.MAX_ANSWER_BYTES, "more than 128 KiB"),
        (b"SSH-2.0-OpenSSH\r\n", "not valid HTTP"),
    ],
)
def test_a_refusal_names_the_bound(raw, said):
    assert said in str(heard(raw)[1])


@pytest.mark.parametrize(
    ("raw", "body"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 100_000, b"x" * http_connection.MAX_RESPONSE_BYTES, id="no length"),
        pytest.param(
            CHUNKED + b"4000\r\n" + b"x" * 0x4000, b"x" * http_connection.MAX_RESPONSE_BYTES, id="what is kept, no end"
        ),
        pytest.param(CHUNKED + b"2\r\nok\r\nno number", b"ok", id="chunks that go wrong"),
        pytest.param(CHUNKED + b"1;" + b"x" * http_connection.MAX_ANSWER_BYTES, b"", id="a chunk's extension without end"),
        pytest.param(CHUNKED + b"0\r\nx: " + b"y" * http_connection.MAX_ANSWER_BYTES, b"", id="a trailer without end"),
        pytest.param(CHUNKED + b"0\r\n" + b"x: y\r\n" * 1_000, b"", id="trailers without end"),
    ],
)
def test_an_oversized_body_keeps_the_status(raw, body):
    connection, failure = heard(raw)
    assert failure is None
    assert (connection.status, connection.kept_body(), connection.should_close) == (200, body, True)


def test_the_headers_are_those_of_the_final_answer():
    connection, _ = heard(b"HTTP/1.1 103 X\r\nretry-after: 9\r\n\r\n" + OK)
    assert connection.headers == [(b"content-length", b"2")]


@pytest.mark.parametrize("more", [b"H", b"HTTP/1.1 408 X\r\nx: y\r\ncontent-length: 3\r\n\r\nbad", b"\0", b"HTTP/1.1 500"])
def test_bytes_after_a_response_spend_the_connection(more):
    connection, failure = heard(OK + more)
    assert failure is None
    assert (connection.status, connection.headers, connection.body) == (200, [(b"content-length", b"2")], b"ok")
    assert connection.should_close


@pytest.mark.parametrize("unsent_bytes", [0, 1])
def test_a_response_before_the_request_is_sent_spends_the_connection(unsent_bytes):
    """Regression: the next request joined the unsent rest. A server that never read took hundreds of MB of a worker."""

    async def main():
        wire = fakes.Wire()
        connection = http_connection.HttpConnection(asyncio.get_running_loop())
        connection.connection_made(wire)
        answer = connection.send(b"request")
        wire.unsent_bytes = unsent_bytes
        connection.data_received(OK)
        await answer
        assert (connection.status, connection.should_close) == (200, bool(unsent_bytes))

    asyncio.run(main())


def test_unrequested_bytes_close_the_connection():
    connection, _ = heard(OK, b"HTTP/1.1 4")
    assert connection.should_close
    assert not connection.is_connected()


@pytest.mark.parametrize(
    ("raw", "then", "expected"),
    [
        (b"", "end", errors.ConnectionLost),
        (b"HTTP/1.1 2", "end", errors.ConnectionLost),
        (b"", ConnectionResetError(), ConnectionResetError),
        (b"HTTP/1.1 200 OK\r\n\r\nok", "end", b"ok"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf", "end", b"half"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf", ConnectionResetError(), b"half"),
        (CHUNKED + b"2\r\nok\r\n", "end", b"ok"),
    ],
)
def test_only_an_end_before_the_status_is_a_failure(raw, then, expected):
    connection, failure = heard(raw, then=then)
    assert (connection.body if failure is None else type(failure)) == expected
    assert connection.should_close


def test_a_lost_connection_reports_the_reason():
    async def main():
        connection = http_connection.HttpConnection(asyncio.get_running_loop())
        connection.connection_made(fakes.Wire())
        connection.connection_lost(ConnectionResetError("by peer"))
        await connection.send(b"request")

    with pytest.raises(ConnectionResetError, match="by peer"):
        asyncio.run(main())


def test_a_lost_connection_is_freed_without_the_collector():
    """A worker freezes live objects: thousands of closed connections would stay for minutes."""

    async def main():
        connection = http_connection.HttpConnection(asyncio.get_running_loop())
        connection.connection_made(fakes.Wire())
        answer = connection.send(b"request")
        connection.data_received(OK)
        await answer
        connection.connection_lost(None)
        return weakref.ref(connection)

    gc.disable()
    try:
        assert asyncio.run(main())() is None
    finally:
        gc.enable()


def test_a_cancelled_wait_gets_no_response():
    async def main():
        connection = http_connection.HttpConnection(asyncio.get_running_loop())
        connection.connection_made(fakes.Wire())
        connection.send(b"request").cancel()
        connection.data_received(OK)
        assert not connection.should_close
        connection.send(b"request").cancel()
        connection.connection_lost(None)

    asyncio.run(main())


SHAPES = [
    OK,
    CHUNKED + b"2\r\nok\r\n0\r\nt: v\r\n\r\n",
    b"HTTP/1.1 103 X\r\nx: y\r\n\r\n" + OK,
    OK + OK,
    OK + b"HTTP/1.1 5",
    b"HTTP/1.1 500 X\r\nretry-after: 7\r\n\r\nbad",
    b"HTTP/1.1 101 X\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n" + OK,
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\nok",
    b"HTTP/1.1 1",
]


@pytest.mark.parametrize("raw", SHAPES)
def test_fragmentation_of_a_response_changes_nothing(raw):
    def result(*pieces):
        connection, failure = heard(*pieces, then="end")
        return type(failure), connection.status, connection.headers, connection.body

    whole = result(raw)
    assert [result(raw[:cut], raw[cut:]) for cut in range(1, len(raw))] == [whole] * (len(raw) - 1)
    assert result(*(bytes([byte]) for byte in raw)) == whole
