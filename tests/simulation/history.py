"""One simulated history, made from a seed: who is registered, what happens to them, and what must hold at the end.

Safety: nothing is lost, nothing is sent that was not due, no limit is passed, no order is broken, whatever dies meanwhile.
Liveness: once all faults have stopped, everything that waits ends.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import math
import random

from delivery.model import Endpoint, EndpointId, EndpointStatus, Record, Retrying, Subscription
from delivery.webhooks.snapshot import Snapshot
from tests import builders
from tests.simulation import platform, virtual, world

FAULTS_S = 600.0
"""For so long there are faults; then all are well."""
PATIENCE_S = 4 * 86_400.0
"""By then everything must have ended: longer than any delivery may wait."""
UNDER_WAY_S = 60.0
"""So long what has begun may go on: a turn, and an attempt at its end."""
KEYS = 3
LANES = 2
"""Each has a worker of its own, and an endpoint's limits are kept in each."""


class Violated(AssertionError):
    """A promise was broken. Says which."""


class History:
    """A run. Its facts are there for whoever asks, when it has ended."""

    def __init__(self, seed: int, *, deaths: float = 0.05, endpoints: int = 6, events: int = 300) -> None:
        self.seed = seed
        self._rng = random.Random(seed)
        self._count = events
        self._deaths = deaths
        self.registered = {f"ep{n}": self._endpoint(n) for n in range(endpoints)}
        self.world = world.World(
            {name: world.customer(one, self._rng, faults_until=FAULTS_S) for name, one in self.registered.items()}, self._rng
        )
        self._unsubscribed: dict[str, float] = {}
        """When the subscription of an endpoint was deleted."""
        self._revision = 1
        self.due: set[tuple[str, str]] = set()
        self._published_at: dict[str, float] = {}

    def run(self) -> History:
        random.seed(self.seed)  # who takes no randomness as an argument takes this
        try:
            virtual.run(self._live())
            self._check()
        except Exception as failure:
            failure.add_note(f"replay: python -m tests.simulation --seed {self.seed} --deaths {self._deaths}")
            raise
        return self

    async def _live(self) -> None:
        self.platform = platform.Platform(self.world, self._snapshot, self._rng, deaths=self._deaths)
        await platform.while_running(self.platform, self._happen())

    async def _happen(self) -> None:
        """Publish, and change the registry, for as long as there are faults; then wait until all has ended."""
        rng = self._rng
        publishing = asyncio.create_task(self._publish())
        while (now := asyncio.get_running_loop().time()) < FAULTS_S:
            await asyncio.sleep(min(rng.expovariate(1 / 40), FAULTS_S - now) + 0.001)
            name = rng.choice(list(self.registered))
            status = rng.choice([EndpointStatus.ACTIVE, EndpointStatus.ACTIVE, EndpointStatus.PAUSED, EndpointStatus.DISABLED])
            self._change(name, status)
            if rng.random() < 0.05:
                self._unsubscribed.setdefault(name, asyncio.get_running_loop().time())
        await publishing
        for name in self.registered:
            self._change(name, EndpointStatus.ACTIVE)
        self.platform.deaths = 0.0
        while not self.platform.is_done:
            if asyncio.get_running_loop().time() > PATIENCE_S:
                raise Violated("something waits for ever")
            await asyncio.sleep(60)
        self.lasted_s = asyncio.get_running_loop().time()

    async def _publish(self) -> None:
        for number in range(self._count):
            await asyncio.sleep(self._rng.expovariate(self._count / FAULTS_S) if self._rng.random() < 0.2 else 0.0)
            at_ms = platform.now_ms()
            value = b'{"id":"e%d","tenant_id":"t1","key":%d}' % (number, number % KEYS)
            topic = "events.order.created"
            self.platform.publish(Record(topic=topic, partition=0, offset=number, appended_at_ms=at_ms, value=value))
            self.due |= {(f"e{number}", name) for name in self.registered}
            self._published_at[f"e{number}"] = asyncio.get_running_loop().time()

    def _change(self, name: str, status: EndpointStatus) -> None:
        self.registered[name] = dataclasses.replace(self.registered[name], status=status)
        self._revision += 1

    def _snapshot(self) -> Snapshot:
        subscriptions = (_subscription(name) for name in self.registered if name not in self._unsubscribed)
        return builders.snapshot(*self.registered.values(), *subscriptions, revision=self._revision)

    def _endpoint(self, number: int) -> Endpoint:
        rng = self._rng
        schedule = rng.choice([(), (5.0, 60.0), Retrying().schedule_s])
        return builders.endpoint(
            f"ep{number}",
            retrying=Retrying(schedule_s=schedule, max_age_s=rng.choice([300.0, 86_400.0, 259_200.0])),
            order_by="key" if rng.random() < 0.3 else None,
            max_in_flight=rng.choice([None, 1, 4]),
            max_per_second=rng.choice([None, None, 5.0]),
        )

    def _check(self) -> None:
        accepted = {name: [event_id for _, event_id in one.accepted] for name, one in self.world.customers.items()}
        delivered = {(event_id, name) for name, of in accepted.items() for event_id in of}
        dead = {(event_id, name) for event_id, name, _ in self.platform.dead_letters()}
        skipped = {(event_id, name) for event_id, name, _ in self.platform.skips()}
        # An event of about that time was due or not, by when it was routed.
        routed = {name: deleted_at - UNDER_WAY_S for name, deleted_at in self._unsubscribed.items()}
        lost = {
            (event_id, name)
            for event_id, name in self.due - delivered - dead - skipped
            if self._published_at[event_id] < routed.get(name, math.inf)
        }
        if lost:
            raise Violated(f"lost: {sorted(lost)[:5]}")
        if delivered - self.due:
            raise Violated(f"sent and not due: {sorted(delivered - self.due)[:5]}")
        if not self.platform.died:
            twice = [(name, one) for name, of in accepted.items() for one, n in collections.Counter(of).items() if n > 1]
            if twice or delivered & dead:
                raise Violated(f"ended twice though nothing died: {(twice or sorted(delivered & dead))[:5]}")
        for name, deleted_at in self._unsubscribed.items():
            if any(at > deleted_at + UNDER_WAY_S for at, _ in self.world.customers[name].accepted):
                raise Violated(f"{name}: something was sent long after its subscription was deleted")
        for name, one in self.world.customers.items():
            self._check_limits(name, one)
            if one.endpoint.order_by is not None:
                given_up = {event_id for event_id, to in dead if to == name}
                self._check_order(name, [event_id for event_id in accepted[name] if event_id not in given_up])

    def _check_limits(self, name: str, one: world.Customer) -> None:
        endpoint = one.endpoint
        bound = endpoint.max_in_flight or platform.LIMITS.max_in_flight_per_endpoint
        if one.most_under_way > bound * LANES and not self.platform.died:
            raise Violated(f"{name}: {one.most_under_way} requests under way, {bound} allowed for each lane")
        rate = endpoint.max_per_second
        if rate is not None and one.most_in_a_second > math.ceil(rate) * LANES and not self.platform.died:
            raise Violated(f"{name}: {one.most_in_a_second} requests in a second, {rate} allowed for each lane")

    def _check_order(self, name: str, accepted: list[str]) -> None:
        """Of each key, an event must not come for the first time after a later one has.

        What was given up does not keep the later ones waiting; a repeat of it, after a death, may still be accepted.
        """
        newest: dict[int, int] = {}
        seen: set[int] = set()
        for number in (int(event_id[1:]) for event_id in accepted):
            if number not in seen and number < newest.get(number % KEYS, -1):
                raise Violated(f"{name}: event e{number} came after a later one of its key")
            seen.add(number)
            newest[number % KEYS] = max(number, newest.get(number % KEYS, -1))


def _subscription(name: str) -> Subscription:
    return builders.subscription(f"s-{name}", endpoint_id=EndpointId(name))
