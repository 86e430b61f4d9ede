"""Deliver leases of the retry lane by the current registry, and report their results.

A lease is a set of retry entries that a shard gives to a worker for a limited time. A shard is one key of the lane's state in
Spark, with the retry entries of some endpoints. A RetryLane lives as long as its worker process. A micro-batch waits for its
leases for a moment only. Attempts that take longer continue, and their results leave with a later task of this process, of any
lane. The attempts of a lease end before its shard considers the lease expired (`ShardPolicy.lease_timeout_s`).

This module decides which leases are delivered, and when their results leave. For one lease:
* delivery.webhooks.leases.lease_triage decides what happens to each entry.
* delivery.webhooks.leases.lease_runner decides when an entry is attempted.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import logging
import random
from collections.abc import Callable, Iterable
from typing import NamedTuple

from delivery.webhooks.leases import lease_book, lease_runner, lease_triage, memory_budget
from delivery.webhooks.leases.lease_in_flight import LeaseInFlight
from delivery.webhooks.results import completed_work
from delivery.webhooks.results.task_results import Results
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.routing import registries, revalidation
from delivery.webhooks.scheduling import host_limits, limits

log = logging.getLogger(__name__)

LEASE_S = 30.0
"""Seconds after the start of a lease in which its attempts may begin. So a lease ends at the latest LEASE_S plus the timeout of
one attempt after its start. Own delay (time in which the worker waits for CPU or memory) extends this timeout. The shard's
lease timeout is longer still, so a lease never expires while one of its attempts is in flight."""


class LeaseResults(NamedTuple):
    """Results and reports of leases. A report tells the lease's shard which entries have ended and which wait again."""

    results: Results
    reports: list[retry_messages.Report]


class _Course(enum.Enum):
    """The next step for a lease that a task brings to the worker."""

    KNOWN = enum.auto()
    """An earlier run of the micro-batch has reported the lease, or has it in flight."""
    GIVEN_UP = enum.auto()
    """The shard has given up the lease's entries. They end without an attempt: as dead letters, skipped or rejected. The shard
    gets no report about the lease."""
    REFUSED = enum.auto()
    """The worker has no memory for the lease. The entries are requeued without an attempt."""
    DELIVERED = enum.auto()
    """The worker attempts the lease's entries, except those that the registry lets wait or end without an attempt."""


class RetryLane:
    """Deliver the leases that one worker gets: sets of retry entries. All methods run in the worker's event loop.

    `clock` is monotonic, in seconds; `now_s` returns seconds since the epoch. `paces` (token buckets of endpoints) and
    `known_hosts` (hosts with their limits and requests in flight) are shared with the worker's other lanes. The registry that
    `start` gets lacks no change that is older than `registry_max_age_s`. Guarantee: each lease whose `given_up` is None ends in
    one report. `start`, `finish_task` or `drain` returns the report, with or after the results of all attempts of the lease.
    There is no report if the process ends, or if an unforeseen error ends the lease: the lease then expires.
    """

    def __init__(
        self,
        sender: lease_runner.LeaseSender,
        bounds: limits.Limits,
        *,
        paces: limits.Paces,
        known_hosts: host_limits.Hosts,
        clock: Callable[[], float],
        now_s: Callable[[], float],
        registry_max_age_s: float = 3600.0,
        max_in_flight_bytes: int = memory_budget.MAX_IN_FLIGHT_BYTES,
        rng: random.Random | None = None,
    ) -> None:
        self._clock = clock
        self._now_s = now_s
        self._registry_max_age_s = registry_max_age_s
        self._runner = lease_runner.LeaseRunner(
            sender,
            bounds,
            paces=paces,
            known_hosts=known_hosts,
            clock=clock,
            now_ms=self._now_ms,
            rng=rng or random.Random(),  # noqa: S311  # spreads entries
        )
        self._book = lease_book.LeaseBook()
        self._memory = memory_budget.MemoryBudget(max_bytes=max_in_flight_bytes)

    def set_bounds(self, bounds: limits.Limits) -> None:
        """Replace the limits of endpoints by this worker's share of `bounds`. Leases in flight keep their limits."""
        self._runner.set_bounds(bounds)

    def follow(self, registry: registries.Registry) -> None:
        """Check leases in flight by `registry` from now on. The worker's newest task, of any lane, brought this registry.

        A lease begins no further attempt if its endpoint differs in `registry`, or has to be looked up again. The lease's
        entries without an attempt are requeued. A registry that works by look-ups may have no current answer about a tenant.
        The lease then treats the tenant as deleted only if the last answer that the lease used said so. A lease ignores a
        `registry` that is older than the registry with which it began.
        """
        self._runner.follow(registry)

    @property
    def is_busy(self) -> bool:
        """Return True if a lease is in flight. Thread-safe."""
        return self._book.is_busy

    async def start(
        self,
        leases: Iterable[bytes],
        registry: registries.Registry,
        settle_s: float,
        ended: completed_work.CompletedKeys = frozenset(),
    ) -> LeaseResults:
        """Begin to deliver leases in the shards' encoding; return all leases' results that no call has returned before.

        While there is no memory for a lease, wait at most `settle_s` each time for the end of another lease. If none ends in
        this time, requeue the lease's entries without an attempt. Then no later lease of the task waits for memory: the entries
        of each later lease without memory are requeued at once. When a micro-batch runs again:
        1. A lease that is still in flight continues unchanged.
        2. A lease that was reported (in `ended`) is left out.
        3. Deliveries that were accepted (in `ended`) are left out.
        """
        self.follow(registry)
        for written in leases:
            lease = retry_messages.lease(written)
            course = await self._classify(lease, settle_s, ended)
            if course is not _Course.KNOWN:
                self._start(await self._look_up(lease, registry, ended), course)
                await asyncio.sleep(0)
        return self._drain()

    async def wait_for_leases(self, wait_s: float) -> bool:
        """Wait at most `wait_s` for the leases that `start` got since the last `finish_task`; return True if all have ended."""
        return await self._book.wait(wait_s)

    async def finish_task(self, wait_s: float) -> LeaseResults:
        """Wait at most `wait_s` for the leases that `start` got since the last call of `finish_task`.

        Return all leases' results that no call has returned before. A lease that has not ended continues: its accepted
        deliveries are returned now, and its other results by a later call. The results include the destinations that responded,
        or were unreachable, and the endpoints that failed, since the last call of `finish_task`.
        """
        await self._book.wait(wait_s)
        self._book.finish_task()
        self._memory.finish_task()
        drained = self._drain()
        drained.results.reach = self._runner.observations.drain_reachability()
        drained.results.failed = self._runner.observations.drain_failed()
        return drained

    def drain(self) -> LeaseResults | None:
        """Return the results since the last call of `start`, `finish_task` or `drain`, without waiting.

        Return None if, since then, no lease has ended, no delivery was accepted, and no endpoint responded with 410.
        """
        has_accepted = any(lease.report.has_accepted for lease in self._book.in_flight())
        return self._drain() if self._book.has_ended or self._runner.observations.has_gone or has_accepted else None

    def stop(self) -> None:
        """Begin no more attempts, and requeue the entries that were not attempted. Called in the loop, when the worker ends."""
        self._runner.stop()
        self._book.stop()

    async def close(self) -> None:
        """Cancel all attempts in flight."""
        await self._book.close()

    async def _classify(self, lease: retry_messages.Lease, settle_s: float, ended: completed_work.CompletedKeys) -> _Course:
        """Return the next step for a lease: KNOWN, GIVEN_UP, or by the memory of the worker DELIVERED or REFUSED.

        While the leases in flight leave no memory for this lease, wait until any of them ends, at most `settle_s` each time. If
        none ends in time, return REFUSED. Then each later lease of the task that finds no memory is REFUSED at once.
        """
        if not lease.number:
            return _Course.GIVEN_UP
        key = completed_work.key_of_lease(lease.endpoint_id, lease.number, len(lease.entries))
        if key in ended or self._book.rejoin(lease):
            return _Course.KNOWN
        if self._memory.has_room(lease) or await self._memory.wait_for_room(lease, lambda: self._book.wait_for_any(settle_s)):
            return _Course.DELIVERED
        return _Course.REFUSED

    async def _look_up(
        self, lease: retry_messages.Lease, registry: registries.Registry, ended: completed_work.CompletedKeys
    ) -> LeaseInFlight:
        """Return the lease with the rows that the registry has for its endpoint, subscriptions and tenants.

        An event is skipped if one of its rows is missing. Missing rows are therefore looked up again, without the cache. A
        cached answer may lack newer rows, for example if it is older than a failover of Postgres that lost commits.
        """
        tenants = revalidation.tenant_ids(itertools.chain.from_iterable(entry.packed for entry in lease.entries))
        # Read first: a change that takes effect during the look-up may be missing in `destination`.
        revision = registry.revision
        destination = await registry.destination(lease.endpoint_id, tenants)
        if lease_triage.lacks_rows(lease, destination):
            destination = await registry.destination(lease.endpoint_id, tenants, read_again=True)
        view = lease_triage.RegistryView(destination, revision, self._registry_max_age_s)
        return LeaseInFlight(lease, view, until=self._clock() + LEASE_S, ended=ended, tenants=tenants)

    def _start(self, lease: LeaseInFlight, course: _Course) -> None:
        """Start a lease by its `course`.

        1. DELIVERED: begin to attempt its entries.
        2. REFUSED: requeue all entries.
        3. GIVEN_UP: end all entries without an attempt.
        """
        if course is _Course.DELIVERED:
            self._book.begin(lease, self._deliver(lease))
            return
        if course is _Course.REFUSED:
            lease.refuse(self._now_ms())
        else:
            lease.begin(self._now_ms())
        self._book.end(lease)

    async def _deliver(self, lease: LeaseInFlight) -> None:
        """Triage a lease, attempt its entries, and record its end. After an unforeseen error the lease expires instead."""
        weight = self._memory.reserve(lease.message)
        try:
            lease.begin(self._now_ms())
            if lease.waiting:
                await self._runner.attempt_all(lease)
            lease.finish(self._now_ms())
            self._book.end(lease)
        except Exception:
            # An unforeseen error in one lease must not affect other leases. The lease expires, and its shard leases the entries
            # again.
            log.exception(
                "an unforeseen error in one lease, a set of retry entries of this endpoint: the lease expires, and its entries "
                "are attempted again. Send this traceback to the maintainers of the platform",
                extra={"endpoint_id": lease.message.endpoint_id},
            )
            self._book.forget(lease)
        finally:
            self._memory.release(weight)

    def _drain(self) -> LeaseResults:
        observations = self._runner.observations
        results = Results(most_in_flight=self._runner.drain_most_in_flight(), gone=observations.drain_gone())
        drained, ended = LeaseResults(results, []), self._book.drain_ended()
        for lease in ended:
            results.outcomes += lease.report.results.outcomes
            results.batches += lease.report.results.batches
            results.rejections += lease.report.results.rejections
            if lease.message.number:
                drained.reports.append(lease.report.build(self._now_ms()))
                self._book.forget(lease)
        # Accepted deliveries leave before their lease has ended, so that they are known if this process is killed.
        for lease in (*ended, *self._book.in_flight()):
            lease.report.move_accepted(results)
        return drained

    def _now_ms(self) -> int:
        return int(self._now_s() * 1000)
