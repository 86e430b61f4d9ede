"""Tell readers of the registry, and let them wait for its next revision: one question to Postgres for all that wait.

Runs in the API, on its event loop. Who waits holds neither a connection nor a thread. While anybody does, one question each
half second looks for a later revision; what there is to tell is then read once for all that stand at the same revision.
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
from delivery.model import Revision
from subscriptions_db.api.contract import problems
from subscriptions_db.api.contract.principals import Principal, Scope
from subscriptions_db.api.contract.routes import Following
from subscriptions_db.api.server import long_polls, transactions
from subscriptions_db.snapshot import registry_reader, sealed_document

log = logging.getLogger(__name__)

ASK_EVERY_S = 0.5
MAX_KEPT = 16
"""Answers. Most readers stand at the newest revisions; a whole registry of 100,000 subscriptions has some megabytes."""
_TAG = re.compile(r'"(\d{1,19})"')
_OURSELVES = Principal("", None, Scope.EXECUTOR)
"""Reads for all of them: each may see all of it."""

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


class Packed(NamedTuple):
    """An answer, compressed."""

    revision: Revision
    content: bytes


class Followers:
    """The readers of the registry. Lives on the event loop."""

    def __init__(
        self,
        config: service_settings.Api,
        opened: transactions.Store,
        in_thread: InThread,
        who: long_polls.Who,
        aside: long_polls.Aside,
    ) -> None:
        self._config = config
        self._aside = aside
        self._store = opened
        self._in_thread = in_thread
        self._who = who
        self._packed: cachetools.LRUCache[tuple[Revision | None, Revision], asyncio.Task[Packed]] = cachetools.LRUCache(
            MAX_KEPT
        )
        self._later: dict[Revision, asyncio.Future[Revision | None]] = {}
        self._waiting = 0
        self._watching: asyncio.Task[None] | None = None
        self._is_ending = False

    async def end(self, _: web.Application) -> None:
        """Let all that wait be answered, that it is not known: the server stops."""
        self._is_ending = True
        self._let_go()

    async def answer(self, request: web.Request, asked: Following) -> web.Response:
        """Return what there is later than what the reader has, or that there is nothing, when its time is over."""
        known, newest = {int(tag) for tag in _TAG.findall(request.headers.get("if-none-match", ""))}, asked.newest
        if asked.wait_s and newest in known | {asked.since}:
            wait_s = min(asked.wait_s, self._config.max_poll_s)
            loop = asyncio.get_running_loop()
            request[long_polls.BOUND].reschedule(loop.time() + wait_s + self._config.request_timeout_s)
            with self._place():
                newest = await self._next(newest, wait_s)
            # Who may not come in any more is not answered because it came before.
            await self._who(request.headers.get("authorization"))
        if newest in known:
            return web.Response(status=304, headers=_headers(newest))
        packed = await self._pack(asked.since, newest)
        headers = _headers(packed.revision)
        if "gzip" in request.headers.get("accept-encoding", "gzip"):
            headers["content-encoding"] = "gzip"
            return web.Response(body=packed.content, content_type="application/json", headers=headers)
        plain = await self._in_thread(functools.partial(gzip.decompress, packed.content))
        return web.Response(body=plain, content_type="application/json", headers=headers)

    async def _next(self, newest: Revision, wait_s: float) -> Revision:
        """Return a later revision as soon as there is one, or this one when time is over; raise Refused if none is known."""
        later = self._later.setdefault(newest, asyncio.get_running_loop().create_future())
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())
        await asyncio.wait({later}, timeout=wait_s)
        found = later.result() if later.done() else newest
        if found is None:
            raise problems.unavailable("the registry cannot be reached now, or the server stops")
        return found

    async def _watch(self) -> None:
        """Ask for all that wait, as long as anybody does."""
        try:
            while self._waiting and not self._is_ending:
                await asyncio.sleep(ASK_EVERY_S)
                newest: Revision = await self._in_thread(self._newest)
                # Not one that is lower: it was asked for before who waits has learned of a later one.
                for known in [known for known in self._later if known < newest]:
                    self._later.pop(known).set_result(newest)
        except errors.FanoutError as exc:
            log.warning("the newest revision is not known: %s", exc)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        for later in self._later.values():
            later.set_result(None)
        self._later.clear()

    async def _pack(self, since: Revision | None, newest: Revision) -> Packed:
        """Return what is asked for, read once for all that ask for it at this revision, or a later one."""
        reading = self._packed.get((since, newest))
        if reading is None or (reading.done() and reading.exception() is not None):
            reading = asyncio.create_task(self._read(since))
            self._packed[since, newest] = reading
        try:
            return await asyncio.shield(reading)  # who goes away does not take it from the others
        except errors.FanoutError as exc:
            raise problems.of_error(exc) from exc

    async def _read(self, since: Revision | None) -> Packed:
        packed: Packed = await self._in_thread(functools.partial(self._read_and_pack, since))
        return packed

    def _read_and_pack(self, since: Revision | None) -> Packed:
        with self._store.transaction(_OURSELVES, is_change=False) as connection:
            document = sealed_document.read(connection, since)
        return Packed(document["revision"], gzip.compress(orjson.dumps(document), compresslevel=1, mtime=0))

    def _newest(self) -> Revision:
        with self._store.transaction(_OURSELVES, is_change=False) as connection:
            return registry_reader.revisions(connection).newest

    @contextlib.contextmanager
    def _place(self) -> Iterator[None]:
        if self._waiting >= self._config.max_snapshot_polls:
            raise problems.unavailable("too many readers of the registry are waiting")
        self._waiting += 1
        try:
            with self._aside():
                yield
        finally:
            self._waiting -= 1


def _headers(revision: Revision) -> dict[str, str]:
    # Weak: the same in two encodings.
    return {
        "etag": f'W/"{revision}"',
        "vary": "accept-encoding",
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
    }
