"""Answer the readers of the registry, which are programs that follow it over HTTP, and let them wait for its next revision.

Runs in the API, on its event loop. A waiting reader holds neither a connection to Postgres nor a thread. While readers wait,
one query each half second looks for a later revision. Changes are read once for all readers at the same revision.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gzip
import logging
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import cachetools
import orjson
from aiohttp import web

from delivery import errors
from delivery.config import service_settings
from delivery.registry_model import Revision
from subscriptions_db.api.contract import problems
from subscriptions_db.api.contract.principals import Principal, Scope
from subscriptions_db.api.contract.routes import SnapshotRequest
from subscriptions_db.api.server import long_polls, transactions
from subscriptions_db.snapshot import registry_reader, sealed_document

log = logging.getLogger(__name__)

ASK_EVERY_S = 0.5
"""Seconds between two queries for a later revision, while readers wait."""
MAX_KEPT = 16
"""Maximum cached answers. Few are enough, because most readers are at the newest revisions. An answer with 100,000
subscriptions has some megabytes."""
_TAG = re.compile(r'"(\d{1,19})"')
_WITHOUT_GZIP = re.compile(r"gzip\s*;\s*q=0(\.0*)?\s*(,|$)", re.IGNORECASE)
"""Matches an `Accept-Encoding` with which a reader refuses gzip (RFC 9110, section 12.5.3)."""
_OURSELVES = Principal("", None, Scope.EXECUTOR)
"""The principal with whose rights the feed reads Postgres. Each reader may read the whole registry."""

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Call a function on a worker thread, and return its result."""


class CompressedAnswer(NamedTuple):
    """A gzipped document with the registry or its changes, and the revision to which it brings a reader."""

    revision: Revision
    content: bytes


class SnapshotFeed:
    """Answer the readers of the registry, and let them wait for a change. Lives on the event loop."""

    def __init__(
        self,
        config: service_settings.ApiSettings,
        opened: transactions.Store,
        in_thread: InThread,
        authenticate: long_polls.Authenticate,
        outside_in_flight: long_polls.OutsideInFlight,
    ) -> None:
        self._config = config
        self._outside_in_flight = outside_in_flight
        self._store = opened
        self._in_thread = in_thread
        self._authenticate = authenticate
        self._packed: cachetools.LRUCache[tuple[Revision | None, Revision], asyncio.Task[CompressedAnswer]] = (
            cachetools.LRUCache(MAX_KEPT)
        )
        self._later: dict[Revision, asyncio.Future[Revision | None]] = {}
        self._waiting = 0
        self._watching: asyncio.Task[None] | None = None
        self._is_ending = False

    async def end(self, _: web.Application) -> None:
        """Answer all waiting readers with 503, because the server stops."""
        self._is_ending = True
        self._let_go()

    async def answer(self, request: web.Request, asked: SnapshotRequest) -> web.Response:
        """Return the changes since the reader's revision, or the whole registry.

        A reader with the newest revision waits for a later one, at most `asked.wait_s` seconds, and at most the setting
        `api.max_poll_s`. With `wait_s` 0 the reader does not wait. The response, after any wait, has the status 304 if
        `If-None-Match` names the newest revision. Raise Refused with 503 if the registry cannot be read, too many readers wait
        or the server stops. After a wait, also raise the refusals of `authenticate`, such as 401 for a key revoked meanwhile.
        """
        known, newest = {int(tag) for tag in _TAG.findall(request.headers.get("if-none-match", ""))}, asked.newest
        if asked.wait_s and newest in known | {asked.since}:
            wait_s = min(asked.wait_s, self._config.max_poll_s)
            long_polls.extend(request, wait_s + self._config.request_timeout_s)
            with self._waiting_slot():
                newest = await self._next(newest, wait_s)
            # The key may have been revoked during the wait.
            await self._authenticate(request.headers.get("authorization"))
        if newest in known:
            return web.Response(status=304, headers=_headers(newest))
        packed = await self._pack(asked.since, newest)
        headers = _headers(packed.revision)
        accepted = request.headers.get("accept-encoding", "gzip")
        if "gzip" in accepted and not _WITHOUT_GZIP.search(accepted):
            headers["content-encoding"] = "gzip"
            return web.Response(body=packed.content, content_type="application/json", headers=headers)
        plain = await self._in_thread(functools.partial(gzip.decompress, packed.content))
        return web.Response(body=plain, content_type="application/json", headers=headers)

    async def _next(self, newest: Revision, wait_s: float) -> Revision:
        """Return a later revision as soon as there is one, or `newest` after `wait_s`.

        Raise Refused with 503 if the revision cannot be read, or the server stops.
        """
        later = self._later.setdefault(newest, asyncio.get_running_loop().create_future())
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())
        await asyncio.wait({later}, timeout=wait_s)
        found = later.result() if later.done() else newest
        if found is None:
            why = "the server is stopping" if self._is_ending else "the registry cannot be read now"
            raise problems.unavailable(f"{why}, so the wait for a change has ended: try again")
        return found

    async def _watch(self) -> None:
        """Query the newest revision for all waiting readers, while there are any."""
        try:
            while self._waiting and not self._is_ending:
                await asyncio.sleep(ASK_EVERY_S)
                newest: Revision = await self._in_thread(self._newest)
                # The result may be lower than a reader's revision: the query began before the reader learned of that revision.
                for known in [known for known in self._later if known < newest]:
                    self._later.pop(known).set_result(newest)
        except errors.FanoutError as exc:
            log.warning(
                "the registry's newest revision cannot be read, so waiting readers of /v1/snapshot get 503, which asks them to "
                "try again: %s",
                exc,
            )
        finally:
            self._let_go()

    def _let_go(self) -> None:
        for later in self._later.values():
            later.set_result(None)
        self._later.clear()

    async def _pack(self, since: Revision | None, newest: Revision) -> CompressedAnswer:
        """Return the answer for a reader, built once for all readers with the same two arguments.

        `since` is the reader's revision. None: the answer has the whole registry.
        Raise Refused with 503 if the registry cannot be read.
        """
        reading = self._packed.get((since, newest))
        if reading is None or (reading.done() and reading.exception() is not None):
            reading = asyncio.create_task(self._read(since))
            self._packed[since, newest] = reading
        try:
            return await asyncio.shield(reading)  # a disconnected reader must not cancel the answer of the others
        except errors.FanoutError as exc:
            raise problems.from_error(exc) from exc

    async def _read(self, since: Revision | None) -> CompressedAnswer:
        packed: CompressedAnswer = await self._in_thread(functools.partial(self._read_and_pack, since))
        return packed

    def _read_and_pack(self, since: Revision | None) -> CompressedAnswer:
        with self._store.transaction(_OURSELVES, is_change=False) as connection:
            document = sealed_document.read(connection, since)
        return CompressedAnswer(document["revision"], gzip.compress(orjson.dumps(document), compresslevel=1, mtime=0))

    def _newest(self) -> Revision:
        with self._store.transaction(_OURSELVES, is_change=False) as connection:
            return registry_reader.revisions(connection).newest

    @contextlib.contextmanager
    def _waiting_slot(self) -> Iterator[None]:
        if self._waiting >= self._config.max_snapshot_polls:
            raise problems.unavailable("too many readers of the registry are waiting, so this one was refused: try again")
        self._waiting += 1
        try:
            with self._outside_in_flight():
                yield
        finally:
            self._waiting -= 1


def _headers(revision: Revision) -> dict[str, str]:
    # A weak tag, because gzip and plain answers share it.
    return {
        "etag": f'W/"{revision}"',
        "vary": "accept-encoding",
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
    }
