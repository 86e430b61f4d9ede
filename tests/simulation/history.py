"""One simulated history from a seed: the registry, what happens to it, and the promises that must hold at the end.

Safety: nothing is lost, nothing is sent that was not due, no limit is exceeded, no order is broken, whichever process dies.
Liveness: once all faults have stopped, every waiting delivery ends.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import math
import random
from collections.abc import Iterable

from delivery.model import Record
from delivery.registry_model import (
    AttemptedEndpoint,
    Batching,
    DeliveryMode,
    Endpoint,
    EndpointId,
    EndpointStatus,
    Retrying,
    Subscription,
)
from delivery.webhooks.policy import error_classes
from delivery.webhooks.routing.registry_snapshot import Snapshot
from tests.simulation import platform, shards, virtual, worker, world
from tests.support import builders

FAULTS_S = 600.0
"""Seconds with faults. Afterwards every endpoint is healthy."""
PATIENCE_S = 4 * 86_400.0
"""Seconds until everything must have ended: longer than any delivery may wait."""
UNDER_WAY_S = 60.0
"""Seconds that a lease and its last attempt may take."""
KEYS = 3
TENANTS = 2
CUSTOMERS = 7
OUTAGE_S = 90.0
ROUTED_S = OUTAGE_S + 2 * UNDER_WAY_S
"""Seconds until an event has been routed: the lanes pause during an outage of our own network."""
LANES = 2
"""Lanes that send to one endpoint: its fast lane and the retry lane. Each lane keeps the endpoint's limits by itself."""


class Violated(AssertionError):
    """A promise was broken. The text of the error names the promise."""


class History:
    """One simulated history. Its facts stay available after its end."""

    def __init__(self, seed: int, *, deaths: float = 0.05, events: int = 120) -> None:
        self.seed = seed
        self._rng = random.Random(seed)
        self._deaths = deaths
        # Our own network shows as broken only if many endpoints are in use at once.
        has_outage = self._rng.random() < 0.3
        endpoints, self._count = (80, events // 4) if has_outage else (20, events)
        self.registered = {f"ep{n}": self._endpoint(n) for n in range(endpoints)}
        self.world = world.World(
            {name: world.customer(endpoint, self._rng, faults_until=FAULTS_S) for name, endpoint in self.registered.items()},
            self._rng,
            [(since := self._rng.uniform(0, FAULTS_S - OUTAGE_S), since + OUTAGE_S)] if has_outage else [],
        )
        self._max_retry_records = self._rng.choice([None, None, 1, 2])
        self.disabled: list[tuple[float, str, str]] = []
        """Time, endpoint and reason of each case in which the platform disabled an endpoint."""
        self._tenant_deleted_at = math.inf
        """When the tenant with the highest number was deleted. Infinite: it was not."""
        self._unsubscribed: dict[str, float] = {}
        """Endpoint → when its subscription was deleted."""
        self._revision = 1
        self.due: set[tuple[str, str]] = set()
        self._published_at: dict[str, float] = {}

    def run(self) -> History:
        random.seed(self.seed)  # for code that takes no randomness as an argument
        try:
            virtual.run(self._live())
            self._check()
        except Exception as failure:
            failure.add_note(f"replay: python -m tests.simulation --seed {self.seed} --deaths {self._deaths}")
            raise
        return self

    async def _live(self) -> None:
        self.platform = platform.Platform(
            self.world,
            self._snapshot,
            self._disable,
            self._rng,
            deaths=self._deaths,
            max_retry_records=self._max_retry_records,
        )
        await platform.while_running(self.platform, self._happen())

    async def _happen(self) -> None:
        """Publish events and change the registry during the faults; then wait until everything has ended."""
        rng = self._rng
        publishing = asyncio.create_task(self._publish())
        while (now := asyncio.get_running_loop().time()) < FAULTS_S:
            await asyncio.sleep(min(rng.expovariate(1 / 40), FAULTS_S - now) + 0.001)
            name = rng.choice(list(self.registered))
            status = rng.choice([EndpointStatus.ACTIVE, EndpointStatus.ACTIVE, EndpointStatus.PAUSED, EndpointStatus.DISABLED])
            self._change(name, status)
            if rng.random() < 0.05:
                self._unsubscribed.setdefault(name, asyncio.get_running_loop().time())
            if rng.random() < 0.02:
                self._tenant_deleted_at = min(self._tenant_deleted_at, asyncio.get_running_loop().time())
                self._revision += 1
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
            at_ms = virtual.now_ms()
            value = b'{"id":"e%d","tenant_id":"t%d","key":%d}' % (number, number % TENANTS, number % KEYS)
            topic = "events.order.created"
            self.platform.publish(Record(topic=topic, partition=0, offset=number, appended_at_ms=at_ms, value=value))
            self.due |= {(f"e{number}", name) for name in self.registered}
            self._published_at[f"e{number}"] = asyncio.get_running_loop().time()

    def _change(self, name: str, status: EndpointStatus) -> None:
        self.registered[name] = dataclasses.replace(self.registered[name], status=status)
        self._revision += 1

    def _disable(self, attempted: Iterable[AttemptedEndpoint], reason: str) -> None:
        """Disable the endpoints that the platform wants to disable, and check that the platform has a reason."""
        now = asyncio.get_running_loop().time()
        for name, _ in attempted:
            if self.registered[name].status is not EndpointStatus.ACTIVE:
                continue  # reported late
            # A failure of long ago counts at the time when it is read, if the clock of its worker was fast.
            well_ms = (virtual.EPOCH_S + FAULTS_S + UNDER_WAY_S) * 1000
            may_be_old = reason == platform.FAILING and self.platform.oldest_read_ms.get(name, well_ms) < well_ms
            if now > FAULTS_S + UNDER_WAY_S and not may_be_old:
                raise Violated(f"{name} was disabled ({reason}) though all are well")
            if self.platform.network_health.is_broken and reason == platform.FAILING:
                raise Violated(f"{name} was disabled while our own network was broken")
            self.disabled.append((now, name, reason))
            self._change(name, EndpointStatus.DISABLED)
            customer = self.world.customers[name]
            if reason == error_classes.GONE and customer.gone_at < now - UNDER_WAY_S:
                raise Violated(f"{name} was disabled as gone, and has not said so")
            since = now - shards.POLICY.disable_after_s
            has_accepted = any(since < at <= now - UNDER_WAY_S for at, _ in customer.accepted)
            last = max((at for at, _ in customer.accepted if at <= now - UNDER_WAY_S), default=0.0)
            ours_s = self.world.cut_off_s(last, now) if self.platform.was_cut_off else 0.0
            own_s = now - last - ours_s
            if reason == platform.FAILING and own_s < shards.POLICY.disable_after_s and not self.platform.died:
                raise Violated(f"{name} was disabled for what failed while our own network was broken")
            if (
                reason == platform.FAILING and has_accepted and not self.platform.died
            ):  # otherwise only a worker that died may have known it
                raise Violated(f"{name} was disabled as failing, and has accepted something meanwhile")

    def _snapshot(self) -> Snapshot:
        subscriptions = (_subscription(name) for name in self.registered if name not in self._unsubscribed)
        is_deleted = asyncio.get_running_loop().time() >= self._tenant_deleted_at
        tenants = tuple(f"t{n}" for n in range(TENANTS - is_deleted))
        return builders.snapshot(*self.registered.values(), *subscriptions, revision=self._revision, tenants=tenants)

    def _endpoint(self, number: int) -> Endpoint:
        rng = self._rng
        schedule = rng.choice([(), (5.0, 60.0), Retrying().schedule_s])
        batching = Batching(max_events=rng.choice([1, 3, 20]), max_wait_s=rng.choice([0.5, 5.0, 60.0]))
        is_batch = rng.random() < 0.4
        return builders.endpoint(
            f"ep{number}",
            url=f"https://ep{number}.example/",
            customer_id=f"c{number % CUSTOMERS}",
            mode=DeliveryMode.BATCH if is_batch else DeliveryMode.DIRECT,
            batching=batching if is_batch else None,
            retrying=Retrying(schedule_s=schedule, max_age_s=rng.choice([300.0, 86_400.0, 259_200.0])),
            order_by="key" if rng.random() < 0.3 and not is_batch else None,
            max_in_flight=rng.choice([None, 1, 4]),
            max_per_second=rng.choice([None, None, 5.0]),
        )

    def _check(self) -> None:
        accepted = {name: [event_id for _, event_id in customer.accepted] for name, customer in self.world.customers.items()}
        delivered = {(event_id, name) for name, of in accepted.items() for event_id in of}
        dead = {(event_id, name) for event_id, name, _ in self.platform.dead_letters()}
        skipped = {(event_id, name) for event_id, name, _ in self.platform.skips()}
        # An event of about that time was due or not, depending on when it was routed.
        routed = {name: deleted_at - ROUTED_S for name, deleted_at in self._unsubscribed.items()}
        rejected = {f"e{offset}" for offset in self.platform.rejected()}
        lost = {
            (event_id, name)
            for event_id, name in self.due - delivered - dead - skipped
            if self._published_at[event_id] < routed.get(name, math.inf) and event_id not in rejected
        }
        if lost:
            raise Violated(f"lost: {sorted(lost)[:5]}")
        if delivered - self.due:
            raise Violated(f"sent and not due: {sorted(delivered - self.due)[:5]}")
        if not self.platform.died:
            twice = [
                (name, event_id) for name, of in accepted.items() for event_id, n in collections.Counter(of).items() if n > 1
            ]
            if twice or delivered & dead:
                raise Violated(f"ended twice though nothing died: {(twice or sorted(delivered & dead))[:5]}")
        if self.platform.repeated:
            raise Violated(f"a lane has ended twice what it had written: {sorted(self.platform.repeated)[:5]}")
        self._check_deletions(rejected)
        for name, customer in self.world.customers.items():
            self._check_limits(name, customer)
            if customer.endpoint.order_by is not None:
                given_up = {event_id for event_id, to in dead if to == name}
                self._check_order(name, [event_id for event_id in accepted[name] if event_id not in given_up])

    def _check_deletions(self, rejected: set[str]) -> None:
        """Check that only the deleted tenant's events are rejected, and that deletions take effect.

        UNDER_WAY_S after a deletion, no more deliveries of the subscription or the tenant are accepted.
        """
        of_deleted = {event_id for event_id in self._published_at if int(event_id[1:]) % TENANTS == TENANTS - 1}
        if rejected - of_deleted or (rejected and self._tenant_deleted_at == math.inf):
            raise Violated(f"rejected: {sorted(rejected - of_deleted)[:5]}")
        for name, customer in self.world.customers.items():
            deleted_at = self._unsubscribed.get(name, math.inf)
            if any(at > deleted_at + UNDER_WAY_S for at, _ in customer.accepted):
                raise Violated(f"{name}: something was sent long after its subscription was deleted")
            sent = [event_id for at, event_id in customer.accepted if at > self._tenant_deleted_at + UNDER_WAY_S]
            if of_deleted.intersection(sent):
                raise Violated(f"{name}: something of a tenant was sent long after its deletion")

    def _check_limits(self, name: str, customer: world.Customer) -> None:
        endpoint = customer.endpoint
        if customer.largest > (endpoint.batching.max_events if endpoint.batching else 1):
            raise Violated(f"{name}: {customer.largest} events in one request")
        bound = endpoint.max_in_flight or worker.LIMITS.max_in_flight_per_endpoint
        if customer.most_under_way > bound * LANES and not self.platform.died:
            raise Violated(f"{name}: {customer.most_under_way} requests in flight, {bound} allowed for each lane")
        rate = endpoint.max_per_second
        if rate is not None and customer.most_in_a_second > math.ceil(rate) * LANES and not self.platform.died:
            raise Violated(f"{name}: {customer.most_in_a_second} requests in a second, {rate} allowed for each lane")

    def _check_order(self, name: str, accepted: list[str]) -> None:
        """Check that no event of a key arrives for the first time after a later one.

        The caller leaves out events that were given up. An event that was given up does not hold back later
        events, and after the death of a worker its repetition may still be accepted.
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
