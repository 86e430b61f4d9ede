"""Receive webhooks as a customer would: a real HTTP server that verifies each signature with the public library.

Runs in the command, the demo and the tests. Verification is not ours on purpose: it is the `standardwebhooks` package that
customers use.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import standardwebhooks
import uvloop
from aiohttp import web

from delivery import errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One request that came in, and what was answered."""

    path: str
    webhook_id: str
    body: bytes
    headers: dict[str, str]
    is_verified: bool
    status: int


class Receiver:
    """Serve on 127.0.0.1 from a thread of its own, so that blocking callers stay simple.

    `secrets_of` returns the signing secrets (`whsec_…`) that hold for a path; `answer` decides the status for a path.
    """

    def __init__(
        self,
        *,
        secrets_of: Callable[[str], list[str]],
        on_received: Callable[[Received], None],
        answer: Callable[[str], int] = lambda _: 200,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self._secrets_of = secrets_of
        self._on_received = on_received
        self._answer = answer
        self._host = host
        self.port = port
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="receiver", daemon=True)
        self._runner: web.AppRunner | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        if self._runner is not None:
            asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        """Return the base URL; any path below it is served."""
        return f"http://{self._host}:{self.port}"

    async def _open(self) -> None:
        app = web.Application()
        app.router.add_post("/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self.port, backlog=1024).start()
        except OSError as exc:
            raise errors.LocalStackError(f"port {self.port} is in use: choose another with --port") from exc
        self.port = self._runner.addresses[0][1]

    async def _handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        status = self._answer(request.path)
        self._on_received(
            Received(
                path=request.path,
                webhook_id=headers.get("webhook-id", ""),
                body=body,
                headers=headers,
                is_verified=_is_verified(body, headers, self._secrets_of(request.path)),
                status=status,
            )
        )
        return web.Response(status=status)


@functools.lru_cache(maxsize=1000)
def _verifier(secret: str) -> standardwebhooks.Webhook:
    return standardwebhooks.Webhook(secret)


def _is_verified(body: bytes, headers: dict[str, str], secrets: list[str]) -> bool:
    for secret in secrets:
        try:
            _verifier(secret).verify(body, headers, json_parse=False)
        except (standardwebhooks.WebhookVerificationError, ValueError):
            continue
        return True
    return False
