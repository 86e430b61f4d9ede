"""Deliver turns of the retry lane, each by what the registry says of its endpoint now, and tell what came of them.

Runs in the executors, inside the worker's event loop. Must not import pyspark or psycopg. What is done with a turn and its
parcels is decided by delivery.webhooks.lanes.retry_lease; here is who waits for what.

One of these lives as long as its worker process. A micro-batch waits for its turns for a moment only: what an endpoint is still
thinking about goes on, and leaves with a later micro-batch of this process. Each parcel of a turn is attempted once at most, so
the dispatcher's quick retries and deadlines have nothing to do here. A turn ends soon in any case: the shard gives it up for
lost when it has heard nothing for `away_s`.
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
from delivery.webhooks.lanes.retry_lease import TurnUnderWay
from delivery.webhooks.policy import retry_decision
from delivery.webhooks.results import completed_work
from delivery.webhooks.results.results import Results
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.routing import registries, revalidation
from delivery.webhooks.scheduling import host_limits, limits, outage

log = logging.getLogger(__name__)

TURN_S = 30.0
"""So long after its turn began no attempt of it begins any more: a turn that ends no later than this and one timeout is never
given up for lost while it is under way."""
MAX_UNDER_WAY_BYTES = 64 * 1024 * 1024
"""Of turns that are under way in one worker. A turn beyond that comes back unattempted, unless others make room."""
PARCEL_BYTES = 2048
"""What a parcel takes in memory besides its events."""
_Flow = tuple[CustomerId, EndpointId, str | None]


class Sender(Protocol):
    """What is needed of the sender. See delivery.webhooks.sending.sender.Sender."""

    async def attempt(self, delivery: Sendable, number: int, timeout_s: float | None = None) -> Attempt: ...


class Ended(NamedTuple):
    """What came of turns that have ended."""

    results: Results
    reports: list[retry_messages.Report]


class RetryLane:
    """Deliver turns. Not safe between threads.

    `clock` is monotonic, in seconds; `now_s` gives seconds since the epoch. `paces` are those of the worker's other lanes too:
    an endpoint's rate is one. No registry is older than `registry_max_age_s`. Guarantee: each turn that is taken ends in one
    report that `take`, `settle` or `ended` returns, with the results of all its attempts, unless the process ends.
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
        self._rng = rng or random.Random()  # noqa: S311  # spreads waits
        self._slots = asyncio.Semaphore(bounds.max_in_flight)
        self._gates: weakref.WeakValueDictionary[tuple[EndpointId, int], asyncio.Semaphore] = weakref.WeakValueDictionary()
        self._under_way: dict[_Flow, tuple[TurnUnderWay, asyncio.Task[None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._begun: set[asyncio.Task[None]] = set()
        self._ended: list[TurnUnderWay] = []
        self._gone: set[EndpointId] = set()
        self._heard: dict[EndpointId, tuple[Endpoint, bool]] = {}
        """Endpoints of which an attempt told since `settle` was called, each with whether it was reached."""
        self._bytes = 0
        self._is_stuck = False
        self._stopping = asyncio.Event()
        self._in_flight = 0
        self._most_in_flight = 0

    def share(self, bounds: limits.Limits) -> None:
        """Keep to the share of this worker by other bounds. A turn that is under way goes on by the former ones."""
        self._bounds = bounds

    @property
    def is_busy(self) -> bool:
        """Whether a turn is under way. May be asked in any thread."""
        return bool(self._tasks)

    async def take(
        self,
        turns: Iterable[bytes],
        registry: registries.Registry,
        settle_s: float,
        ended: completed_work.CompletedKeys = frozenset(),
    ) -> Ended:
        """Begin to deliver turns, as the shards wrote them; return what has ended meanwhile, of these and of those before.

        Where their micro-batch runs again, a turn that is under way already goes on as it is, and what has `ended` by the
        journal is left out: of a turn that was reported all.
        """
        for written in turns:
            turn = retry_messages.lease(written)
            if turn.number and completed_work.key_of_lease(turn.endpoint_id, turn.number, len(turn.entries)) in ended:
                continue
            known, task = self._under_way.get(_flow(turn), (None, None))
            if turn.number and known is not None and known.turn.number == turn.number:
                if task is not None:
                    self._begun.add(task)
                continue
            has_room = not turn.number or await self._has_room(turn, settle_s)
            tenants = revalidation.tenant_ids(itertools.chain.from_iterable(waits.packed for waits in turn.entries))
            revision = registry.revision  # before: what is in effect only afterwards may have no part in it
            to = await registry.destination(turn.endpoint_id, tenants)
            one = TurnUnderWay(turn, to, self._clock() + TURN_S, revision, self._registry_max_age_s, ended)
            if not turn.number:
                one.begin(self._now_ms())
                self._ended.append(one)
            elif has_room:
                if known is not None:
                    known.stop()  # its shard has given it up for lost, and the same parcels are in this one
                task = asyncio.create_task(self._carry(one))
                self._under_way[_flow(turn)] = one, task
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                self._begun.add(task)
            else:
                one.turn_away(self._now_ms())
                self._ended.append(one)
            await asyncio.sleep(0)
        return self._told()

    async def wait(self, wait_s: float) -> bool:
        """Wait for the turns taken since `settle` was called, no longer than `wait_s`; return whether they have ended."""
        return not self._begun or not (await asyncio.wait(self._begun, timeout=wait_s))[1]

    async def settle(self, wait_s: float) -> Ended:
        """Wait for the turns taken since the last call, no longer than `wait_s`; return what has ended."""
        await self.wait(wait_s)
        self._begun, self._is_stuck = set(), False
        told = self._told()
        told.results.reach, self._heard = outage.reach(self._heard.values()), {}
        return told

    def ended(self) -> Ended | None:
        """Return what has ended since anything was told; None: nothing has. Waits for nothing."""
        accepted = any(one.accepted.outcomes or one.accepted.batches for one, _ in self._under_way.values())
        return self._told() if self._ended or self._gone or accepted else None

    def stop(self) -> None:
        """Begin no more attempts of what is under way; what is not attempted comes back. Called in the loop, at its end."""
        self._stopping.set()
        for one, _ in self._under_way.values():
            one.stop()

    async def close(self) -> None:
        """Break off what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _told(self) -> Ended:
        told = Ended(Results(most_in_flight=self._most_in_flight, gone=frozenset(self._gone)), [])
        self._gone.clear()
        for one in self._ended:
            told.results.outcomes += one.results.outcomes
            told.results.batches += one.results.batches
            told.results.rejections += one.results.rejections
            if one.turn.number:
                told.reports.append(one.report(self._now_ms()))
                self._forget(one)
        # What was accepted is told before its turn has ended, to be known should this process be killed.
        for one in (*self._ended, *(one for one, _ in self._under_way.values())):
            accepted, one.accepted = one.accepted, Results()
            told.results.outcomes += accepted.outcomes
            told.results.batches += accepted.batches
        self._ended, self._most_in_flight = [], self._in_flight
        return told

    async def _has_room(self, turn: retry_messages.Lease, settle_s: float) -> bool:
        """Wait until there is room in memory, as long as turns end; False when none has for `settle_s`, once in a task."""
        while self._bytes and self._bytes + _weight(turn) > MAX_UNDER_WAY_BYTES:
            if self._is_stuck:
                return False
            ended, _ = await asyncio.wait(self._tasks, timeout=settle_s, return_when=asyncio.FIRST_COMPLETED)
            self._is_stuck = not ended
        return True

    def _forget(self, one: TurnUnderWay) -> None:
        flow = _flow(one.turn)
        if flow in self._under_way and self._under_way[flow][0] is one:
            del self._under_way[flow]

    async def _carry(self, one: TurnUnderWay) -> None:
        """Take a turn to its end."""
        weight = _weight(one.turn)
        self._bytes += weight
        try:
            one.begin(self._now_ms())
            if one.waiting:
                await self._attempt_all(one)
            one.end(self._now_ms())
            self._ended.append(one)
        except Exception:
            # A surprise in one turn must hurt that turn alone. Its shard gives it up for lost and lets it leave again.
            log.exception("a turn failed in an unforeseen way", extra={"endpoint_id": one.turn.endpoint_id})
            self._forget(one)
        finally:
            self._bytes -= weight

    async def _attempt_all(self, one: TurnUnderWay) -> None:
        """Attempt what waits: as many at once as the endpoint takes, or one after the other where there is an order."""
        bound = self._bounds.in_flight_to(one.endpoint)
        key = (one.turn.endpoint_id, bound)
        gate = self._gates.get(key)
        if gate is None:
            gate = self._gates[key] = asyncio.Semaphore(bound)
        pace = self._bounds.pace_to(one.endpoint, self._paces)
        host = self._hosts.of(one.endpoint.url)
        runners = 1 if one.turn.order_key is not None else min(bound, len(one.waiting))
        async with asyncio.TaskGroup() as together:
            for _ in range(runners):
                together.create_task(self._run(one, gate, pace, host))

    async def _run(
        self, one: TurnUnderWay, gate: asyncio.Semaphore, pace: limits.Pace | None, host: host_limits.Host | None
    ) -> None:
        """Attempt one parcel after another. A parcel that waits for a pace or for its host holds no slot of the worker."""
        while one.waiting:
            async with gate, self._slots:
                now = self._clock()
                if now > one.until or not one.waiting:
                    return
                wait_s = 0.0 if pace is None else pace.wait_s(now)
                if not wait_s and host is not None and not host.has_room:
                    host.delayed()
                    wait_s = host_limits.ASK_AGAIN_S
                if not wait_s:
                    if pace is not None:
                        pace.take(now)
                    place = one.waiting.popleft()
                    with self._counted(host):
                        await self._attempt(one, place)
                    continue
            if now + wait_s > one.until:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait_s)

    @contextlib.contextmanager
    def _counted(self, host: host_limits.Host | None) -> Iterator[None]:
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

    async def _attempt(self, one: TurnUnderWay, place: int) -> None:
        try:
            made = one.made(place)
            if made is None:
                return
            attempt = await self._sender.attempt(made.delivery, made.number, made.timeout_s)
            self._hear(one, one.turn.entries[place], attempt)
            one.answered(made, attempt, now_ms=self._now_ms(), rng=self._rng)
        except Exception as fault:  # noqa: BLE001  # a surprise in one parcel must hurt that parcel alone
            one.put_off(place, fault, self._now_ms())

    def _hear(self, one: TurnUnderWay, waits: retry_messages.RetryEntry, attempt: Attempt) -> None:
        """Take note of what the attempt says beside how it ended.

        What comes here has failed before. So it is no news that there is no way to an endpoint that was failing, or to which
        there was none the last time; else ten dead ones, asked in a micro-batch that has nothing else to do, would make all
        lanes hold.
        """
        name, error_class = one.turn.endpoint_id, attempt.error_class
        if error_class == retry_decision.GONE:
            self._gone.add(name)
        if error_class is None or attempt.status is not None:
            self._heard[name] = one.endpoint, True
        elif error_class in outage.NO_WAY_THERE and not one.turn.is_probe and waits.reason not in outage.NO_WAY_THERE:
            self._heard.setdefault(name, (one.endpoint, False))

    def _now_ms(self) -> int:
        return int(self._now_s() * 1000)


def _flow(turn: retry_messages.Lease) -> _Flow:
    return (turn.customer_id, turn.endpoint_id, turn.order_key)


def _weight(turn: retry_messages.Lease) -> int:
    return sum(waits.size + PARCEL_BYTES for waits in turn.entries)
