"""Receive webhooks as a customer does: with an HTTP server that verifies the signature of each request.

Runs in `fanout` commands and the tests. By default the package `standardwebhooks` verifies, because code of this project must
not judge its own signatures. Customers use the package. The container image lacks the package, so a caller there passes
`verify`. The server decompresses bodies, as many servers do. The signature covers the body before compression.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import hmac
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import orjson
import uvloop
from aiohttp import web

from delivery import errors

MAX_BODY_BYTES = 64 * 1024 * 1024
"""Maximum bytes of a request body, far above the bound of a batch."""


class BatchEvent(NamedTuple):
    """The identity of an event in a batch: its `source` and `id`."""

    source: str
    event_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One request, and its answer."""

    path: str
    webhook_id: str
    body: bytes
    """Body after decompression."""
    headers: dict[str, str]
    is_verified: bool
    status: int | None
    """Status of the answer; None: the request is never answered."""
    batch: tuple[BatchEvent, ...] | None = None
    """Events of a batch, in order; None: a single event."""
    rejected: frozenset[int] = frozenset()
    """Indexes of the events of the batch that the answer rejects."""

    @property
    def is_accepted(self) -> bool:
        """Return True if the answer accepts the request, apart from the events in `rejected`."""
        return is_success(self.status)

    @property
    def accepted(self) -> tuple[BatchEvent, ...]:
        """Return the events of the batch that the answer accepts; none if the request is no batch."""
        if not self.is_accepted or self.batch is None:
            return ()
        return tuple(event for index, event in enumerate(self.batch) if index not in self.rejected)


def is_success(status: int | None) -> bool:
    """Return True if a status accepts the request."""
    return status is not None and status // 100 == 2  # noqa: PLR2004  # 2xx


class Receiver:
    """Serve POST requests at `host` and `port` in a thread of its own, so the caller may block.

    * `secrets_of` returns the valid signing secrets (`whsec_…`) for a path.
    * `on_received` is called in the receiver's thread with each request, before the answer is sent.
    * `answer` returns the status for a path; None: the request is never answered.
    * `rejects` returns True if the answer to a path rejects an event of a batch. Only answers with status 2xx reject events.
    * `verify` returns True if one of the secrets signed the body with these headers. None: the function `is_signed` verifies.
    * `remedy` ends the message of the error if the port cannot be opened. It names an option of the caller's command.

    The context opens and closes the port. With port 0, the receiver gets a free port. Raise LocalStackError if the port cannot
    be opened.
    """

    def __init__(
        self,
        *,
        secrets_of: Callable[[str], list[str]],
        on_received: Callable[[Received], None],
        answer: Callable[[str], int | None] = lambda _: 200,
        rejects: Callable[[str, BatchEvent], bool] = lambda *_: False,
        verify: Callable[[bytes, dict[str, str], list[str]], bool] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        remedy: str = "choose another port with --port",
    ) -> None:
        self._secrets_of = secrets_of
        self._on_received = on_received
        self._answer = answer
        self._rejects = rejects
        self._verify = verify or is_signed
        self._host = host
        self.port = port
        self._remedy = remedy
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="receiver", daemon=True)
        self._runner: web.AppRunner | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()
        except errors.LocalStackError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._runner is not None:
            asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        """Return the base URL. The receiver takes POST requests for every path below it."""
        return f"http://{in_url(self._host)}:{self.port}"

    async def _open(self) -> None:
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_post("/{path:.*}", self._handle)
        # A client that disconnects cancels its handler.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self.port, backlog=1024).start()
        except OSError as exc:
            raise errors.LocalStackError(
                f"{self._host}:{self.port} cannot be opened ({_cause(exc)}), so nothing is received: {self._remedy}"
            ) from exc
        self.port = self._runner.addresses[0][1]

    async def _handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        status = self._answer(request.path)
        batch = _batch(body)
        candidates = enumerate(batch or ()) if is_success(status) else ()
        rejected = [index for index, event in candidates if self._rejects(request.path, event)]
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
        assert status is not None, "the wait never ends"  # noqa: S101
        if not rejected:
            return web.Response(status=status)
        answer = {"rejected": [{"index": index, "reason": "not wanted here"} for index in rejected]}
        return web.Response(status=status, body=orjson.dumps(answer), content_type="application/json")


def _cause(exc: OSError) -> str | None:
    """Return the text of the error alone: the event loop's own text repeats the address."""
    return exc.strerror if isinstance(exc, socket.gaierror) or not exc.errno else os.strerror(exc.errno)


def _batch(body: bytes) -> tuple[BatchEvent, ...] | None:
    """Return the events of a body that is an array of objects with `source` and `id`; None for other bodies.

    A body of this form counts as a batch, although it may be the payload of a single event in binary mode.
    """
    if not body.startswith(b"["):
        return None
    try:
        return tuple(BatchEvent(str(event["source"]), str(event["id"])) for event in orjson.loads(body))
    except (ValueError, TypeError, KeyError):
        return None


def in_url(host: str) -> str:
    """Return a host as a URL spells it: with brackets around an IPv6 address."""
    return f"[{host}]" if ":" in host else host


def is_signed(body: bytes, headers: dict[str, str], secrets: list[str]) -> bool:
    """Return True if the package `standardwebhooks`, which customers use, accepts the signature with one of the secrets.

    The package reads bodies of UTF-8 only. For other bodies, return the result of `is_signed_by_hmac`.
    """
    import standardwebhooks  # noqa: PLC0415  # in the extra `local`

    for secret in secrets:
        try:
            _verifier(secret).verify(body, headers, json_parse=False)
        except UnicodeDecodeError:
            return is_signed_by_hmac(body, headers, secrets)
        except (standardwebhooks.WebhookVerificationError, ValueError):
            continue
        return True
    return False


def is_signed_by_hmac(body: bytes, headers: dict[str, str], secrets: list[str]) -> bool:
    """Return True if one of the `whsec_…` secrets made the signature that Standard Webhooks 1.0 defines.

    This code shares nothing with the code that signs, and needs no package: the image does not have `standardwebhooks`. The age
    of the signature is not checked.
    """
    # aiohttp decodes header bytes that are not UTF-8 to surrogates.
    webhook_id, timestamp, given = (
        headers.get(name, "").encode(errors="surrogateescape")
        for name in ("webhook-id", "webhook-timestamp", "webhook-signature")
    )
    signed = b"%s.%s.%s" % (webhook_id, timestamp, body)
    for secret in secrets:
        code = hmac.digest(base64.b64decode(secret.removeprefix("whsec_")), signed, "sha256")
        if any(hmac.compare_digest(b"v1," + base64.b64encode(code), signature) for signature in given.split()):
            return True
    return False


@functools.lru_cache(maxsize=1000)
def _verifier(secret: str) -> Any:
    import standardwebhooks  # noqa: PLC0415  # in the extra `local`

    return standardwebhooks.Webhook(secret)
