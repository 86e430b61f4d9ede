"""Decide who may come in: which key it is, whether it asks too often, whether the route is for it.

Runs in the API, on its event loop. What is known of a key is kept for some seconds, so that most requests ask Postgres once.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import cachetools

from delivery.webhooks.scheduling import limits
from subscriptions_db.api.contract import keys, problems
from subscriptions_db.api.contract.principals import Principal
from subscriptions_db.api.contract.routes import Route

KNOWN_FOR_S = 3.0
"""A key that was revoked is answered for so long at most; 5 s are promised."""
MAX_KNOWN = 10_000
BURST_SHARE = 0.2
MAX_STRANGERS_PER_S = 500.0
"""Keys that this process has never known are looked up so often a second, all together: each look-up takes a connection to
Postgres for a moment, and whoever makes keys up has no end of them. A process that starts knows none."""
BEARER = "bearer "

ReadKey = Callable[[str], Awaitable[Mapping[str, Any] | None]]


class Admission:
    """What this process remembers of the keys that asked."""

    def __init__(self, read_key: ReadKey, *, max_per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._read_key = read_key
        self._max_per_s = max_per_s
        self._clock = clock
        self._known: cachetools.TTLCache[bytes, Principal] = cachetools.TTLCache(MAX_KNOWN, KNOWN_FOR_S, timer=clock)
        self._paces: cachetools.LRUCache[str, limits.Pace] = cachetools.LRUCache(MAX_KNOWN)
        self._strangers = limits.Pace(MAX_STRANGERS_PER_S, BURST_SHARE)
        self._met: cachetools.LRUCache[bytes, None] = cachetools.LRUCache(MAX_KNOWN)
        """Keys that were known once, whatever has become of them."""

    async def admit(self, authorization: str | None, route: Route) -> Principal:
        """Return who asks; raise Refused with 401, 403 or 429."""
        principal = await self.who(authorization)
        self.pace(principal.key_id)
        if principal.scope not in route.scopes:
            raise problems.Refused(403, f"a key with the scope {principal.scope} may not do this")
        return principal

    async def who(self, authorization: str | None) -> Principal:
        """Return whose key it is; raise Refused with 401."""
        text = authorization[len(BEARER) :].strip() if authorization and authorization.lower().startswith(BEARER) else ""
        key_id = keys.id_of(text)
        if key_id is None:
            raise _unauthenticated("send the header Authorization: Bearer fk_…")
        digest = hashlib.sha256(text.encode()).digest()
        known = self._known.get(digest)
        if known is None:
            if digest not in self._met:
                self._take(self._strangers, "so many unknown keys are asked for")
            known = keys.recognise(await self._read_key(key_id), text, dt.datetime.now(dt.UTC))
            if known is None:
                raise _unauthenticated("the key is not known, or was revoked, or has expired")
            self._known[digest], self._met[digest] = known, None
        return known

    def pace(self, key_id: str) -> None:
        """Raise Refused with 429 when so much is asked with one key, or without one."""
        pace = self._paces.setdefault(key_id, limits.Pace(self._max_per_s, BURST_SHARE))
        self._take(pace, f"at most {self._max_per_s:g} requests a second are answered to one key")

    def _take(self, pace: limits.Pace, detail: str) -> None:
        wait_s = pace.wait_s(self._clock())
        if wait_s > 0:
            raise problems.Refused(429, detail, headers={"retry-after": str(math.ceil(wait_s))})
        pace.consume(self._clock())


def _unauthenticated(detail: str) -> problems.Refused:
    return problems.Refused(401, detail, headers={"www-authenticate": "Bearer"})
