"""One open connection: a request out, its answer in, bounded in every direction.

Runs in the executors, inside the worker's event loop. Must not import pyspark or psycopg. httptools (llhttp) parses what
arrives; it knows nothing of bounds or of who asked, which is what this adds (docs/adr/0003).
"""

from __future__ import annotations

import asyncio

import httptools

from delivery import errors

MAX_RESPONSE_BYTES = 16 * 1024
"""What is kept of a body; with more to come the connection is closed instead of drained."""
MAX_HEADERS = 128
"""Of an answer, trailers included."""
MAX_ANSWER_BYTES = 128 * 1024
"""What is read until an answer is complete, in whatever part of it: head, interim answers, chunk sizes, trailers."""
SWITCHING_PROTOCOLS = 101

_NOT_HTTP = "the answer is not HTTP, or its head is beyond the bounds"


class Connection(asyncio.Protocol):
    """A connection that somebody else made. It has what aiohttp's connector asks of one, and the parser's callbacks.

    Guarantee: `ask` ends once, with an answer that was asked for. What comes unasked, or is no longer waited for, spends the
    connection.
    """

    closed = None
    """aiohttp's connector would wait for it at the end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        # The leniencies that aiohttp has for answers: odd bytes in a header's value, LF for CRLF, a padded chunk size. Two
        # lengths, or a length beside chunks, stay refused: the next answer may be for another customer behind the same host.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self._answer: asyncio.Future[None] | None = None
        self._lost_by: Exception | None = None
        self._received = 0
        self._has_status = False
        self.has_spoken = False
        """Whether the other side sent a byte since it was last asked."""
        self.should_close = False
        """Whether it can take no further request."""
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = bytearray()

    def ask(self, request: bytes) -> asyncio.Future[None]:
        """Write a request; what it returns is done when the answer is here, or as much of it as there will be."""
        self._answer = answer = self._loop.create_future()
        self._received, self._has_status, self.has_spoken = 0, False, False
        self.headers, self.body = [], bytearray()
        if self.transport is None:  # it closed already
            self.end(self._lost_by or _lost())
        else:
            self.transport.write(request)
        return answer

    def end(self, failure: Exception) -> None:
        """Wait no longer, for this reason. A status that has come is the endpoint's answer: what breaks later leaves it."""
        self.should_close = True
        answer, self._answer = self._answer, None
        if answer is None or answer.done():
            return
        if self._has_status:
            answer.set_result(None)
        else:
            answer.set_exception(failure)

    def kept_body(self) -> bytes:
        """Return the last answer's body, up to MAX_RESPONSE_BYTES."""
        return bytes(self.body[:MAX_RESPONSE_BYTES])

    def is_connected(self) -> bool:
        """Tell whether the other side can still be written to."""
        return self.transport is not None and not self.transport.is_closing()

    def close(self) -> None:
        """Close at once: a polite end of TLS would hold the file descriptor for up to 30 s."""
        self.should_close = True
        if self.transport is not None:
            self.transport.abort()

    abort = close

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # that of a stream

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.close()
            return
        self.has_spoken = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # after a 101 with all that belongs to it
            pass
        except httptools.HttpParserError:
            self.end(errors.ResponseInvalid(_NOT_HTTP))
        if self._answer is not None:
            self._received += len(data)
            if self._received > MAX_ANSWER_BYTES or len(self.body) >= MAX_RESPONSE_BYTES:
                self.end(errors.ResponseInvalid(_NOT_HTTP))

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport, self._lost_by = None, exc
        self.end(exc or _lost())
        # It refers back to this. What no cycle keeps is freed at once, and not when the collector comes by.
        del self._parser

    # What the parser calls. An exception in one of them becomes its HttpParserError.

    def on_message_begin(self) -> None:
        if self._answer is None:  # one answer, and then more
            raise errors.ResponseInvalid(_NOT_HTTP)

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= MAX_HEADERS:
            raise errors.ResponseInvalid(_NOT_HTTP)
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
        if answer is None or not self._has_status:  # of an interim answer
            return
        self._answer = None
        if self.status == SWITCHING_PROTOCOLS or not self._parser.should_keep_alive():
            self.should_close = True
        if not answer.done():  # else nobody waits any more
            answer.set_result(None)


def _lost() -> errors.ConnectionLost:
    return errors.ConnectionLost("the connection broke before the answer")
