"""A real server on a real socket, and requests to it through the product's transport."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import uvloop

from delivery.webhooks.http import guard, origin, transport
from delivery.webhooks.sending import request
from tests.support import builders

OPEN = guard.Guard(allow_networks=("127.0.0.0/8",), allow_http=True, allow_ports=())
HEADERS = b"webhook-id: msg_1\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"

T = TypeVar("T")
Answer = Callable[["Server", asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Server:
    """The bytes that a server received. `answer` is called for each complete request."""

    port: int = 0
    scheme: str = "http"
    requests: list[bytes] = field(default_factory=list)
    connections: list[asyncio.StreamWriter] = field(default_factory=list)
    open_now: int = 0
    most_open: int = 0

    def url(self, host: str = "127.0.0.1", path: str = "/hook") -> str:
        return f"{self.scheme}://{host}:{self.port}{path}"


@contextlib.asynccontextmanager
async def serve(answer: Answer, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> AsyncIterator[Server]:
    """Serve `answer(server, writer)` for each request on each connection."""
    made = Server(scheme="https" if tls else "http")

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.connections.append(writer)
        made.open_now += 1
        made.most_open = max(made.most_open, made.open_now)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                made.requests.append(head + await reader.readexactly(length))
                await answer(made, writer)
        made.open_now -= 1
        writer.close()

    listening = await asyncio.start_server(connected, host, 0, ssl=tls, limit=2**22, backlog=4096)
    made.port = listening.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        listening.close()
        for writer in made.connections:
            writer.transport.abort()


@contextlib.asynccontextmanager
async def network(address_guard: guard.Guard = OPEN, **options: Any) -> AsyncIterator[transport.Transport]:
    made = transport.Transport(address_guard, **options)
    try:
        yield made
    finally:
        await made.close()


def to(url: str, **fields: Any) -> origin.Target:
    return request.prepare(builders.endpoint(url=url, **fields), OPEN)


def saying(raw: bytes) -> Answer:
    async def answer(_: Server, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await writer.drain()

    return answer


def in_turn(*answers: Answer) -> Answer:
    """Answer the first request by the first, and so on; the last for ever."""
    left = list(answers)

    async def answer(server: Server, writer: asyncio.StreamWriter) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(server, writer)

    return answer


async def closing(_: Server, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def resetting(_: Server, writer: asyncio.StreamWriter) -> None:
    # With this option a close is a reset.
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    writer.transport.abort()


async def hanging(_: Server, __: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


def run(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
