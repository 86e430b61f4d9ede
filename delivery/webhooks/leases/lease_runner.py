"""Attempt the waiting entries of leases, within the limits of the worker, the endpoint and its host.

Each entry of a lease is attempted at most once. The quick retries, the response deadline and the queue timeout of the fast
lanes' dispatcher do not apply to leases.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import Callable
from typing import Protocol

from delivery.model import Attempt, Sendable
from delivery.registry_model import Endpoint, EndpointId, Revision
from delivery.webhooks.leases import endpoint_slots, worker_slots
from delivery.webhooks.leases.endpoint_observations import EndpointObservations
from delivery.webhooks.leases.lease_in_flight import LeaseInFlight
from delivery.webhooks.routing import registries
from delivery.webhooks.scheduling import host_limits, limits

MAX_RATE_WAIT_S = 30.0
"""Longest wait, in seconds, of entries that are requeued because the endpoint's rate allows no request before the lease ends.
Equal to retry_lane.LEASE_S: a backlog with a low rate is leased about twice a minute, instead of in each micro-batch. A longer
wait could waste the share of another worker, which may get the next lease."""
CHECKS_PER_REQUEST = 4
"""Number of times that waiting entries are leased between two requests at the endpoint's full rate (the rate of all workers
together). Each lease may go to another worker, whose share of the rate is free. With 8 workers and a rate of 0.2 requests a
second, one lease for each request halved the rate."""


class LeaseSender(Protocol):
    """Send one attempt. Implemented by delivery.webhooks.sending.sender.Sender."""

    async def attempt(self, delivery: Sendable, number: int, timeout_s: float | None = None) -> Attempt: ...


class LeaseRunner:
    """Attempt the retry entries of all leases of one worker. Not thread-safe.

    `clock` is monotonic, in seconds; `now_ms` returns milliseconds since the epoch. `paces` (token buckets of endpoints) and
    `known_hosts` (hosts with their limits and requests in flight) are shared with the worker's other lanes.
    """

    def __init__(
        self,
        sender: LeaseSender,
        bounds: limits.Limits,
        *,
        paces: limits.Paces,
        known_hosts: host_limits.Hosts,
        clock: Callable[[], float],
        now_ms: Callable[[], int],
        rng: random.Random,
    ) -> None:
        self._sender = sender
        self._slots = worker_slots.WorkerSlots(bounds.max_in_flight)
        self._endpoint_slots = endpoint_slots.EndpointSlots(bounds, paces, known_hosts)
        self._clock = clock
        self._now_ms = now_ms
        self._rng = rng
        self._is_stopping = False
        self._idle: dict[LeaseInFlight, set[asyncio.Task[None]]] = {}
        """By lease: its runners that wait for the endpoint's rate, its host or its turn."""
        self._in_flight = self._most_in_flight = 0
        self.observations = EndpointObservations()
        self._registry: registries.Registry | None = None
        self._followed: Revision | None = None
        """The revision of `_registry` at the last call of `follow`. None: there was none."""

    def set_bounds(self, bounds: limits.Limits) -> None:
        """Replace the limits of endpoints by this worker's share of `bounds`. The limit over all endpoints stays.

        A lease in flight keeps the endpoint's limits with which it began.
        """
        self._endpoint_slots.set_bounds(bounds)

    def follow(self, registry: registries.Registry) -> None:
        """Let leases in flight follow `registry`. A lease that waits ends if it has to stop now (`LeaseInFlight.follow`)."""
        is_unchanged = registry is self._registry and registry.revision == self._followed
        self._registry, self._followed = registry, registry.revision
        for lease in () if is_unchanged else self._idle:
            self._follow_registry(lease)
            if lease.until < self._clock():
                self._cancel_idle(lease)

    def drain_most_in_flight(self) -> int:
        """Return the maximum of requests in flight at once since the last call."""
        most, self._most_in_flight = self._most_in_flight, self._in_flight
        return most

    def stop(self) -> None:
        """End all waits for a rate or a host, and let later calls of `attempt_all` do nothing.

        The caller must also stop the leases (`LeaseBook.stop`).
        """
        self._is_stopping = True
        for lease in self._idle:
            self._cancel_idle(lease)

    async def attempt_all(self, lease: LeaseInFlight) -> None:
        """Attempt the waiting entries: in parallel up to the endpoint's limit, or one after the other if the lease is ordered.

        Entries whose attempt cannot begin by `lease.until` stay in `lease.waiting`. All entries that still wait when the lease
        is stopped stay there too. Three examples of a stop:
        1. The lease's endpoint was changed.
        2. An attempt of an ordered lease failed.
        3. A response asked to wait (`Retry-After`): this stops all leases of the endpoint.

        If the endpoint's rate allows the next request only after `lease.until`, `lease.finish` requeues the entries. The
        entries then wait until the rate allows the request, but at most MAX_RATE_WAIT_S or `_recheck_s`, whichever is shorter.
        Another worker may get the next lease. If `stop` was called before, attempt nothing.
        """
        if self._is_stopping:
            return
        shared = self._endpoint_slots.limits_of(lease.endpoint)
        runners = 1 if lease.message.order_key is not None else min(shared.max_in_flight, len(lease.waiting))
        self._idle[lease] = set()
        try:
            async with asyncio.TaskGroup() as together:
                for _ in range(runners):
                    together.create_task(self._run(lease, shared))
        finally:
            del self._idle[lease]

    async def _run(self, lease: LeaseInFlight, shared: endpoint_slots.SharedLimits) -> None:
        """Attempt one entry after another. An entry that waits for the endpoint's rate or host holds no slot.

        A runner that finds no capacity takes the endpoint's turn (the lock `SharedLimits.turn`). With the turn, the runner
        waits for the rate, and then in the host's line. The wait for the host is counted once per entry, at the first check
        that finds the host full. The runner that takes the lease's last entry cancels the idle runners of the lease. A runner
        that gets no slot before the lease ends leaves its entry waiting.
        """
        runner = asyncio.current_task()
        assert runner is not None, "attempt_all runs this method as a task"  # noqa: S101
        has_turn = is_counted = is_called = False
        try:
            while lease.waiting:
                # Capacity of the host is not kept for a runner that has to wait for a slot: others can use it meanwhile.
                is_called = is_called and not shared.slots.locked() and self._slots.has_room(shared.endpoint_id)
                async with shared.slots, self._slots.slot(shared.endpoint_id, lease.until - self._clock()) as has_slot:
                    now = self._clock()
                    self._follow_registry(lease)
                    if not has_slot or now > lease.until or not lease.waiting:
                        return
                    wait_s = shared.rate_wait_s(now)
                    full = None if wait_s or is_called else shared.full_host()
                    is_called = False
                    if not wait_s and full is None:
                        shared.begin(now)
                        if has_turn:
                            shared.turn.release()
                        has_turn = is_counted = False
                        await self._attempt_next(lease, shared)
                        continue
                if now + max(wait_s, limits.ROUNDING_S) > lease.until:
                    # Entries that are due at once would be leased again in the next micro-batch, and requeued again.
                    lease.delay_rest(self._now_ms() + round(1000 * min(wait_s, _recheck_s(lease.endpoint), MAX_RATE_WAIT_S)))
                    return
                if len(self._idle[lease]) >= len(lease.waiting):
                    return  # a runner waits already for each entry that is left
                if full is not None and not is_counted:
                    is_counted = True
                    full.count_delay()
                self._idle[lease].add(runner)
                with contextlib.suppress(TimeoutError):
                    # The holder of the turn may have a lease that ends later than this one, and the host's line may be long.
                    async with asyncio.timeout(lease.until - now):
                        if has_turn:
                            is_called = await _wait_with_turn(shared.endpoint_id, full, wait_s)
                        else:
                            has_turn = await shared.turn.acquire()
                self._idle[lease].discard(runner)
        finally:
            if has_turn:
                shared.turn.release()

    def _follow_registry(self, lease: LeaseInFlight) -> None:
        """Let a lease follow the rows that the registry has now. The lease may have begun many seconds ago."""
        if self._registry is not None:
            rows = self._registry.rows_now(lease.message.endpoint_id, lease.tenants, lease.deleted_tenants)
            lease.follow(rows, self._registry.revision)

    def _stop_leases_of(self, endpoint_id: EndpointId) -> None:
        """Stop the leases of an endpoint whose response asked to wait. Their shard lets the entries wait (`Window`)."""
        for lease in self._idle:
            if lease.message.endpoint_id == endpoint_id:
                lease.stop()
                self._cancel_idle(lease)

    def _cancel_idle(self, lease: LeaseInFlight) -> None:
        """End the lease's runners that wait for the endpoint's rate, its host or its turn."""
        for runner in self._idle[lease]:
            runner.cancel()

    async def _attempt_next(self, lease: LeaseInFlight, shared: endpoint_slots.SharedLimits) -> None:
        """Attempt the first waiting entry, which `shared` counts already. If it is the last, cancel the idle runners."""
        self._in_flight += 1
        self._most_in_flight = max(self._most_in_flight, self._in_flight)
        place = lease.waiting.popleft()
        if not lease.waiting:
            self._cancel_idle(lease)
        try:
            await self._attempt(lease, place)
        finally:
            self._in_flight -= 1
            shared.end()

    async def _attempt(self, lease: LeaseInFlight, place: int) -> None:
        try:
            prepared = lease.prepare(place)
            if prepared is None:
                return
            attempt = await self._sender.attempt(prepared.delivery, prepared.number, prepared.timeout_s)
            self.observations.record(lease.message, lease.message.entries[place], lease.endpoint, attempt)
            lease.record_attempt(prepared, attempt, now_ms=self._now_ms(), rng=self._rng)
            if attempt.retry_after_s:
                self._stop_leases_of(lease.message.endpoint_id)
        except Exception as fault:  # noqa: BLE001  # an unforeseen error in one entry must not affect other entries
            lease.defer_faulty(place, fault, self._now_ms())


async def _wait_with_turn(endpoint_id: EndpointId, full: host_limits.Host | None, wait_s: float) -> bool:
    """Wait in the line of the host `full`, or `wait_s` for the endpoint's rate. Return True if the host has capacity then."""
    if full is not None:
        return await full.wait_for_room(endpoint_id)
    await asyncio.sleep(wait_s)
    return False


def _recheck_s(endpoint: Endpoint) -> float:
    """Return the seconds after which another worker may get the lease; infinity if the endpoint has no rate.

    The result is a fraction of the time between two requests of all workers (CHECKS_PER_REQUEST). A worker waits by its own
    share of the rate, while another worker may have its share free.
    """
    return math.inf if endpoint.max_per_second is None else 1 / (endpoint.max_per_second * CHECKS_PER_REQUEST)
