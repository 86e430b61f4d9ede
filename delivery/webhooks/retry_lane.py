"""Deliver turns of the retry lane, each by what the registry says of its endpoint now, and report what came of them.

Runs in the executors, inside the worker's event loop. Must not import pyspark or psycopg.

One of these lives as long as its worker process. A micro-batch waits for its turns for a moment only: what an endpoint is still
thinking about goes on, and leaves with a later micro-batch of this process. Each parcel of a turn is attempted once at most, so
the dispatcher's quick retries and deadlines have nothing to do here. A turn ends soon in any case: the shard gives it up for
lost when it has heard nothing for `away_s`.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import random
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from delivery import errors
from delivery.model import (
    Again,
    Attempt,
    CustomerId,
    Delivery,
    DeliveryMode,
    Endpoint,
    EndpointId,
    EndpointStatus,
    Outcome,
    OutcomeKind,
    Scope,
    Sendable,
    SkipReason,
    Subscription,
)
from delivery.webhooks import batch_message, circuit, intake, limits, message, parcel, parting, retry, routing, segment
from delivery.webhooks.batch_message import BatchDelivery
from delivery.webhooks.results import Results

log = logging.getLogger(__name__)

TURN_S = 30.0
"""So long after its turn began no attempt of it begins any more: a turn that ends no later than this and one timeout is never
given up for lost while it is under way."""
MAX_UNDER_WAY_BYTES = 64 * 1024 * 1024
"""Of turns that are under way in one worker. A turn beyond that comes back unattempted, unless others make room."""
PUT_OFF_S = 300.0
"""When a parcel is tried again that met a fault in our own code."""
PARCEL_BYTES = 2048
"""What a parcel takes in memory besides its events."""
_HOLDS = {EndpointStatus.PAUSED: retry.ENDPOINT_PAUSED, EndpointStatus.DISABLED: retry.ENDPOINT_DISABLED}
_REFUSED = frozenset({retry.REFUSED, retry.REDIRECT})
_Flow = tuple[CustomerId, EndpointId, str | None]


class Sender(Protocol):
    """What is needed of the sender. See delivery.webhooks.sender.Sender."""

    async def attempt(self, delivery: Sendable, number: int, timeout_s: float | None = None) -> Attempt: ...


class Ended(NamedTuple):
    """What came of turns that have ended."""

    results: Results
    reports: list[parcel.Report]


@dataclass(slots=True, eq=False)
class _UnderWay:
    """A turn, and what has come of it so far."""

    turn: parcel.Turn
    destination: routing.Destination
    until: float
    """No attempt begins after that."""
    waiting: collections.deque[int] = field(default_factory=collections.deque)
    """The places of the parcels that are still to be attempted."""
    back: list[parcel.Back] = field(default_factory=list)
    delivered: int = 0
    failed: int = 0
    refused: int = 0
    hold: str | None = None
    retry_after_s: float | None = None
    results: Results = field(default_factory=Results)
    task: asyncio.Task[None] | None = None

    @property
    def endpoint(self) -> Endpoint:
        assert self.destination.endpoint is not None, "what goes to no endpoint is skipped"  # noqa: S101
        return self.destination.endpoint

    def comes_back(self, place: int, again: Again, reason: str | None = None, attempts: tuple[Attempt, ...] = ()) -> None:
        kept = tuple(map(parcel.as_kept, attempts))
        self.back.append(parcel.Back(place, again, reason or self.turn.parcels[place].reason, kept))

    def report(self) -> parcel.Report:
        turn = self.turn
        return parcel.Report(
            endpoint_id=turn.endpoint_id,
            customer_id=turn.customer_id,
            order_key=turn.order_key,
            turn=turn.number,
            delivered=self.delivered,
            failed=self.failed,
            refused=self.refused,
            hold=self.hold,
            retry_after_s=self.retry_after_s,
            back=sorted(self.back, key=lambda back: back.place),
        )


class RetryLane:
    """Deliver turns. Not safe between threads.

    `clock` is monotonic, in seconds; `now_s` gives seconds since the epoch. `paces` are those of the worker's other lanes too:
    an endpoint's rate is one. Guarantee: each turn that is taken ends in one report that `take` or `settle` returns, with the
    results of all its attempts, unless the process ends.
    """

    def __init__(
        self,
        sender: Sender,
        bounds: limits.Limits,
        *,
        paces: limits.Paces,
        clock: Callable[[], float],
        now_s: Callable[[], float],
        rng: random.Random | None = None,
    ) -> None:
        self._sender = sender
        self._bounds = bounds
        self._paces = paces
        self._clock = clock
        self._now_s = now_s
        self._rng = rng or random.Random()  # noqa: S311  # spreads waits
        self._slots = asyncio.Semaphore(bounds.max_in_flight)
        self._gates: weakref.WeakValueDictionary[tuple[EndpointId, int], asyncio.Semaphore] = weakref.WeakValueDictionary()
        self._flows: dict[_Flow, _UnderWay] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._begun: set[asyncio.Task[None]] = set()
        self._ended: list[_UnderWay] = []
        self._gone: set[EndpointId] = set()
        self._bytes = 0
        self._is_stuck = False
        self._in_flight = 0
        self._most_in_flight = 0

    async def take(self, turns: Iterable[bytes], registry: routing.Registry, settle_s: float) -> Ended:
        """Begin to deliver turns, as the shards wrote them; return what has ended meanwhile, of these and of those before.

        A turn that is under way already, because its micro-batch runs again, goes on as it is.
        """
        for written in turns:
            turn = parcel.turn(written)
            known = self._flows.get(_flow(turn))
            if turn.number and known is not None and known.turn.number == turn.number:
                if known.task is not None:
                    self._begun.add(known.task)
                continue
            has_room = not turn.number or await self._has_room(turn, settle_s)
            begun = _UnderWay(turn, await registry.destination(turn.endpoint_id), self._clock() + TURN_S)
            if not turn.number:
                # Its shard has forgotten it already: what cannot be told of it fails the task, and the micro-batch runs again.
                self._begin(begun)
                self._ended.append(begun)
            elif has_room:
                if known is not None:
                    known.until = float("-inf")  # its shard has given it up for lost, and the same parcels are in this one
                self._flows[_flow(turn)] = begun
                begun.task = asyncio.create_task(self._carry(begun))
                self._tasks.add(begun.task)
                begun.task.add_done_callback(self._tasks.discard)
                self._begun.add(begun.task)
            else:
                self._turn_away(begun)
            await asyncio.sleep(0)
        return self._told()

    async def settle(self, wait_s: float) -> Ended:
        """Wait for the turns taken since the last call, no longer than `wait_s`; return what has ended."""
        begun, self._begun, self._is_stuck = self._begun, set(), False
        if begun:
            await asyncio.wait(begun, timeout=wait_s)
        return self._told()

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
            if one.turn.number:
                told.reports.append(one.report())
                self._forget(one)
        self._ended, self._most_in_flight = [], self._in_flight
        return told

    async def _has_room(self, turn: parcel.Turn, settle_s: float) -> bool:
        """Wait until there is room in memory, as long as turns end; False when none has for `settle_s`, once in a task."""
        while self._bytes and self._bytes + _weight(turn) > MAX_UNDER_WAY_BYTES:
            if self._is_stuck:
                return False
            ended, _ = await asyncio.wait(self._tasks, timeout=settle_s, return_when=asyncio.FIRST_COMPLETED)
            self._is_stuck = not ended
        return True

    def _forget(self, one: _UnderWay) -> None:
        if self._flows.get(_flow(one.turn)) is one:
            del self._flows[_flow(one.turn)]

    def _turn_away(self, one: _UnderWay) -> None:
        """Let all of a turn come back unattempted."""
        at_ms = self._now_ms() + round(retry.LOCAL_WAIT_S * 1000)
        for place, waits in enumerate(one.turn.parcels):
            one.comes_back(place, Again(at_ms, waits.retries))
        self._ended.append(one)

    async def _carry(self, one: _UnderWay) -> None:
        """Take a turn to its end."""
        weight = _weight(one.turn)
        self._bytes += weight
        try:
            self._begin(one)
            if one.waiting:
                await self._attempt_all(one)
            for place in one.waiting:  # there was no time for these, or one before them in their order has failed
                one.comes_back(place, Again(self._now_ms(), one.turn.parcels[place].retries))
            self._ended.append(one)
        except Exception:
            # A surprise in one turn must hurt that turn alone. Its shard gives it up for lost and lets it leave again.
            log.exception("a turn failed in an unforeseen way", extra={"endpoint_id": one.turn.endpoint_id})
            self._forget(one)
        finally:
            self._bytes -= weight

    def _begin(self, one: _UnderWay) -> None:
        """Decide of the turn, and of each of its parcels, what is to be done.

        1. The endpoint is paused or disabled: all come back, and nothing is attempted.
        2. The parcel's endpoint or subscriptions are gone, paused or quarantined: skipped.
        3. The turn is given up: dead letters.
        4. Otherwise it is attempted.
        """
        turn, endpoint = one.turn, one.destination.endpoint
        if endpoint is not None and endpoint.status is not EndpointStatus.ACTIVE:
            if turn.number and endpoint.customer_id == turn.customer_id and not endpoint.fault:
                one.hold = _HOLDS[endpoint.status]
                for place, waits in enumerate(turn.parcels):
                    one.comes_back(place, Again(waits.again_at_ms, waits.retries), one.hold)
                return
            # What is given up is not sent: whether it could be is no question.
            one.destination = one.destination._replace(endpoint=replace(endpoint, status=EndpointStatus.ACTIVE))
        for place, waits in enumerate(turn.parcels):
            parts = _parts(one, waits)
            if None in parts and turn.given_up is None:
                one.waiting.append(place)
                continue
            with self._put_off_by_a_fault(one, place):
                for reason, places in parts.items():
                    if reason is None:
                        unsent = _unsent(one, waits, places)
                        _tell(one, Outcome(unsent, OutcomeKind.DEAD_LETTERED, reason=turn.given_up, earlier=waits.story))
                    else:
                        _skip(one, waits, places, reason)

    @contextlib.contextmanager
    def _put_off_by_a_fault(self, one: _UnderWay, place: int) -> Iterator[None]:
        """Let a parcel come back much later that meets a fault of ours, as events that cannot be read; the others go on."""
        try:
            yield
        except Exception:
            if not one.turn.number:
                raise
            log.exception("a parcel failed in an unforeseen way", extra={"endpoint_id": one.turn.endpoint_id})
            # As an attempt that failed through a fault of ours: what was not attempted would stand in front, before the others.
            now_ms, waits = self._now_ms(), one.turn.parcels[place]
            told = Attempt(waits.attempts + 1, now_ms, 0.0, None, errors.LocalFailure.error_class, "unforeseen; see the log")
            one.comes_back(place, Again(now_ms + round(PUT_OFF_S * 1000), waits.retries), intake.UNFORESEEN, (told,))
            if one.turn.order_key is not None:
                one.until = float("-inf")

    async def _attempt_all(self, one: _UnderWay) -> None:
        """Attempt what waits: as many at once as the endpoint takes, or one after the other where there is an order."""
        bound = self._bounds.in_flight_to(one.endpoint)
        key = (one.turn.endpoint_id, bound)
        gate = self._gates.get(key)
        if gate is None:
            gate = self._gates[key] = asyncio.Semaphore(bound)
        pace = self._bounds.pace_to(one.endpoint, self._paces)
        runners = 1 if one.turn.order_key is not None else min(bound, len(one.waiting))
        async with asyncio.TaskGroup() as together:
            for _ in range(runners):
                together.create_task(self._run(one, gate, pace))

    async def _run(self, one: _UnderWay, gate: asyncio.Semaphore, pace: limits.Pace | None) -> None:
        """Attempt one parcel after another. Whoever waits for the endpoint's pace holds no slot of the worker."""
        while one.waiting:
            async with gate, self._slots:
                now = self._clock()
                if now > one.until or not one.waiting:
                    return
                wait_s = 0.0 if pace is None else pace.wait_s(now)
                if not wait_s:
                    if pace is not None:
                        pace.take(now)
                    place = one.waiting.popleft()
                    with self._counted(), self._put_off_by_a_fault(one, place):
                        await self._attempt(one, place)
                    continue
            if now + wait_s > one.until:
                return
            await asyncio.sleep(wait_s)

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        self._in_flight += 1
        self._most_in_flight = max(self._most_in_flight, self._in_flight)
        try:
            yield
        finally:
            self._in_flight -= 1

    async def _attempt(self, one: _UnderWay, place: int) -> None:
        waits = one.turn.parcels[place]
        parts = _parts(one, waits)
        places = parts.pop(None)  # what is skipped of a batch is told when the batch ends: it may come back whole
        delivery = _unsent(one, waits, places)
        try:
            delivery = _with_content(delivery)
        except Exception:  # as in the batch lane
            log.exception("a parcel failed in an unforeseen way", extra={"endpoint_id": one.turn.endpoint_id})
            _tell(one, Outcome(delivery, OutcomeKind.DEAD_LETTERED, reason=intake.UNFORESEEN, earlier=waits.story))
            return
        attempt = await self._sender.attempt(delivery, waits.attempts + 1, one.endpoint.retrying.timeout_s)
        kind, again = OutcomeKind.DELIVERED, None
        if attempt.error_class is None:
            one.delivered += 1
        else:
            again = self._again(one, waits, attempt)
            kind = OutcomeKind.DEAD_LETTERED if again is None else OutcomeKind.POSTPONED
            one.failed += attempt.error_class in circuit.FAILED
            one.refused += attempt.error_class in _REFUSED
            if attempt.error_class == retry.GONE:
                self._gone.add(one.turn.endpoint_id)
            if attempt.retry_after_s is not None:
                one.retry_after_s = max(attempt.retry_after_s, one.retry_after_s or 0.0)
            if one.turn.order_key is not None:
                one.until = float("-inf")
        if again is not None:
            one.comes_back(place, again, attempt.error_class, (attempt,))
        else:
            for reason, skipped in parts.items():
                _skip(one, waits, skipped, reason)
        _tell(one, Outcome(delivery, kind, (attempt,), attempt.error_class, again, waits.story))

    def _again(self, one: _UnderWay, waits: parcel.Parcel, attempt: Attempt) -> Again | None:
        assert attempt.error_class is not None, "it has failed"  # noqa: S101
        return retry.again(
            one.endpoint.retrying,
            attempt.error_class,
            waits.retries,
            now_ms=self._now_ms(),
            expires_ms=waits.expires_ms,
            retry_after_s=attempt.retry_after_s,
            rng=self._rng,
        )

    def _now_ms(self) -> int:
        return int(self._now_s() * 1000)


def _skip(one: _UnderWay, waits: parcel.Parcel, places: list[int], reason: SkipReason | None) -> None:
    _tell(one, Outcome(_unsent(one, waits, places), OutcomeKind.SKIPPED, reason=reason))


def _tell(one: _UnderWay, outcome: Outcome[Any]) -> None:
    """Take note of how a parcel ended in this turn, without its body."""
    if isinstance(outcome.delivery, BatchDelivery):
        one.results.batches.append(batch_message.settled(outcome))
    else:
        one.results.outcomes.append(outcome._replace(delivery=outcome.delivery._replace(body=b"")))


def _flow(turn: parcel.Turn) -> _Flow:
    return (turn.customer_id, turn.endpoint_id, turn.order_key)


def _weight(turn: parcel.Turn) -> int:
    return sum(waits.size + PARCEL_BYTES for waits in turn.parcels)


def _mode(waits: parcel.Parcel) -> DeliveryMode:
    return DeliveryMode.DIRECT if waits.left_by is None else DeliveryMode.BATCH


def _parts(one: _UnderWay, waits: parcel.Parcel) -> dict[SkipReason | None, list[int]]:
    return parting.parted(waits, one.turn.endpoint_id, one.turn.customer_id, _mode(waits), one.destination)


def _unsent(one: _UnderWay, waits: parcel.Parcel, places: list[int]) -> Delivery | BatchDelivery:
    """Return the events of a parcel at these places as a delivery or batch, without a body."""
    turn, endpoint = one.turn, one.destination.endpoint
    if endpoint is None or endpoint.customer_id != turn.customer_id:  # what the log names is left
        endpoint = Endpoint(endpoint_id=turn.endpoint_id, customer_id=turn.customer_id, url="", mode=_mode(waits))
    # Events that cannot be read have no dead letter: the turn fails, and they stay in the lane's state.
    events = [segment.unpacked(waits.packed[place]) for place in places]
    through = [parting.through(waits, place) for place in places]
    if waits.left_by is not None:
        webhook_id = batch_message.webhook_id(turn.endpoint_id, events, through)
        return BatchDelivery(endpoint, webhook_id, b"", b"", b"", events, through, waits.left_by)
    [name] = through
    subscription = one.destination.subscriptions.get(name)
    if subscription is None:
        subscription = Subscription(subscription_id=name, endpoint_id=turn.endpoint_id, event_type="", scope=Scope())
    return Delivery(events[0].event(), subscription, endpoint, message.webhook_id(events[0], name), b"")


def _with_content(unsent: Delivery | BatchDelivery) -> Delivery | BatchDelivery:
    if isinstance(unsent, BatchDelivery):
        return batch_message.with_content(unsent)
    content = message.content(unsent.event, unsent.endpoint.content_mode)
    return unsent._replace(body=content.body, content_headers=content.headers)
