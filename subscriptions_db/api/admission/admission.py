"""Authenticate the key or token of a request, or a receiver that permits deliveries. Limit the rate, and check the scope.

Runs in the API, on its event loop. Principals of keys are cached for seconds, so most requests need no key look-up in
Postgres. Tokens are those of the OpenID Connect provider (subscriptions_db/api/oidc). All tokens of one subject share one rate,
as the requests of one key do.
"""

from __future__ import annotations

import datetime as dt
import functools
import hashlib
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

import cachetools
from aiohttp import web

from delivery.webhooks.scheduling import limits
from subscriptions_db import server_bounds
from subscriptions_db.api.contract import keys, problems
from subscriptions_db.api.contract.principals import Principal, Scope
from subscriptions_db.api.contract.routes import Route
from subscriptions_db.api.oidc.tokens import TokenVerifier

MAX_CACHED_KEYS = 10_000
"""Maximum entries of each cache of API keys in one process."""
BURST_SHARE = 0.2
"""Share of the requests per second that a key may send at once; the other requests are spread over the second."""
MAX_CPU_SHARE = 0.5
"""Share of a core that the checks of one key's events may take. A check took 10 to 25 us for a KiB of usual events, and 180 us
for a KiB of nested arrays. If only the KiB counted, such arrays of one key could take 1.8 s of each second."""
MAX_UNKNOWN_KEYS_PER_S = 500.0
"""Look-ups a second of keys that this process has not authenticated before, all together. Each look-up takes a connection to
Postgres, and an attacker can send any number of invented keys. After a process starts, each key counts as unknown once."""
MAX_UNKNOWN_TOKENS_PER_S = 200.0
"""Tokens a second that this process verifies, all together. A verification takes 0.1 ms of CPU, and an attacker can send any
number of invented tokens. A token that is still cached (oidc/tokens.py) does not count."""
BEARER = "bearer "
MALFORMED_KEY = "the text after Bearer does not have the form of a key: send the whole key, as it was shown (fk_…)"
"""Detail of the answer 401 to a text that does not have the form of a key, if no provider of tokens is set."""
BYTES_PER_REQUEST = 4096
"""Bytes of a body that count as one further request in the rate of a key. A change of a subscription with a body of 400 kB and
30,000 tenants takes Postgres 1.7 s, and one with a small body some milliseconds."""
CALLBACK = "callback"
"""The key id of callbacks: requests by which receivers permit deliveries, with a token in place of an API key. The audit log
and the rate limit use this id."""
ReadKey = Callable[[str], Awaitable[Mapping[str, Any] | None]]
"""Return the stored row of a key id; None if there is no such key. Raise Refused with 503 if Postgres is unavailable."""


class KeyRate(NamedTuple):
    """The limits that count the requests of a key or token, and the time at which the key expires.

    `room` returns the state of the limit that would refuse first.
    """

    paces: tuple[limits.Pace, ...]
    """The limits that count the request. A request that publishes counts in two limits: in one as a request, in the other with
    its events."""
    clock: Callable[[], float]
    expires_at: dt.datetime | None
    rooms_of_tenants: tuple[Callable[[], limits.Room], ...] = ()
    """Functions, one for each limit of tenants, such as the daily quota. A function returns the state of its limit for one
    tenant: the tenant of the request that may publish the fewest events. Empty: no limit of tenants counts for the request."""

    def room(self) -> limits.Room:
        """Return the state of the limit that refuses first, if each further request counts one in every limit."""
        now = self.clock()
        return limits.least_room([*(pace.room(now) for pace in self.paces), *(room() for room in self.rooms_of_tenants)])


KEY_RATE: web.RequestKey[KeyRate] = web.RequestKey("key_rate", KeyRate)
"""The name under which aiohttp's request object keeps the KeyRate of its API key or token. Missing until the key or token is
known to be valid."""


def noted_by(request: web.Request) -> Callable[[KeyRate], None]:
    """Return a function that stores a KeyRate, of the API key or token, in `request`. `key_headers` reads it there."""
    return functools.partial(request.__setitem__, KEY_RATE)


def note_tenants(request: web.Request, rooms: Iterable[Callable[[], limits.Room]]) -> None:
    """Store the limits of an admitted request's tenants in the request, beside the rate of its key."""
    request[KEY_RATE] = request[KEY_RATE]._replace(rooms_of_tenants=tuple(rooms))


def key_headers(request: web.Request) -> dict[str, str]:
    """Return the headers about the request's key or token; empty if none is known to be valid.

    `ratelimit-limit`, `ratelimit-remaining` and `ratelimit-reset` have the three fields of `KeyRate.room` (limits.Room).
    `fanout-key-expires-at` has the expiry of a key that expires within keys.EXPIRES_SOON.
    """
    rate = request.get(KEY_RATE)
    if rate is None:
        return {}
    room = rate.room()
    return {
        "ratelimit-limit": str(room.limit),
        "ratelimit-remaining": str(room.remaining),
        "ratelimit-reset": str(math.ceil(room.full_in_s)),
    } | _expiry_header(rate.expires_at)


def _expiry_header(expires_at: dt.datetime | None) -> dict[str, str]:
    if expires_at is None or keys.state(expires_at, None, dt.datetime.now(dt.UTC)) is keys.KeyState.ACTIVE:
        return {}
    return {"fanout-key-expires-at": keys.shown_expiry(expires_at)}


class EventCharge:
    """The number of events for which a publishing request counts in the rate of its key.

    The number is the largest of three: the events, the KiB of the body, and the CPU time of the checks converted to events.
    While the key is over its rate, `Admission.admit` refuses its further publishing requests with 429.
    """

    def __init__(self, pace: limits.Pace, clock: Callable[[], float]) -> None:
        self._pace = pace
        self._clock = clock
        self._counted = 1

    def events(self, count: int) -> None:
        """Let the request count as at least `count` events."""
        if count > self._counted:
            self._pace.consume(self._clock(), count - self._counted)
            self._counted = count

    def body(self, size: int) -> None:
        """Let the request count as at least one event for each KiB of its body, which has `size` bytes."""
        self.events(math.ceil(size / 1024))

    def cpu(self, seconds: float) -> None:
        """Let the request count as at least the events that the key's rate permits in `seconds` / MAX_CPU_SHARE.

        `seconds` is the CPU time of the checks. So the checks of one key's events take at most about the share MAX_CPU_SHARE
        of a core.
        """
        self.events(math.ceil(seconds / MAX_CPU_SHARE * self._pace.per_second))


class Admission:
    """Admit requests by their API keys and tokens, and remember valid keys for seconds. Lives on the event loop."""

    def __init__(
        self,
        read_key: ReadKey,
        *,
        max_per_s: float,
        max_events_per_s: float = 10_000,
        max_publishing_requests_per_s: float = 500,
        clock: Callable[[], float] = time.monotonic,
        on_use: Callable[[Principal], None] = lambda _: None,
        tokens: TokenVerifier | None = None,
        cache_s: float = server_bounds.DEFAULT.key_cache_s,
        max_unknown_keys_per_s: float = MAX_UNKNOWN_KEYS_PER_S,
    ) -> None:
        """`on_use` is called with the principal of each valid key that is read from Postgres.

        A key in use is read about once in `cache_s` seconds, because the cache keeps its principal for so long.

        `tokens` verifies tokens. None: every token is refused.
        """
        self._read_key = read_key
        self._tokens = tokens
        self._unknown_tokens = limits.Pace(MAX_UNKNOWN_TOKENS_PER_S, BURST_SHARE)
        self._on_use = on_use
        self._max_per_s = max_per_s
        self._max_events_per_s = max_events_per_s
        self._max_publishing_requests_per_s = max_publishing_requests_per_s
        self._clock = clock
        self._known: cachetools.TTLCache[bytes, Principal] = cachetools.TTLCache(MAX_CACHED_KEYS, cache_s, timer=clock)
        self._paces: cachetools.LRUCache[str, limits.Pace] = cachetools.LRUCache(MAX_CACHED_KEYS)
        self._event_paces: cachetools.LRUCache[str, limits.Pace] = cachetools.LRUCache(MAX_CACHED_KEYS)
        self._publishing_paces: cachetools.LRUCache[str, limits.Pace] = cachetools.LRUCache(MAX_CACHED_KEYS)
        self._unknown_keys = limits.Pace(max_unknown_keys_per_s, BURST_SHARE)
        self._known_once: cachetools.LRUCache[bytes, None] = cachetools.LRUCache(MAX_CACHED_KEYS)
        """Digests of keys that were valid when this process last read them."""

    async def admit(
        self, authorization: str | None, route: Route, note: Callable[[KeyRate], None] = lambda _: None
    ) -> Principal:
        """Return the principal of a request, and count the request in the rate of its key or token.

        Raise Refused:

        * 401: the key or token is missing or not valid.
        * 403: the scope does not allow the route, or the token has no scope.
        * 429: the key or token is over its rate, or there are too many unknown keys or tokens.
        * 503: the key or token cannot be checked.

        `note` is called with the rate of the key or token once `authenticate` has returned, also if the request is refused
        after that.
        """
        principal = await self.authenticate(authorization)
        if route.handler is None and principal.scope in route.scopes:
            per_s = self._max_publishing_requests_per_s
            requests = self._publishing_paces.setdefault(principal.key_id, limits.Pace(per_s, BURST_SHARE))
            events = self._event_pace(principal.key_id)
            note(KeyRate((requests, events), self._clock, principal.expires_at))
            self._spend(requests, f"more than {per_s:g} requests a second that publish events with one key; send batches")
            self._spend(events, f"more than {self._max_events_per_s:g} events a second with one key")
        else:
            note(KeyRate((self._pace(principal.key_id),), self._clock, principal.expires_at))
            self.pace(principal.key_id, route.cost)
        if principal.scope not in route.scopes:
            raise problems.Refused(403, f"scope {principal.scope} does not allow this: use a key or token of another scope")
        return principal

    async def admit_receiver(self, read_customer: Callable[[], Awaitable[str | None]]) -> Principal:
        """Return the principal of a receiver that answers a question for permission to deliver.

        Raise Refused:

        * 404: the question is not open.
        * 429: all receivers together send too many callbacks.
        * 503: Postgres is unavailable.

        `read_customer` returns the customer whose receiver was asked. None: the question is not open.
        """
        self.pace(CALLBACK)
        customer_id = await read_customer()
        if customer_id is None:
            raise problems.question_closed()
        return Principal(CALLBACK, customer_id, Scope.CUSTOMER_ADMIN)

    async def authenticate(self, authorization: str | None) -> Principal:
        """Return the principal of a key or token, from the cache if it is there.

        Raise Refused:

        * 401: the key or token is missing or not valid.
        * 403: the token is valid and gives no scope.
        * 429: there were too many unknown keys or tokens.
        * 503: Postgres or the provider of tokens is unavailable.
        """
        text = authorization[len(BEARER) :].strip() if authorization and authorization.lower().startswith(BEARER) else ""
        key_id = keys.key_id_of(text)
        if key_id is None and text and self._tokens is not None:
            return self._tokens.known(text) or await self._of_unknown_token(text, self._tokens)
        if key_id is None:
            raise _unauthenticated(MALFORMED_KEY if text else "send the header Authorization: Bearer fk_…")
        digest = hashlib.sha256(text.encode()).digest()
        known = self._known.get(digest)
        if known is None:
            if digest not in self._known_once:
                self._spend(self._unknown_keys, "too many requests with unknown keys")
            known = keys.authenticate(await self._read_key(key_id), text, dt.datetime.now(dt.UTC))
            if known is None:
                self._known_once.pop(digest, None)
                raise _unauthenticated("the key is unknown, revoked or expired: send another one")
            self._known[digest], self._known_once[digest] = known, None
            self._on_use(known)
        return known

    async def _of_unknown_token(self, text: str, tokens: TokenVerifier) -> Principal:
        self._spend(self._unknown_tokens, "too many requests with unknown tokens")
        return await tokens.verified(text)

    def pace(self, key_id: str, cost: int = 1) -> None:
        """Count `cost` requests of a key. If the key is over its rate, raise Refused with 429, and count nothing.

        The callbacks of all receivers together count as one key.
        """
        self._spend(
            self._pace(key_id),
            f"more than {self._max_per_s:g} requests a second with one key ({BYTES_PER_REQUEST} bytes of a body count as one)",
            cost,
        )

    def charge_body(self, key_id: str, size: int, *, charged: int = 0) -> None:
        """Let an admitted request of a key count as one further request for each BYTES_PER_REQUEST of its body.

        `size` is the number of bytes, of which the first `charged` bytes are counted already. The request is not refused: later
        requests of the key get 429 until its rate covers all.
        """
        further = size // BYTES_PER_REQUEST - charged // BYTES_PER_REQUEST
        if further > 0:
            self._pace(key_id).consume(self._clock(), further)

    def charge(self, key_id: str) -> EventCharge:
        """Return the charge of an admitted publishing request. `admit` has counted the first event of the request."""
        return EventCharge(self._event_pace(key_id), self._clock)

    def _pace(self, key_id: str) -> limits.Pace:
        return self._paces.setdefault(key_id, limits.Pace(self._max_per_s, BURST_SHARE))

    def _event_pace(self, key_id: str) -> limits.Pace:
        return self._event_paces.setdefault(key_id, limits.Pace(self._max_events_per_s, BURST_SHARE))

    def _spend(self, pace: limits.Pace, detail: str, cost: int = 1) -> None:
        wait_s = math.ceil(pace.wait_s(self._clock()))
        if wait_s > 0:
            raise problems.Refused(429, f"{detail}: try again in {wait_s} s", headers={"retry-after": str(wait_s)})
        pace.consume(self._clock(), cost)


def _unauthenticated(detail: str) -> problems.Refused:
    return problems.Refused(401, detail, headers={"www-authenticate": "Bearer"})
