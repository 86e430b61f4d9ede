"""Deliver leases of the retry lane by the current registry, and report their results.

delivery.webhooks.lanes.retry_lease decides what happens to each entry of a lease. This module decides when an entry is
attempted.

A RetryLane lives as long as its worker process. A micro-batch waits for its leases for a moment only. Attempts that take longer
go on, and their results leave with a later micro-batch of this process. Each entry of a lease is attempted at most once, so the
dispatcher's quick retries and timeouts do not apply. Each lease ends before its shard considers it expired (`lease_timeout_s`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from delivery.model import Attempt, CustomerId, Endpoint, EndpointId, Sendable
from delivery.webhooks.lanes.retry_lease import LeaseInFlight
from delivery.webhooks.policy import error_classes
from delivery.webhooks.results import completed_work
from delivery.webhooks.results.results import Results
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.routing import registries, revalidation
from delivery.webhooks.scheduling import host_limits, limits, outage

log = logging.getLogger(__name__)

LEASE_S = 30.0
"""Seconds. No attempt of a lease begins later than this after its start. So a lease ends after at most this and one timeout,
and never expires while an attempt is in flight."""
MAX_IN_FLIGHT_BYTES = 64 * 1024 * 1024
"""Bytes of leases in flight in one worker. A lease beyond this bound is requeued unattempted, unless others end in time."""
ENTRY_BYTES = 2048
"""Bytes of memory that an entry takes besides its events."""
_FifoId = tuple[CustomerId, EndpointId, str | None]


class Sender(Protocol):
    """Send one attempt. Implemented by delivery.webhooks.sending.sender.Sender."""

    async def attempt(self, delivery: Sendable, number: int, timeout_s: float | None = None) -> Attempt: ...


class LeaseResults(NamedTuple):
    """Results and reports of leases."""

    results: Results
    reports: list[retry_messages.Report]


class RetryLane:
    """Deliver leases. Not safe between threads.

    `clock` is monotonic, in seconds; `now_s` returns seconds since the epoch. `paces` are shared with the worker's other lanes.
    No registry is older than `registry_max_age_s`. Guarantee: each lease ends in one report, which `start`, `finish_task` or
    `drain` returns with the results of all its attempts, unless the process ends.
    """

    def __init__(
        self,
        sender: Sender,
        bounds: limits.Limits,
        *,
        paces: limits.Paces,
        known_hosts: host_limits.Hosts,
        clock: Callable[[], float],
        now_s: Callable[[], float],
        registry_max_age_s: float = 3600.0,
        rng: random.Random | None = None,
    ) -> None:
        self._sender = sender
        self._bounds = bounds
        self._paces = paces
        self._hosts = known_hosts
        self._clock = clock
        self._now_s = now_s
        self._registry_max_age_s = registry_max_age_s
        self._rng = rng or random.Random()  # noqa: S311  # spreads entry
        self._slots = asyncio.Semaphore(bounds.max_in_flight)
        self._endpoint_slots: weakref.WeakValueDictionary[tuple[EndpointId, int], asyncio.Semaphore] = (
            weakref.WeakValueDictionary()
        )
        self._leases: dict[_FifoId, tuple[LeaseInFlight, asyncio.Task[None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._awaited: set[asyncio.Task[None]] = set()
        self._ended: list[LeaseInFlight] = []
        self._gone: set[EndpointId] = set()
        self._responded: dict[EndpointId, tuple[Endpoint, bool]] = {}
        """Endpoints with an attempt since the last `finish_task`, and whether the endpoint responded."""
        self._bytes = 0
        self._is_full = False
        self._stopping = asyncio.Event()
        self._in_flight = 0
        self._most_in_flight = 0

    def set_bounds(self, bounds: limits.Limits) -> None:
        """Replace the limits by this worker's share of `bounds`. A lease in flight keeps the former ones."""
        self._bounds = bounds

    @property
    def is_busy(self) -> bool:
        """Return True if a lease is in flight. Thread-safe."""
        return bool(self._tasks)

    async def start(
        self,
        leases: Iterable[bytes],
        registry: registries.Registry,
        settle_s: float,
        ended: completed_work.CompletedKeys = frozenset(),
    ) -> LeaseResults:
        """Begin to deliver leases in the shards' encoding; return the results so far, also of earlier leases.

        When a micro-batch runs again:
        1. A lease that is still in flight goes on unchanged.
        2. A lease that was reported (in `ended`) is left out.
        3. Deliveries that were accepted (in `ended`) are left out.
        """
        for written in leases:
            lease = retry_messages.lease(written)
            if not self._is_known(lease, ended):
                await self._start(lease, registry, settle_s, ended)
                await asyncio.sleep(0)
        return self._drain()

    def _is_known(self, lease: retry_messages.Lease, ended: completed_work.CompletedKeys) -> bool:
        """Return True if an earlier run of the micro-batch has reported the lease, or has it in flight."""
        if not lease.number:  # given up: it has no report
            return False
        if completed_work.key_of_lease(lease.endpoint_id, lease.number, len(lease.entries)) in ended:
            return True
        known, task = self._leases.get(_fifo_id(lease), (None, None))
        if known is None or task is None or known.lease.number != lease.number:
            return False
        self._awaited.add(task)
        return True

    async def _start(
        self,
        lease: retry_messages.Lease,
        registry: registries.Registry,
        settle_s: float,
        ended: completed_work.CompletedKeys,
    ) -> None:
        """Look up the destination of a lease; then deliver the lease, or end it at once.

        1. The lease is given up: its entries become dead letters.
        2. There is no memory for it: its entries are requeued.
        3. Otherwise it is delivered.
        """
        has_room = not lease.number or await self._has_room(lease, settle_s)
        tenants = revalidation.tenant_ids(itertools.chain.from_iterable(entry.packed for entry in lease.entries))
        # Read first: a change that takes effect during the look-up may not be in the destination.
        revision = registry.revision
        to = await registry.destination(lease.endpoint_id, tenants)
        one = LeaseInFlight(lease, to, self._clock() + LEASE_S, revision, self._registry_max_age_s, ended)
        if lease.number and has_room:
            self._begin(one)
            return
        if lease.number:
            one.refuse(self._now_ms())
        else:
            one.begin(self._now_ms())
        self._ended.append(one)

    def _begin(self, one: LeaseInFlight) -> None:
        expired, _ = self._leases.get(_fifo_id(one.lease), (None, None))
        if expired is not None:
            expired.stop()  # the same entries are in the new lease
        task = asyncio.create_task(self._deliver(one))
        self._leases[_fifo_id(one.lease)] = one, task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._awaited.add(task)

    async def wait_for_leases(self, wait_s: float) -> bool:
        """Wait at most `wait_s` for the leases begun since the last `finish_task`; return True if all have ended."""
        return not self._awaited or not (await asyncio.wait(self._awaited, timeout=wait_s))[1]

    async def finish_task(self, wait_s: float) -> LeaseResults:
        """Wait at most `wait_s` for the leases begun since the last call; return the results."""
        await self.wait_for_leases(wait_s)
        self._awaited, self._is_full = set(), False
        drained = self._drain()
        drained.results.reach, self._responded = outage.reachability(self._responded.values()), {}
        return drained

    def drain(self) -> LeaseResults | None:
        """Return the results since the last call of any method, or None. Does not wait."""
        accepted = any(one.accepted.outcomes or one.accepted.batches for one, _ in self._leases.values())
        return self._drain() if self._ended or self._gone or accepted else None

    def stop(self) -> None:
        """Begin no further attempts, and requeue the entries without one. Called in the loop, when the worker ends."""
        self._stopping.set()
        for one, _ in self._leases.values():
            one.stop()

    async def close(self) -> None:
        """Cancel all attempts in flight."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _drain(self) -> LeaseResults:
        drained = LeaseResults(Results(most_in_flight=self._most_in_flight, gone=frozenset(self._gone)), [])
        self._gone.clear()
        for one in self._ended:
            drained.results.outcomes += one.results.outcomes
            drained.results.batches += one.results.batches
            drained.results.rejections += one.results.rejections
            if one.lease.number:
                drained.reports.append(one.report(self._now_ms()))
                self._forget(one)
        # Accepted deliveries leave before their lease has ended, so that they are known if this process is killed.
        for one in (*self._ended, *(one for one, _ in self._leases.values())):
            accepted, one.accepted = one.accepted, Results()
            drained.results.outcomes += accepted.outcomes
            drained.results.batches += accepted.batches
        self._ended, self._most_in_flight = [], self._in_flight
        return drained

    async def _has_room(self, lease: retry_messages.Lease, settle_s: float) -> bool:
        """Wait for memory as long as leases end. Return False if none ends within `settle_s`, which is waited once per task."""
        while self._bytes and self._bytes + _weight(lease) > MAX_IN_FLIGHT_BYTES:
            if self._is_full:
                return False
            ended, _ = await asyncio.wait(self._tasks, timeout=settle_s, return_when=asyncio.FIRST_COMPLETED)
            self._is_full = not ended
        return True

    def _forget(self, one: LeaseInFlight) -> None:
        fifo_id = _fifo_id(one.lease)
        if fifo_id in self._leases and self._leases[fifo_id][0] is one:
            del self._leases[fifo_id]

    async def _deliver(self, one: LeaseInFlight) -> None:
        """Deliver a lease to its end."""
        weight = _weight(one.lease)
        self._bytes += weight
        try:
            one.begin(self._now_ms())
            if one.waiting:
                await self._attempt_all(one)
            one.finish(self._now_ms())
            self._ended.append(one)
        except Exception:
            # An unforeseen error in one lease must not affect other leases. The lease expires, and its shard leases the entries
            # again.
            log.exception(
                "an unforeseen error in one lease; it expires, and its shard leases the entries again",
                extra={"endpoint_id": one.lease.endpoint_id},
            )
            self._forget(one)
        finally:
            self._bytes -= weight

    async def _attempt_all(self, one: LeaseInFlight) -> None:
        """Attempt all waiting entries: in parallel up to the endpoint's limit, or one after the other if they are ordered."""
        bound = self._bounds.in_flight_to(one.endpoint)
        key = (one.lease.endpoint_id, bound)
        endpoint_slots = self._endpoint_slots.get(key)
        if endpoint_slots is None:
            endpoint_slots = self._endpoint_slots[key] = asyncio.Semaphore(bound)
        pace = self._bounds.pace_to(one.endpoint, self._paces)
        host = self._hosts.host_of(one.endpoint.url)
        runners = 1 if one.lease.order_key is not None else min(bound, len(one.waiting))
        async with asyncio.TaskGroup() as together:
            for _ in range(runners):
                together.create_task(self._run(one, endpoint_slots, pace, host))

    async def _run(
        self, one: LeaseInFlight, endpoint_slots: asyncio.Semaphore, pace: limits.Pace | None, host: host_limits.Host | None
    ) -> None:
        """Attempt one entry after another. An entry that waits for its rate or host holds no slot of the worker."""
        while one.waiting:
            async with endpoint_slots, self._slots:
                now = self._clock()
                if now > one.until or not one.waiting:
                    return
                wait_s = 0.0 if pace is None else pace.wait_s(now)
                if not wait_s and host is not None and not host.has_room:
                    host.count_delay()
                    wait_s = host_limits.RECHECK_S
                if not wait_s:
                    if pace is not None:
                        pace.consume(now)
                    place = one.waiting.popleft()
                    with self._in_flight_at(host):
                        await self._attempt(one, place)
                    continue
            if now + wait_s > one.until:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait_s)

    @contextlib.contextmanager
    def _in_flight_at(self, host: host_limits.Host | None) -> Iterator[None]:
        self._in_flight += 1
        if host is not None:
            host.enter()
        self._most_in_flight = max(self._most_in_flight, self._in_flight)
        try:
            yield
        finally:
            self._in_flight -= 1
            if host is not None:
                host.leave()

    async def _attempt(self, one: LeaseInFlight, place: int) -> None:
        try:
            made = one.prepare(place)
            if made is None:
                return
            attempt = await self._sender.attempt(made.delivery, made.number, made.timeout_s)
            self._note_response(one, one.lease.entries[place], attempt)
            one.record_attempt(made, attempt, now_ms=self._now_ms(), rng=self._rng)
        except Exception as fault:  # noqa: BLE001  # an unforeseen error in one entry must not affect other entries
            one.defer_faulty(place, fault, self._now_ms())

    def _note_response(self, one: LeaseInFlight, entry: retry_messages.RetryEntry, attempt: Attempt) -> None:
        """Record what an attempt shows about the endpoint and our network.

        All entries here have failed before. So an unreachable endpoint counts only if it was reachable before: the lease is no
        probe, and the entry's last failure was another one. Otherwise ten dead endpoints in an idle micro-batch would pause all
        lanes.
        """
        name, error_class = one.lease.endpoint_id, attempt.error_class
        if error_class == error_classes.GONE:
            self._gone.add(name)
        if error_class is None or attempt.status is not None:
            self._responded[name] = one.endpoint, True
        elif (
            error_class in outage.UNREACHABLE_CLASSES
            and not one.lease.is_probe
            and entry.reason not in outage.UNREACHABLE_CLASSES
        ):
            self._responded.setdefault(name, (one.endpoint, False))

    def _now_ms(self) -> int:
        return int(self._now_s() * 1000)


def _fifo_id(lease: retry_messages.Lease) -> _FifoId:
    return (lease.customer_id, lease.endpoint_id, lease.order_key)


def _weight(lease: retry_messages.Lease) -> int:
    return sum(entry.size + ENTRY_BYTES for entry in lease.entries)
