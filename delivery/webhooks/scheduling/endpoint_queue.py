"""Know, in one task, what waits for each endpoint and what is under way to it, and decide whose answers take too long.

Runs in the executors. Must not import pyspark or psycopg. Pure: the clock's reading comes in. Who takes from the queues is
delivery.webhooks.scheduling.dispatch.
"""

from __future__ import annotations

import asyncio
import collections
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple

from delivery.model import Attempt, Endpoint, EndpointId, Sent
from delivery.webhooks.scheduling import background_attempts, circuit_breaker, host_limits, limits, outage, response_times

FEW_ASKED = 2
"""Of so few destinations in a task, all may take long by themselves. Whether it is our fault the driver judges by all tasks
(delivery.webhooks.scheduling.outage): with more of them silent, a task waits for the end of their attempts, so as to tell."""


@dataclass(slots=True, eq=False)
class Pending(Generic[Sent]):
    """A delivery that has no outcome yet."""

    delivery: Sent
    since: float = 0.0
    """When it began to wait, or its attempt to be under way; after an attempt, anew."""
    attempts: tuple[Attempt, ...] = ()
    name: bytes | None = None
    """Set: its outcome is told, and its attempt goes on alone."""


@dataclass(slots=True, eq=False)
class Queue(Generic[Sent]):
    """What waits for one endpoint."""

    endpoint: Endpoint
    max_in_flight: int
    pace: limits.Pace | None
    circuit: circuit_breaker.Circuit | None
    answer_time: response_times.AnswerTime
    host: host_limits.Host | None
    """Where it is; None: that has no bounds."""
    limit: int
    """Of what is under way now: one while the circuit is suspicious."""
    waiting: collections.deque[Pending[Sent]] = field(default_factory=collections.deque)
    in_flight: int = 0
    is_in_turn: bool = False
    """Whether it stands in line for a slot, or will when its pace or its host allows."""
    is_called: bool = False
    """Whether its host has called it."""
    is_silent: bool = False
    """Whether it is asked no more: it kept a micro-batch waiting and answered nothing, or has as many under way as it takes."""
    was_reached: bool = False
    reached_at: float = -math.inf
    """When it last answered."""
    had_no_way_there: bool = False
    has_accepted: bool = False

    @property
    def endpoint_id(self) -> EndpointId:
        """Return whose it is."""
        return self.endpoint.endpoint_id

    def is_bounded(self, now: float) -> bool:
        """Tell whether the next request has to wait for a pace or for its host."""
        return (self.pace is not None and self.pace.wait_s(now) > 0) or (self.host is not None and not self.host.has_room)

    def began(self, now: float) -> None:
        """Count a request that goes now."""
        self.in_flight += 1
        if self.pace is not None:
            self.pace.take(now)
        if self.host is not None:
            self.host.enter()

    def ended(self) -> None:
        """Count out a request that has ended."""
        self.in_flight -= 1
        if self.host is not None:
            self.host.leave()

    def leave_line(self) -> None:
        """Give back the place for which its host may have called it."""
        if self.is_called and self.host is not None:
            self.is_called = False
            self.host.admits_called()
            self.host.wake()

    def answered(self, since: float, now: float) -> None:
        """Record that a request which began at `since` has its answer."""
        self.was_reached, self.reached_at = True, now
        self.answer_time.took(now - since)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a worker knows of endpoints from task to task: an endpoint's second does not end with a micro-batch."""

    paces: limits.Paces
    hosts: host_limits.Hosts
    circuits: circuit_breaker.Circuits
    answer_times: response_times.AnswerTimes

    def queue_of(self, endpoint: Endpoint, bounds: limits.Limits, under_way: background_attempts.Late) -> Queue[Any]:
        """Make the queue of an endpoint. What goes on alone from earlier tasks counts against what it takes at once."""
        name = endpoint.endpoint_id
        bound = bounds.in_flight_to(endpoint) - under_way.under_way_to(name)
        known, answer_time = self.circuits.get(name), self.answer_times.get(name)
        if answer_time is None:
            answer_time = self.answer_times[name] = response_times.AnswerTime()
        return Queue(
            endpoint,
            max_in_flight=bound,
            pace=bounds.pace_to(endpoint, self.paces),
            host=self.hosts.of(endpoint.url),
            circuit=known,
            answer_time=answer_time,
            limit=1 if known is not None and known.is_suspect else bound,
            is_silent=bound <= 0 or under_way.is_silent(name),
        )


class UnderWay(NamedTuple, Generic[Sent]):
    """An attempt that is waited for, and by whom."""

    queue: Queue[Sent]
    runner: asyncio.Task[None]


class Overdue(NamedTuple, Generic[Sent]):
    """Whose answers are waited for too long."""

    attempts: list[Pending[Sent]]
    silent: list[Queue[Sent]]
    """The endpoints of these that have answered nothing since."""
    next_in_s: float
    """When to look again."""


def reach(queues: Iterable[Queue[Sent]]) -> outage.Reach:
    """Return to which destinations there was a way."""
    return outage.reach((queue.endpoint, queue.was_reached) for queue in queues if queue.was_reached or queue.had_no_way_there)


def overdue(under_way: Mapping[Pending[Sent], UnderWay[Sent]], now: float, most_s: float) -> Overdue[Sent]:
    """Return what has been under way for longer than its endpoint usually takes, or for `most_s`.

    Not of an endpoint that has answered in this task and for which more waits: it may be busy for a moment, and the rest is
    waited for anyway, until its circuit opens or `lane_deadline_s` has passed.
    """
    attempts: list[Pending[Sent]] = []
    silent: dict[EndpointId, Queue[Sent]] = {}
    next_in_s = math.inf
    for pending, (queue, _) in under_way.items():
        if queue.waiting and queue.was_reached:
            continue
        left_s = pending.since + queue.answer_time.patience_s(most_s) - now
        if left_s > limits.ROUNDING_S:
            next_in_s = min(next_in_s, left_s)
            continue
        attempts.append(pending)
        if queue.reached_at <= pending.since:
            silent[queue.endpoint_id] = queue
    return Overdue(attempts, list(silent.values()), response_times.MIN_PATIENCE_S if next_in_s == math.inf else next_in_s)


def may_be_ours(queues: Collection[Queue[Sent]], silent: Collection[Queue[Sent]]) -> bool:
    """Judge as if there were no way to any of the `silent` that has not answered yet, nor to those left alone before."""
    unknown = (queue for queue in queues if not queue.was_reached and (queue.is_silent or queue in silent))
    seen = reach(queues) + outage.reach((queue.endpoint, False) for queue in unknown)
    return seen.is_broken(least=FEW_ASKED + 1)
