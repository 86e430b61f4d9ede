"""Keep, for one Spark task, each endpoint's waiting deliveries and attempts in flight; decide which responses are overdue.

No I/O. Clocks, or their readings, are passed in. The dispatcher of the task (delivery.webhooks.dispatching.dispatch) consumes
the queues.
"""

from __future__ import annotations

import asyncio
import collections
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple

from delivery import errors
from delivery.model import Attempt, Sent
from delivery.registry_model import AttemptedEndpoint, Endpoint, EndpointId
from delivery.webhooks.policy import error_classes
from delivery.webhooks.scheduling import (
    circuit_breaker,
    host_limits,
    limits,
    outage_detection,
    response_times,
)

FEW_DESTINATIONS = 2
"""Maximum of destinations of a task that may all be unresponsive by their own fault. If a task has more destinations, of
several customers, and hardly any of them has responded, the task waits for the end of its attempts and moves none to the
background. The driver then judges from all tasks whether our own network is broken
(delivery.webhooks.scheduling.outage_detection)."""


@dataclass(slots=True, eq=False)
class PendingDelivery(Generic[Sent]):
    """A submitted delivery that has no outcome yet, or whose attempt runs in the background."""

    delivery: Sent
    since: float = 0.0
    """When the delivery began to wait, or when its current attempt began, by the endpoint clock."""
    attempts: tuple[Attempt, ...] = ()
    name: bytes | None = None
    """Name of the delivery's background attempt. None: no attempt of the delivery is in the background. A delivery with a name
    was reported as postponed, and its attempt runs in the background."""


@dataclass(slots=True, eq=False)
class Queue(Generic[Sent]):
    """The waiting deliveries of one endpoint in one task, the endpoint's limits, and the results of the task's attempts."""

    endpoint: Endpoint
    max_in_flight: int
    pace: limits.Pace | None
    breaker: circuit_breaker.CircuitBreaker | None
    response_time: response_times.ResponseTime
    host: host_limits.Host | None
    """Host of the endpoint's URL. None: the host has no limits."""
    limit: int
    """Maximum of requests in flight now: one while `CircuitBreaker.is_suspect`, else `max_in_flight`."""
    waiting: collections.deque[PendingDelivery[Sent]] = field(default_factory=collections.deque)
    in_flight: int = 0
    is_ready: bool = False
    """True if the queue is in line for a slot, or will be as soon as its rate or host allows."""
    resumption: asyncio.TimerHandle | None = None
    """Timer that makes the queue ready when the endpoint's rate allows a request, perhaps long after the task."""
    has_reservation: bool = False
    """True if the host has reserved capacity for one request of this queue."""
    is_unresponsive: bool = False
    """True if the task defers all further deliveries to the endpoint. Either the endpoint sent no response before a response
    deadline, or background attempts use its whole limit of requests in flight."""
    has_responded: bool = False
    responded_at: float = -math.inf
    """When the endpoint last responded in this task, with any status, by the endpoint clock."""
    was_unreachable: bool = False
    has_accepted: bool = False
    has_failed: bool = False
    """True if the endpoint did not accept an attempt of the task."""
    gone: set[AttemptedEndpoint] = field(default_factory=set)
    """The endpoint, by each URL that has responded 410 Gone. Deliveries of one task may have different URLs."""

    @property
    def endpoint_id(self) -> EndpointId:
        """Return the id of the endpoint."""
        return self.endpoint.endpoint_id

    def must_wait(self, now: float) -> bool:
        """Return True if the next request must wait for the endpoint's rate or for the limits of its host."""
        return (self.pace is not None and self.pace.wait_s(now) > 0) or (self.host is not None and not self.host.has_room)

    def begin(self, now: float) -> None:
        """Count a request that begins now: against the limits of the endpoint and of its host."""
        self.in_flight += 1
        if self.pace is not None:
            self.pace.consume(now)
        if self.host is not None:
            self.host.enter()

    def end(self) -> None:
        """Count a request as ended: it is no longer in flight to the endpoint and its host."""
        self.in_flight -= 1
        if self.host is not None:
            self.host.leave()

    def abandon(self) -> None:
        """Give back capacity that the host has reserved, and cancel `resumption`, which would hold the ended task in memory."""
        if self.resumption is not None:
            self.resumption.cancel()
        if self.has_reservation and self.host is not None:
            self.has_reservation = False
            self.host.use_reservation()
            self.host.wake()

    def observe(
        self,
        endpoint: Endpoint,
        attempt: Attempt,
        since: float,
        began_at: float,
        *,
        breakers: circuit_breaker.CircuitBreakers,
        clock: Callable[[], float],
        endpoint_time: Callable[[], float],
    ) -> bool:
        """Record the result of an attempt to the endpoint; return True if the endpoint's circuit breaker is open.

        `endpoint` is the endpoint of the attempted delivery. The attempt began at `since` by `endpoint_time`, and at `began_at`
        by `clock`. If the attempt was not accepted, and the queue has no breaker, the queue takes the endpoint's breaker from
        `breakers`. If `breakers` has none for the endpoint, a new breaker is stored there first.
        """
        error_class = attempt.error_class
        if error_class is None or attempt.status is not None:
            self.has_responded, self.responded_at = True, (now := endpoint_time())
            self.response_time.record(now - since)
        breaker = self.breaker
        if error_class is None:
            self.has_accepted = True
            if breaker is None:
                return False
        else:
            self.has_failed = True
            if error_class != errors.AttemptTimedOut.error_class:
                self.response_time.no_response_since = None
            self.was_unreachable |= error_class in outage_detection.UNREACHABLE_CLASSES
            if error_class == error_classes.GONE:
                self.gone.add(endpoint.as_attempted())
            if breaker is None:  # another queue of the endpoint may have stored one meanwhile
                breaker = self.breaker = breakers.setdefault(self.endpoint_id, circuit_breaker.CircuitBreaker())
        now = clock()
        breaker.record(error_class, began_at, now)
        self.limit = 1 if breaker.is_suspect else self.max_in_flight
        return breaker.is_open(now)


class DispatchReport(NamedTuple):
    """A task's observations of the endpoints to which it sent, and the unresponsive endpoints that its worker now reports."""

    most_in_flight: int
    """Maximum of requests of the task in flight at once."""
    reachability: outage_detection.Reachability
    gone: frozenset[AttemptedEndpoint]
    """Endpoints that have responded 410 Gone."""
    unresponsive: frozenset[EndpointId]
    """Endpoints, of any task of the worker, that have sent no response for `response_deadline_s` and that no earlier task has
    reported (`EndpointMemory.take_unresponsive`)."""
    late: frozenset[EndpointId]
    """Endpoints for whose response a task of the worker waited in vain (`EndpointMemory.take_late`)."""
    accepting: Sequence[Endpoint]
    """Endpoints that have accepted a delivery."""
    failed: Collection[EndpointId]
    """Endpoints that have not accepted an attempt."""


class InFlight(NamedTuple, Generic[Sent]):
    """An attempt that the task awaits: its queue, and the asyncio task that runs it."""

    queue: Queue[Sent]
    runner: asyncio.Task[None]


class Overdue(NamedTuple, Generic[Sent]):
    """Attempts whose response is overdue, and their endpoints."""

    attempts: list[PendingDelivery[Sent]]
    unresponsive: list[tuple[Queue[Sent], float]]
    """Queues of endpoints that have sent no response since an overdue attempt began, and when the first such attempt began."""
    without_response: list[Queue[Sent]]
    """Queues of endpoints that have sent no response since an attempt in flight began, whether the attempt is overdue or not.
    Endpoints whose mean or last response time exceeds `response_deadline_s` are left out. Empty if none of these endpoints has
    an overdue attempt: then silence is no sign of an outage."""
    check_in_s: float
    """Seconds until the next attempt becomes overdue. MIN_MARGIN_S if there is no such attempt. At most LATE_MARGIN_S if an
    attempt to a late endpoint is overdue."""


def report(
    queues: Collection[Queue[Any]], unresponsive: frozenset[EndpointId], late: frozenset[EndpointId], most_in_flight: int
) -> DispatchReport:
    """Return the report of a task: what its queues have observed, and the other arguments unchanged."""
    return DispatchReport(
        most_in_flight=most_in_flight,
        reachability=reachability(queues),
        gone=frozenset().union(*(queue.gone for queue in queues if queue.gone)),
        unresponsive=unresponsive,
        late=late,
        accepting=[queue.endpoint for queue in queues if queue.has_accepted],
        failed=[queue.endpoint_id for queue in queues if queue.has_failed],
    )


def reachability(queues: Iterable[Queue[Sent]]) -> outage_detection.Reachability:
    """Return which destinations of these queues have responded, and which were unreachable."""
    return outage_detection.reachability(
        (queue.endpoint, queue.has_responded) for queue in queues if queue.has_responded or queue.was_unreachable
    )


def overdue(in_flight: Mapping[PendingDelivery[Sent], InFlight[Sent]], now: float, max_s: float) -> Overdue[Sent]:
    """Return the attempts that have waited longer than their endpoint's response deadline, which is at most `max_s`.

    `now` is by the endpoint clock, which goes slower while the worker waits for its own machine. An endpoint is left out if it
    has responded in this task and has waiting deliveries. Such an endpoint may be busy for a moment. The task waits for these
    deliveries anyway, until the circuit breaker opens or `queue_timeout_s` has passed.
    """
    attempts: list[PendingDelivery[Sent]] = []
    unresponsive: dict[EndpointId, tuple[Queue[Sent], float]] = {}
    without_response: dict[EndpointId, Queue[Sent]] = {}
    is_suspicious = False
    check_in_s = math.inf
    for pending, (queue, _) in in_flight.items():
        if queue.waiting and queue.has_responded:
            continue
        has_no_response, is_slow = queue.responded_at <= pending.since, queue.response_time.exceeds(max_s)
        if has_no_response and not is_slow:
            without_response[queue.endpoint_id] = queue
        left_s = pending.since + queue.response_time.deadline_s(max_s) - now
        if left_s > limits.ROUNDING_S:
            check_in_s = min(check_in_s, left_s)
            continue
        attempts.append(pending)
        if queue.response_time.is_late:  # so soon, an outage may be suspected only because hardly anybody has responded yet
            check_in_s = min(check_in_s, response_times.LATE_MARGIN_S)
        if has_no_response:
            unresponsive.setdefault(queue.endpoint_id, (queue, pending.since))  # the first attempt is the oldest
            is_suspicious |= not is_slow
    return Overdue(
        attempts,
        list(unresponsive.values()),
        list(without_response.values()) if is_suspicious else [],
        response_times.MIN_MARGIN_S if check_in_s == math.inf else check_in_s,
    )


def may_be_local_outage(queues: Collection[Queue[Sent]], without_response: Collection[Queue[Sent]], max_s: float) -> bool:
    """Return True if our own network may be broken: of more than FEW_DESTINATIONS destinations hardly any has responded.

    The destinations must be of several customers (`outage_detection.Reachability.is_broken`). An endpoint that has not
    responded in this task counts as unreachable in two cases:
    1. An attempt to it failed with a class in `outage_detection.UNREACHABLE_CLASSES`.
    2. Its queue is unresponsive or in `without_response`, and neither the endpoint's mean nor its last response time exceeds
       `max_s`.
    """
    unknown = (
        queue
        for queue in queues
        if not queue.has_responded
        and (queue.is_unresponsive or queue in without_response)
        and not queue.response_time.exceeds(max_s)
    )
    seen = reachability(queues) + outage_detection.reachability((queue.endpoint, False) for queue in unknown)
    return seen.is_broken(least=FEW_DESTINATIONS + 1)
