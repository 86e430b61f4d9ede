"""Receive webhooks as a customer would: a real HTTP server that verifies each signature with the public library.

Runs in the command, the demo and the tests. Verification is not ours on purpose: by default it is the package
`standardwebhooks`, which customers use and the image leaves out. The server unpacks a compressed body, as many do; what is
signed is what was packed.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import orjson
import uvloop
from aiohttp import web

from delivery import errors

MAX_BODY_BYTES = 64 * 1024 * 1024
"""Far more than a batch may have."""


class Named(NamedTuple):
    """An event of a batch, by what CloudEvents makes it unique."""

    source: str
    event_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One request that came in, and what was answered."""

    path: str
    webhook_id: str
    body: bytes
    """Unpacked, if it was compressed."""
    headers: dict[str, str]
    is_verified: bool
    status: int | None
    """None: none was given, ever."""
    batch: tuple[Named, ...] | None = None
    """The events of a batch, in their order; None for a single event."""
    rejected: frozenset[int] = frozenset()
    """Those of the batch that the answer rejects, by their places."""

    @property
    def is_accepted(self) -> bool:
        """Tell whether the answer accepts it; of a batch, as far as `rejected` does not say otherwise."""
        return is_success(self.status)

    @property
    def accepted(self) -> tuple[Named, ...]:
        """Return the events of a batch that the answer accepts."""
        if not self.is_accepted or self.batch is None:
            return ()
        return tuple(named for place, named in enumerate(self.batch) if place not in self.rejected)


def is_success(status: int | None) -> bool:
    """Tell whether a status says that the request was accepted."""
    return status is not None and status // 100 == 2  # noqa: PLR2004  # 2xx


class Receiver:
    """Serve on 127.0.0.1 from a thread of its own, so that blocking callers stay simple.

    `secrets_of` returns the signing secrets (`whsec_…`) that hold for a path; `answer` decides the status for a path, None: it
    never answers; and `rejects` tells of an event of a batch whether the customer at a path rejects it. `verify` tells of body,
    headers and secrets whether one of the secrets has signed.
    """

    def __init__(
        self,
        *,
        secrets_of: Callable[[str], list[str]],
        on_received: Callable[[Received], None],
        answer: Callable[[str], int | None] = lambda _: 200,
        rejects: Callable[[str, Named], bool] = lambda *_: False,
        verify: Callable[[bytes, dict[str, str], list[str]], bool] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self._secrets_of = secrets_of
        self._on_received = on_received
        self._answer = answer
        self._rejects = rejects
        self._verify = verify or is_verified_by_the_library
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
        return f"http://{in_url(self._host)}:{self.port}"

    async def _open(self) -> None:
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_post("/{path:.*}", self._handle)
        # Who gives up waiting for an answer ends the waiting here, too.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
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
        batch = _batch(body)
        asked = enumerate(batch or ()) if is_success(status) else ()
        rejected = [place for place, named in asked if self._rejects(request.path, named)]
        self._on_received(
            Received(
                path=request.path,
                webhook_id=headers.get("webhook-id", ""),
                body=body,
                headers=headers,
                is_verified=self._verify(body, headers, self._secrets_of(request.path)),
                status=status,
                batch=batch,
                rejected=frozenset(rejected),
            )
        )
        if status is None:
            await asyncio.Event().wait()
        assert status is not None, "nobody ends that waiting"  # noqa: S101
        if not rejected:
            return web.Response(status=status)
        answer = {"rejected": [{"index": place, "reason": "not wanted here"} for place in rejected]}
        return web.Response(status=status, body=orjson.dumps(answer), content_type="application/json")


def _batch(body: bytes) -> tuple[Named, ...] | None:
    """Return the events of a batch; None for anything else. The payload of a single event may be an array, too."""
    if not body.startswith(b"["):
        return None
    try:
        return tuple(Named(str(one["source"]), str(one["id"])) for one in orjson.loads(body))
    except (ValueError, TypeError, KeyError):
        return None


def in_url(host: str) -> str:
    """Return a host as URLs have it: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def is_verified_by_the_library(body: bytes, headers: dict[str, str], secrets: list[str]) -> bool:
    """Tell whether one of the secrets has signed, by the package `standardwebhooks`."""
    import standardwebhooks  # noqa: PLC0415  # of the extra `local`

    for secret in secrets:
        try:
            _verifier(secret).verify(body, headers, json_parse=False)
        except (standardwebhooks.WebhookVerificationError, ValueError):
            continue
        return True
    return False


@functools.lru_cache(maxsize=1000)
def _verifier(secret: str) -> Any:
    import standardwebhooks  # noqa: PLC0415  # as above

    return standardwebhooks.Webhook(secret)
