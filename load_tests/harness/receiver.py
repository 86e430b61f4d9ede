"""Receive webhooks in a load test: an HTTP server in its own process, cheap enough that the platform is measured.

It understands only the HTTP that the platform sends. It verifies every signature and records every event, single or in a batch.
One process serves all endpoints, by their paths.
"""

from __future__ import annotations

import array
import asyncio
import base64
import hmac
import itertools
import multiprocessing
import os
import re
import resource
import time
import zlib
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Self

import uvloop

KEY = b"0123456789abcdef0123456789abcdef"
SECRET = "whsec_" + base64.b64encode(KEY).decode()
"""Signing secret of all endpoints."""
START_TIMEOUT_S = 20
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
_EVENT = re.compile(rb'-(\d{8})","tenant_id":"[^"]+","sent_at_ms":(\d{13})')
"""Pattern for the payload of an event: the number at the end of its id, and its time of sending."""
_NONE = -1
_GZIP = 31
"""Window bits by which zlib reads gzip."""


@dataclass(slots=True, kw_only=True)
class Report:
    """Arrivals: number, endpoint and age of each event, in the order of arrival."""

    numbers: array.array[int] = field(default_factory=lambda: array.array("l"))
    endpoints: array.array[int] = field(default_factory=lambda: array.array("l"))
    ages_ms: array.array[float] = field(default_factory=lambda: array.array("d"))
    """Milliseconds from the Kafka client to the arrival."""
    requests: array.array[int] = field(default_factory=lambda: array.array("l"))
    """Number of events of each request."""
    unverified: int = 0
    connections: int = 0
    cpu_s: float = 0.0


class _Protocol(asyncio.Protocol):
    """Answer 200 to each request of a keep-alive connection."""

    def __init__(self, seen: Report, known: set[int], count: Any, hanging: Any) -> None:
        self._seen = seen
        self._count = count
        self._hanging = hanging
        self._known = known
        self._unread = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._seen.connections += 1

    def data_received(self, data: bytes) -> None:
        data = self._unread + data
        while (end := data.find(b"\r\n\r\n")) >= 0:
            request, *lines = data[:end].split(b"\r\n")
            headers = dict(line.split(b": ", 1) for line in lines)
            body_end = end + 4 + int(headers[b"content-length"])
            if len(data) < body_end:
                break
            endpoint = int(request.split(b" ")[1].removeprefix(b"/ep"))
            if endpoint == self._hanging.value:
                return  # no answer to this request, nor to later ones on this connection
            self._take(endpoint, headers, data[end + 4 : body_end])
            self._transport.write(_ANSWER)
            data = data[body_end:]
        self._unread = data

    def _take(self, endpoint: int, headers: dict[bytes, bytes], body: bytes) -> None:
        seen = self._seen
        if b"content-encoding" in headers:
            body = zlib.decompress(body, _GZIP)
        signed = b"%s.%s.%s" % (headers[b"webhook-id"], headers[b"webhook-timestamp"], body)
        if b"v1," + base64.b64encode(hmac.digest(KEY, signed, "sha256")) != headers[b"webhook-signature"]:
            seen.unverified += 1
        found, now_ms = _EVENT.findall(body), time.time() * 1000
        seen.numbers.extend([int(number) for number, _ in found])
        seen.ages_ms.extend([now_ms - int(sent_at_ms) for _, sent_at_ms in found])
        seen.endpoints.extend(itertools.repeat(endpoint, len(found)))
        seen.requests.append(len(found))
        self._known.update(seen.numbers[-len(found) :] if found else ())
        self._count.value = len(self._known)


def _serve(pipe: Connection, count: Any, hanging: Any) -> None:
    # In production customers are on other machines. Here the receiver must not interrupt the sender for each request.
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        seen, known = Report(), set[int]()
        server = await loop.create_server(lambda: _Protocol(seen, known, count, hanging), "127.0.0.1", 0, backlog=4096)
        pipe.send(server.sockets[0].getsockname()[1])
        await loop.run_in_executor(None, pipe.recv)
        used = resource.getrusage(resource.RUSAGE_SELF)
        seen.cpu_s = used.ru_utime + used.ru_stime
        pipe.send(seen)

    uvloop.run(main())


class Receiver:
    """Context in which the server runs."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._count = context.RawValue("q", 0)
        self._hanging = context.RawValue("q", _NONE)
        self._process = context.Process(target=_serve, args=(theirs, self._count, self._hanging), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        if not self._pipe.poll(START_TIMEOUT_S):
            raise TimeoutError("the receiver did not start")
        self.url = f"http://127.0.0.1:{self._pipe.recv()}"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()

    @property
    def count(self) -> int:
        """Return the number of events that have arrived, without repeats."""
        return int(self._count.value)

    def hang(self, endpoint: int | None) -> None:
        """Let one endpoint accept requests without answering; None: all endpoints answer."""
        self._hanging.value = _NONE if endpoint is None else endpoint

    def report(self) -> Report:
        """Stop the server, and return the arrivals."""
        self._pipe.send("report")
        report: Report = self._pipe.recv()
        return report
