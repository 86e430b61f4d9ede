"""The customers of a load test: an HTTP server in a process of its own, so cheap that the platform is what is measured.

It reads just enough HTTP for what the platform sends, verifies every signature, and remembers every `webhook-id`. One process
stands for all endpoints; the path tells them apart.
"""

from __future__ import annotations

import array
import asyncio
import base64
import collections
import hmac
import multiprocessing
import os
import resource
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Self

import uvloop

KEY = b"0123456789abcdef0123456789abcdef"
SECRET = "whsec_" + base64.b64encode(KEY).decode()
"""What the endpoints are registered with."""
START_TIMEOUT_S = 20
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
_SENT_AT = b'"sent_at_ms":'


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came in."""

    webhook_ids: dict[str, int]
    """Each id with how often it came."""
    unverified: int
    latencies_ms: array.array[float]
    """In the order of arrival: from when the event was handed to the Kafka client until it was here."""
    cpu_s: float
    connections: int


@dataclass(slots=True)
class _Seen:
    """What the server collects; `count` is shared with the process that started it."""

    count: Any
    webhook_ids: collections.Counter[bytes]
    latencies_ms: array.array[float]
    unverified: int = 0
    connections: int = 0


class _Protocol(asyncio.Protocol):
    """Answer 200 to each request of a keep-alive connection."""

    def __init__(self, seen: _Seen) -> None:
        self._seen = seen
        self._unread = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._seen.connections += 1

    def data_received(self, data: bytes) -> None:
        data = self._unread + data
        while (end := data.find(b"\r\n\r\n")) >= 0:
            headers = dict(line.split(b": ", 1) for line in data[:end].split(b"\r\n")[1:])
            body_end = end + 4 + int(headers[b"content-length"])
            if len(data) < body_end:
                break
            self._take(headers, data[end + 4 : body_end])
            self._transport.write(_ANSWER)
            data = data[body_end:]
        self._unread = data

    def _take(self, headers: dict[bytes, bytes], body: bytes) -> None:
        seen, webhook_id = self._seen, headers[b"webhook-id"]
        signed = b"%s.%s.%s" % (webhook_id, headers[b"webhook-timestamp"], body)
        if b"v1," + base64.b64encode(hmac.digest(KEY, signed, "sha256")) != headers[b"webhook-signature"]:
            seen.unverified += 1
        at = body.find(_SENT_AT) + len(_SENT_AT)
        seen.latencies_ms.append(time.time() * 1000 - int(body[at : at + 13]))
        seen.webhook_ids[webhook_id] += 1
        seen.count.value += 1


def _serve(pipe: Connection, count: Any) -> None:
    # The customers are on other machines in reality: here they are not to interrupt the sender for each request that arrives.
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        seen = _Seen(count, collections.Counter(), array.array("d"))
        server = await loop.create_server(lambda: _Protocol(seen), "127.0.0.1", 0, backlog=4096)
        pipe.send(server.sockets[0].getsockname()[1])
        await loop.run_in_executor(None, pipe.recv)
        used = resource.getrusage(resource.RUSAGE_SELF)
        pipe.send(
            Report(
                webhook_ids={webhook_id.decode(): times for webhook_id, times in seen.webhook_ids.items()},
                unverified=seen.unverified,
                latencies_ms=seen.latencies_ms,
                cpu_s=used.ru_utime + used.ru_stime,
                connections=seen.connections,
            )
        )

    uvloop.run(main())


class Receiver:
    """A context: the server runs inside it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._count = context.RawValue("q", 0)
        self._process = context.Process(target=_serve, args=(theirs, self._count), daemon=True)

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
        """Return how many requests have come so far."""
        return int(self._count.value)

    def report(self) -> Report:
        """Return what came in. Once, at the end: the server stops."""
        self._pipe.send("report")
        report: Report = self._pipe.recv()
        return report
