"""Keep the state of endpoints that outlives a task, and say which endpoints a worker reports as late or unresponsive.

No I/O. Readings of clocks are passed in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from delivery.registry_model import Endpoint, EndpointId
from delivery.webhooks.dispatching import endpoint_queue
from delivery.webhooks.scheduling import background_attempts, circuit_breaker, host_limits, limits
from delivery.webhooks.scheduling.response_times import FirstResponses, ResponseTime, ResponseTimes


@dataclass(slots=True, kw_only=True)
class EndpointMemory:
    """The state of endpoints that a worker keeps from task to task, because a rate limit does not end with a micro-batch.

    Three rules hold for an endpoint without a response:
    1. A task waited until the response deadline, in vain: this worker reports the endpoint as late, at once.
    2. Some worker has reported the endpoint as late: this worker hardly waits for it, until the endpoint has responded to this
       worker in its usual time.
    3. The endpoint has sent no response for a given time: this worker reports it as unresponsive, and all workers suppress it.
    """

    paces: limits.Paces
    hosts: host_limits.Hosts
    breakers: circuit_breaker.CircuitBreakers
    response_times: ResponseTimes
    first_responses: FirstResponses = field(default_factory=FirstResponses)
    without_response: dict[EndpointId, ResponseTime] = field(default_factory=dict)
    """Endpoints that have missed a response deadline and are not yet reported as unresponsive."""
    late: set[EndpointId] = field(default_factory=set)
    """Endpoints that have missed a response deadline and are not yet reported as late."""
    last_report: float = -math.inf
    """Time of the newest report that `expect_late` has seen, by the driver's clock."""

    def expect_late(self, late: Mapping[EndpointId, float]) -> None:
        """Mark the endpoints that some worker has reported as late since the last call.

        `late` has the reports of all workers, each with its time by the driver's clock. Each report marks its endpoint once.
        When the endpoint's response to this worker has ended the mark, only a newer report marks the endpoint again. `late`
        also has this worker's own reports. Such a report may mark an endpoint that has responded since. The next response in
        its usual time ends this mark too.
        """
        newest = self.last_report
        for endpoint_id, reported_at in late.items():
            if reported_at > self.last_report:
                self._response_time_of(endpoint_id).is_late = True
                newest = max(newest, reported_at)
        self.last_report = newest

    def add_without_response(self, queue: endpoint_queue.Queue[Any], since: float, *, has_waited: bool) -> None:
        """Record that the endpoint of `queue` has sent no response since `since`, by the endpoint clock.

        `has_waited` is True if the task has waited for the response until the deadline. The endpoint is then late. If an
        earlier silence of the endpoint is recorded and lasts, the earlier time stays.
        """
        if has_waited:
            self.late.add(queue.endpoint_id)
        if queue.response_time.no_response_since is None:
            queue.response_time.no_response_since = since
            self.without_response[queue.endpoint_id] = queue.response_time

    def take_late(self) -> frozenset[EndpointId]:
        """Return the endpoints for whose response a task waited in vain since the last call."""
        found = frozenset(self.late)
        self.late.clear()
        return found

    def take_unresponsive(self, no_response_s: float, now: float) -> frozenset[EndpointId]:
        """Return the endpoints whose silence, recorded by `add_without_response`, has lasted `no_response_s` or longer.

        `now` is by the endpoint clock. Each silence of an endpoint is returned once. A new silence begins when a later attempt
        misses its response deadline. All workers suppress the returned endpoints; they still send to an endpoint whose silence
        is shorter than `no_response_s`.
        """
        found = set()
        for endpoint_id, response_time in list(self.without_response.items()):
            since = response_time.no_response_since
            if since is not None and now - since < no_response_s:
                continue
            del self.without_response[endpoint_id]
            if since is not None:
                # An attempt that times out does not end a silence. Without this, a later hang would never be recorded.
                response_time.no_response_since = None
                found.add(endpoint_id)
        return frozenset(found)

    def queue_of(
        self, endpoint: Endpoint, bounds: limits.Limits, background: background_attempts.BackgroundAttempts
    ) -> endpoint_queue.Queue[Any]:
        """Return a new, empty queue for an endpoint. Background attempts in flight count against the endpoint's limit."""
        endpoint_id = endpoint.endpoint_id
        bound = bounds.in_flight_to(endpoint) - background.in_flight_to(endpoint_id)
        breaker = self.breakers.get(endpoint_id)
        return endpoint_queue.Queue(
            endpoint,
            max_in_flight=bound,
            pace=bounds.pace_to(endpoint, self.paces),
            host=self.hosts.host_of(endpoint.url),
            breaker=breaker,
            response_time=self._response_time_of(endpoint_id),
            limit=1 if breaker is not None and breaker.is_suspect else bound,
            is_unresponsive=bound <= 0 or background.is_unresponsive(endpoint_id),
        )

    def _response_time_of(self, endpoint_id: EndpointId) -> ResponseTime:
        known = self.response_times.get(endpoint_id)
        if known is None:
            known = self.response_times[endpoint_id] = ResponseTime(self.first_responses)
        return known
