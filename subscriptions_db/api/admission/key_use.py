"""Record when API keys were last used, and warn in the log before they expire.

Runs in the API, on its event loop. No request waits for the write: the uses of many keys are written together, in a transaction
of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

import cachetools
from aiohttp import web

from delivery import errors
from subscriptions_db.api.contract import keys
from subscriptions_db.api.contract.principals import Principal

log = logging.getLogger(__name__)

MAX_KEYS = 10_000
"""Maximum keys that one process remembers. With more keys in use, a key's use may be written again before
`keys.NOTE_USE_EVERY_S` is over, and a warning logged again before WARN_EVERY_S is over."""
WARN_EVERY_S = 86_400.0
"""Seconds between two warnings about one key in the log of one process."""
WRITE_AFTER_S = 1.0
"""Seconds in which uses are collected before they are written."""
RENEW = (
    "the key works until then: give its owner a new key (`fanout api-keys create`), then revoke this one (`fanout api-keys "
    "revoke`)"
)
"""The field `advice` of the warning about a key that expires soon."""

Write = Callable[[Sequence[str]], Awaitable[None]]
"""Store the present time as the last use of the keys with these ids; raise FanoutError if Postgres is unavailable."""


class KeyUse:
    """Collect the uses of keys, write them to Postgres, and warn about keys that expire soon. Lives on the event loop."""

    def __init__(
        self, write: Write, *, clock: Callable[[], float] = time.monotonic, write_after_s: float = WRITE_AFTER_S
    ) -> None:
        self._write = write
        self._write_after_s = write_after_s
        self._noted: cachetools.TTLCache[str, None] = cachetools.TTLCache(MAX_KEYS, keys.NOTE_USE_EVERY_S, timer=clock)
        self._warned: cachetools.TTLCache[str, None] = cachetools.TTLCache(MAX_KEYS, WARN_EVERY_S, timer=clock)
        self._pending: set[str] = set()
        self._writing: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()

    def note(self, principal: Principal) -> None:
        """Record the use of a key, and warn if the key expires soon.

        A background task writes the use. In one process, a key has at most one write in `keys.NOTE_USE_EVERY_S`, and one
        warning in WARN_EVERY_S. There may be more if a write fails, or if more than MAX_KEYS keys are in use.
        """
        key_id = principal.key_id
        if key_id not in self._warned and _expires_soon(principal.expires_at):
            self._warned[key_id] = None
            log.warning(
                "api.key_expires_soon",
                extra={"key_id": key_id, "expires_at": str(principal.expires_at), "advice": RENEW},
            )
        if key_id in self._noted:
            return
        self._noted[key_id] = None
        self._pending.add(key_id)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_pending())

    async def end(self, _: web.Application) -> None:
        """Write the pending uses at once, because the server stops."""
        self._ending.set()
        if self._writing is not None:
            await self._writing

    async def _write_pending(self) -> None:
        """Collect uses for `write_after_s` seconds, or until `end`, and write them together; repeat while uses are pending.

        Uses that cannot be written are forgotten, so the next use of the same key is written.
        """
        while self._pending:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), self._write_after_s)
            key_ids, self._pending = sorted(self._pending), set()
            try:
                await self._write(key_ids)
            except errors.FanoutError as exc:
                log.info(
                    "the last use of API keys (%d) could not be stored: %s. The keys work as before. Their next use is stored "
                    "again when this is repaired",
                    len(key_ids),
                    exc,
                )
                for key_id in key_ids:
                    self._noted.pop(key_id, None)


def _expires_soon(expires_at: dt.datetime | None) -> bool:
    return keys.state(expires_at, None, dt.datetime.now(dt.UTC)) is not keys.KeyState.ACTIVE
