"""The customers of a simulation. Their endpoints respond, fail, hang and recover by a seed, and remember all requests.

The customers check the platform's limits: each counts its requests in flight, and the requests of each second.
"""

from __future__ import annotations

import asyncio
import collections
import enum
import math
import random
from dataclasses import dataclass, field

import orjson

from delivery import errors
from delivery.registry_model import Endpoint
from delivery.webhooks.http import origin, transport


class Mood(enum.StrEnum):
    WELL = "well"
    SLOW = "slow"
    HANGS = "hangs"
    FAILS = "fails"
    FLAPS = "flaps"
    REFUSES_CONNECTIONS = "refuses_connections"
    THROTTLES = "throttles"
    REJECTS_SOME = "rejects_some"
    """Rejects some events of a batch."""
    REFUSES = "refuses"
    GONE = "gone"


@dataclass(slots=True)
class Customer:
    """One endpoint with its behaviour."""

    endpoint: Endpoint
    moods: list[tuple[float, Mood]]
    """Each mood with the time at which it ends. After the last mood the endpoint is healthy."""
    accepted: list[tuple[float, str]] = field(default_factory=list)
    """Time and id of each accepted event."""
    asked: int = 0
    under_way: int = 0
    most_under_way: int = 0
    gone_at: float = -math.inf
    """When the endpoint last responded 410 Gone."""
    largest: int = 0
    """Maximum of events in one request."""
    came_at: collections.deque[float] = field(default_factory=collections.deque)
    most_in_a_second: int = 0

    def mood(self, now: float) -> Mood:
        return next((mood for until, mood in self.moods if now < until), Mood.WELL)

    def come(self, now: float) -> None:
        self.asked += 1
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        self.came_at.append(now)
        while self.came_at[0] <= now - 0.999:  # a millisecond for the rounding of five times 0.2
            self.came_at.popleft()
        self.most_in_a_second = max(self.most_in_a_second, len(self.came_at))


class World:
    """All customers, as the transport of a sender. Requests take time on the running loop."""

    def __init__(self, customers: dict[str, Customer], rng: random.Random, outages: list[tuple[float, float]]) -> None:
        self.customers = customers
        self.outages = outages
        """Begin and end of each time without a connection to any endpoint."""
        self._rng = rng

    def is_cut_off(self, now: float) -> bool:
        return any(since <= now < until for since, until in self.outages)

    def cut_off_s(self, since: float, until: float) -> float:
        return sum(max(0.0, min(last, until) - max(first, since)) for first, last in self.outages)

    async def post(self, to: origin.Target, _: bytes, body: bytes, timeout_s: float) -> transport.Response:
        customer = self.customers[to.endpoint.endpoint_id]
        loop = asyncio.get_running_loop()
        if self.is_cut_off(loop.time()):
            raise errors.ConnectFailed("no way there")
        customer.come(loop.time())
        try:
            async with asyncio.timeout(timeout_s):
                return await self._answer(customer, customer.mood(loop.time()), body)
        except TimeoutError:
            raise errors.AttemptTimedOut("no answer in time") from None
        finally:
            customer.under_way -= 1

    async def _answer(self, customer: Customer, mood: Mood, body: bytes) -> transport.Response:
        rng = self._rng
        if mood is Mood.HANGS:
            await asyncio.sleep(3600)
        if mood is Mood.REFUSES_CONNECTIONS:
            raise errors.ConnectFailed("refused")
        await asyncio.sleep(rng.uniform(1.0, 6.0) if mood is Mood.SLOW else rng.uniform(0.001, 0.05))
        if mood is Mood.FAILS or (mood is Mood.FLAPS and rng.random() < 0.5):
            return transport.Response(500, (), b"")
        if mood is Mood.THROTTLES:
            return transport.Response(429, ((b"retry-after", b"%d" % rng.choice([0, 3, 90])),), b"")
        if mood is Mood.REFUSES:
            return transport.Response(404, (), b"")
        if mood is Mood.GONE:
            customer.gone_at = asyncio.get_running_loop().time()
            return transport.Response(410, (), b"")
        came = orjson.loads(body)
        events = came if isinstance(came, list) else [came]
        customer.largest = max(customer.largest, len(events))
        rejects = mood is Mood.REJECTS_SOME
        rejected = {place for place in range(len(events)) if rejects and rng.random() < 0.2}
        if rejected and events is not came:
            return transport.Response(422, (), b"no")
        for place, event in enumerate(events):
            if place not in rejected:
                customer.accepted.append((asyncio.get_running_loop().time(), event["id"]))
        return transport.Response(200, (), orjson.dumps({"rejected": [{"index": place} for place in sorted(rejected)]}))


def customer(endpoint: Endpoint, rng: random.Random, *, faults_until: float) -> Customer:
    """Return a customer whose moods change at random times until `faults_until`."""
    moods, now = [], 0.0
    while now < faults_until:
        now += rng.expovariate(1 / 60)
        moods.append((min(now, faults_until), rng.choice([Mood.WELL, *Mood])))
    return Customer(endpoint, moods)
