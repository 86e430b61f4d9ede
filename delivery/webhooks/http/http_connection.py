"""Send requests on one open connection and read their responses, with bounds on everything that arrives.

Runs in the event loop of a worker, of the API or of a command. httptools (llhttp) parses the bytes. This module adds
bounds, and matches responses to requests, which httptools does not do (docs/adr/0003).
"""

from __future__ import annotations

import asyncio

import httptools

from delivery import errors

MAX_RESPONSE_BYTES = 16 * 1024
"""Most bytes of a response's body that are kept. The rest is not read, and the connection is closed."""
MAX_HEADERS = 128
"""Most headers of a response, trailers included."""
MAX_ANSWER_BYTES = 128 * 1024
"""Most bytes that are read for one response: head, body, interim responses, chunk sizes, trailers."""
SWITCHING_PROTOCOLS = 101
"""Status of a server that leaves HTTP. The connection can take no further request."""

_NOT_HTTP = "the answer is not valid HTTP"
_TOO_MANY_HEADERS = f"the answer has more than {MAX_HEADERS} headers"
_HEAD_TOO_LARGE = f"the head of the answer, interim answers included, has more than {MAX_ANSWER_BYTES // 1024} KiB"


class HttpConnection(asyncio.Protocol):
    """A connection that carries one request at a time. aiohttp's connector creates it; httptools calls it back.

    Guarantee: the future of `send` ends once, with a failure or with the response to the request of that call. Bytes that no
    request waits for, such as bytes after a timeout, close the connection.
    """

    closed = None
    """None, because aiohttp's connector would wait for a future of this name when it closes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        # The leniencies of aiohttp: odd bytes in a header's value, LF for CRLF, a padded chunk size. Two lengths, or a length
        # beside chunks, are refused: a part of one response could be read as the response to the next request.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self._answer: asyncio.Future[None] | None = None
        self._lost_because: Exception | None = None
        self._received = 0
        self._has_status = False
        self.has_received = False
        """True if a byte has arrived since the last call of `send`."""
        self.should_close = False
        """True if the connection can take no further request.

        One reason is a response that was complete before the whole request was sent (RFC 9112, section 9.3). The rest of the
        request waits in the transport. If a server never reads, the bytes of each further request would wait in the transport
        too, without bound."""
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = bytearray()

    def send(self, request: bytes) -> asyncio.Future[None]:
        """Write a request; return a future that is done when the response is complete, is cut at a bound, or fails.

        Then the response is in `status`, `headers` and `kept_body` until the next call. If the exchange fails before the head
        of the final response has arrived, the future has the failure as its exception. If the exchange fails later, the
        response so far counts.
        """
        self._answer = answer = self._loop.create_future()
        self._received, self._has_status, self.has_received = 0, False, False
        self.headers, self.body = [], bytearray()
        if self.transport is None:  # closed already
            self.end(self._lost_because or _lost())
        else:
            self.transport.write(request)
        return answer

    def end(self, failure: Exception) -> None:
        """End the future of `send`, and mark the connection as unusable for a further request.

        If the head of the final response has arrived, the response so far counts, and `failure` is ignored. Otherwise the
        future gets `failure`.
        """
        self.should_close = True
        answer, self._answer = self._answer, None
        if answer is None or answer.done():
            return
        if self._has_status:
            answer.set_result(None)
        else:
            answer.set_exception(failure)

    def is_sending(self) -> bool:
        """Return True if a part of the request waits in the transport.

        Over TLS, bytes that are encrypted already do not count. So one further request may be written although the request
        before has not left yet.
        """
        return self.transport is not None and self.transport.get_write_buffer_size() > 0

    def kept_body(self) -> bytes:
        """Return the body of the last response, up to MAX_RESPONSE_BYTES."""
        return bytes(self.body[:MAX_RESPONSE_BYTES])

    def is_connected(self) -> bool:
        """Return True if the connection can be written to."""
        return self.transport is not None and not self.transport.is_closing()

    def close(self) -> None:
        """Close the connection at once. A graceful end of TLS would keep the file descriptor for up to 30 s."""
        self.should_close = True
        if self.transport is not None:
            self.transport.abort()

    abort = close

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # that of a stream

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.close()
            return
        self.has_received = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # after a complete 101
            pass
        except httptools.HttpParserError as exc:
            ours = exc.__context__  # raised by `on_header`
            self.end(ours if isinstance(ours, errors.ResponseInvalid) else errors.ResponseInvalid(_NOT_HTTP))
        if self._answer is not None:
            self._received += len(data)
            if self._received > MAX_ANSWER_BYTES or len(self.body) >= MAX_RESPONSE_BYTES:
                self.end(errors.ResponseInvalid(_HEAD_TOO_LARGE))  # once there is a status, the response so far counts

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport, self._lost_because = None, exc
        self.end(exc or _lost())
        # The parser refers back to this object. Without the cycle, both are freed at once instead of by the collector.
        del self._parser

    # Called by the parser, which turns an exception in a callback into an HttpParserError.

    def on_message_begin(self) -> None:
        if self._answer is None:  # a second response
            raise errors.ResponseInvalid(_NOT_HTTP)

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= MAX_HEADERS:
            raise errors.ResponseInvalid(_TOO_MANY_HEADERS)
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != SWITCHING_PROTOCOLS:
            self.headers = []  # interim answers come first (RFC 9110, section 15.2)
        else:
            self.status, self._has_status = status, True

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        answer = self._answer
        if answer is None or not self._has_status:  # an interim response
            return
        self._answer = None
        if self.status == SWITCHING_PROTOCOLS or not self._parser.should_keep_alive() or self.is_sending():
            self.should_close = True
        if not answer.done():  # otherwise nothing waits any more
            answer.set_result(None)


def _lost() -> errors.ConnectionLost:
    return errors.ConnectionLost("the connection broke before the answer")
