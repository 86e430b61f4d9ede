"""Receive webhooks in a load test: an HTTP server in its own process, cheap enough that the platform is measured.

The server understands only the HTTP that the platform sends. It verifies the signature of every request that it accepts, and
records the request's events. One process serves all endpoints: endpoint 7 has the path `/ep7`.
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
from typing import Any, NamedTuple, Self

import uvloop

from load_tests.harness import behaviour

KEY = b"0123456789abcdef0123456789abcdef"
"""Signing key of all endpoints."""
SECRET = "whsec_" + base64.b64encode(KEY).decode()
"""KEY as the registry has it: the signing secret of all endpoints."""
START_TIMEOUT_S = 20
"""Seconds within which the receiver's process must serve."""
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
_REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"
_EVENT = re.compile(rb'-(\d{8})","tenant_id":"[^"]+","sent_at_ms":(\d{13})')
"""Pattern for the payload of an event: the number at the end of the id, and the time of publishing in ms since the epoch."""
_NUMBERS = 10**8
"""Bound of the event numbers, which have eight digits."""
_NONE = -1
"""Value of `_Shared.hanging` when no endpoint hangs."""
_GZIP = 31
"""Window bits by which zlib reads gzip."""


@dataclass(slots=True, kw_only=True)
class ReceiverReport:
    """The arrivals of events, and totals of the receiver.

    `numbers`, `endpoints` and `ages_ms` have an item for each arrival, in order. Each repeat of an event is an arrival.
    """

    numbers: array.array[int] = field(default_factory=lambda: array.array("l"))
    endpoints: array.array[int] = field(default_factory=lambda: array.array("l"))
    ages_ms: array.array[float] = field(default_factory=lambda: array.array("d"))
    """Milliseconds from the publisher's call of the Kafka client to the arrival at the receiver."""
    requests: array.array[int] = field(default_factory=lambda: array.array("l"))
    """Number of events of each request, in the order of arrival."""
    unverified: int = 0
    """Requests with a wrong signature."""
    connections: int = 0
    """Connections that were opened."""
    cpu_s: float = 0.0
    """CPU seconds of the receiver's process."""


class _Shared(NamedTuple):
    """Values in memory that the receiver's process shares with the scenario's process."""

    count: Any
    """Number of different deliveries that have arrived. An event at two endpoints is two deliveries."""
    hanging: Any
    """Number of the endpoint that takes requests and never answers, or _NONE."""
    is_disturbed: Any
    """1 while the receiver is disturbed, else 0."""


class _Protocol(asyncio.Protocol):
    """Answer the requests of a connection: with 200, or as the endpoint's behaviour says while the receiver is disturbed.

    A request to the hanging endpoint is not answered.
    """

    def __init__(self, seen: ReceiverReport, known: set[int], shared: _Shared, disturbed: behaviour.Behaviour) -> None:
        self._seen = seen
        self._shared = shared
        self._disturbed = disturbed
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
            if endpoint == self._shared.hanging.value:
                return  # no answer to this request, nor to later requests of this connection
            if self._shared.is_disturbed.value:
                self._answer_disturbed(endpoint, headers, data[end + 4 : body_end])
            else:
                self._take(endpoint, headers, data[end + 4 : body_end])
                self._transport.write(_ANSWER)
            data = data[body_end:]
        self._unread = data

    def _answer_disturbed(self, endpoint: int, headers: dict[bytes, bytes], body: bytes) -> None:
        answer = self._disturbed.answer(endpoint)

        def respond() -> None:
            if self._transport.is_closing():
                return  # the sender gave up: the events were not accepted
            if answer.is_accepted:
                self._take(endpoint, headers, body)
            self._transport.write(_ANSWER if answer.is_accepted else _REFUSAL)

        if answer.after_s:
            asyncio.get_running_loop().call_later(answer.after_s, respond)
        else:
            respond()

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
        self._known.update(endpoint * _NUMBERS + int(number) for number, _ in found)
        self._shared.count.value = len(self._known)


def _serve(pipe: Connection, shared: _Shared, disturbed: behaviour.Behaviour) -> None:
    # In production the receivers are on other machines. With SCHED_BATCH, an arriving request does not interrupt the sender.
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        seen, known = ReceiverReport(), set[int]()
        server = await loop.create_server(lambda: _Protocol(seen, known, shared, disturbed), "127.0.0.1", 0, backlog=4096)
        pipe.send(server.sockets[0].getsockname()[1])
        await loop.run_in_executor(None, pipe.recv)
        used = resource.getrusage(resource.RUSAGE_SELF)
        seen.cpu_s = used.ru_utime + used.ru_stime
        pipe.send(seen)

    uvloop.run(main())


class Receiver:
    """A context in which the receiver's process runs.

    `disturbed` is the behaviour of the endpoints while the receiver is disturbed.
    """

    def __init__(self, disturbed: behaviour.Behaviour = behaviour.HEALTHY) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._shared = _Shared(context.RawValue("q", 0), context.RawValue("q", _NONE), context.RawValue("q", 0))
        self._process = context.Process(target=_serve, args=(theirs, self._shared, disturbed), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        if not self._pipe.poll(START_TIMEOUT_S):
            raise TimeoutError(
                f"the receiver does not serve after {START_TIMEOUT_S} s, so the load test ends: run it again, with less load "
                "on this machine"
            )
        self.url = f"http://127.0.0.1:{self._pipe.recv()}"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()

    @property
    def count(self) -> int:
        """Return the number of different deliveries that have arrived so far. An event at two endpoints is two deliveries."""
        return int(self._shared.count.value)

    def hang(self, endpoint: int | None) -> None:
        """Let one endpoint take requests and never answer, from now on. None: every endpoint answers again."""
        self._shared.hanging.value = _NONE if endpoint is None else endpoint

    def disturb(self, *, is_disturbed: bool) -> None:
        """From now on, let endpoints answer as the behaviour says (True), or let all endpoints accept at once (False)."""
        self._shared.is_disturbed.value = is_disturbed

    def report(self) -> ReceiverReport:
        """Stop the receiver, and return the report of all arrivals. Called once, at the end."""
        self._pipe.send("report")
        report: ReceiverReport = self._pipe.recv()
        return report
