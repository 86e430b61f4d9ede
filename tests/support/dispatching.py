"""Send deliveries through a dispatcher with limits that the test sets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from delivery.model import Delivery, Outcome
from delivery.registry_model import EndpointId
from delivery.webhooks.dispatching import dispatch, endpoint_queue
from delivery.webhooks.policy import backoff
from delivery.webhooks.scheduling import background_attempts, circuit_breaker, deferral, host_limits, limits, response_times
from delivery.webhooks.scheduling.response_times import FirstResponses, ResponseTime
from tests.support import builders, fakes


def deliveries(count: int, endpoint_id: str = "ep1", **fields: Any) -> list[Delivery]:
    """Return `count` deliveries to one endpoint."""
    endpoint = builders.endpoint(endpoint_id, **fields)
    return [builders.delivery(endpoint=endpoint) for _ in range(count)]


def fast_lane(
    sender: dispatch.DispatchSender,
    clock: Callable[[], float],
    *,
    suppressed: Iterable[str] = (),
    paces: limits.Paces | None = None,
    known_hosts: host_limits.Hosts | None = None,
    breakers: circuit_breaker.CircuitBreakers | None = None,
    background: background_attempts.BackgroundAttempts | None = None,
    response_times: response_times.ResponseTimes | None = None,
    first_responses: FirstResponses | None = None,
    without_response: dict[EndpointId, ResponseTime] | None = None,
    quick_retry: backoff.QuickRetry | None = None,
    endpoint_time: Callable[[], float] | None = None,
    **bounds: Any,
) -> tuple[dispatch.Dispatcher[Any], deferral.Deferrals]:
    """Return the dispatcher and the deferrals of a fast lane for one task."""
    kept, background = {} if breakers is None else breakers, background or fakes.unreported_background()
    deferrals = fakes.deferrals(clock, suppressed, kept, background)
    dispatcher: dispatch.Dispatcher[Any] = dispatch.Dispatcher(
        sender,
        limits.Limits(**bounds),
        quick_retry or backoff.QuickRetry(first_wait_s=0.001),
        deferrals,
        background,
        memory=endpoint_queue.EndpointMemory(
            paces={} if paces is None else paces,
            hosts=known_hosts or host_limits.Hosts(limits.Limits(**bounds), clock),
            breakers=kept,
            response_times={} if response_times is None else response_times,
            first_responses=first_responses or FirstResponses(),
            without_response={} if without_response is None else without_response,
        ),
        clock=clock,
        endpoint_time=endpoint_time or clock,
    )
    return dispatcher, deferrals


def dispatcher_of(sender: dispatch.DispatchSender, clock: Callable[[], float], **options: Any) -> dispatch.Dispatcher[Delivery]:
    """Return the dispatcher of `fast_lane`."""
    return fast_lane(sender, clock, **options)[0]


def run(
    sender: dispatch.DispatchSender, submitted: Iterable[Delivery], clock: Callable[[], float], **bounds: Any
) -> list[Outcome[Delivery]]:
    """Deliver one micro-batch through the dispatcher; return the outcomes."""

    async def main() -> list[Outcome[Delivery]]:
        dispatcher = dispatcher_of(sender, clock, **bounds)
        for delivery in submitted:
            dispatcher.submit(delivery)
        await dispatcher.finish()
        return dispatcher.drain()

    return asyncio.run(main())
