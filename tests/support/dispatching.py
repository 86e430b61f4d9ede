"""Send deliveries through a dispatcher with limits that the test sets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from delivery.model import Delivery, Outcome
from delivery.registry_model import EndpointId
from delivery.webhooks.dispatching import dispatch, endpoint_memory
from delivery.webhooks.policy import backoff
from delivery.webhooks.scheduling import background_attempts, deferral, host_limits, limits
from tests.support import builders, fakes


def deliveries(count: int, endpoint_id: str = "ep1", **fields: Any) -> list[Delivery]:
    """Return `count` deliveries to one endpoint."""
    endpoint = builders.endpoint(endpoint_id, **fields)
    return [builders.delivery(endpoint=endpoint) for _ in range(count)]


def new_memory(clock: Callable[[], float], **fields: Any) -> endpoint_memory.EndpointMemory:
    """Return the memory of a worker that has had no task yet, with hosts without limits."""
    empty: dict[str, Any] = {
        "paces": {}, "hosts": host_limits.Hosts(limits.Limits(), clock), "breakers": {}, "response_times": {}
    }  # fmt: skip
    return endpoint_memory.EndpointMemory(**empty | fields)


def fast_lane(
    sender: dispatch.DispatchSender,
    clock: Callable[[], float],
    *,
    suppressed: Iterable[str] = (),
    background: background_attempts.BackgroundAttempts | None = None,
    memory: endpoint_memory.EndpointMemory | None = None,
    late: Mapping[EndpointId, float] | None = None,
    quick_retry: backoff.QuickRetry | None = None,
    endpoint_time: Callable[[], float] | None = None,
    **bounds: Any,
) -> tuple[dispatch.Dispatcher[Any], deferral.Deferrals]:
    """Return the dispatcher and the deferrals of a fast lane for one task. Without `memory`, it is its worker's first task."""
    background = background or fakes.unreported_background()
    memory = memory or new_memory(clock, hosts=host_limits.Hosts(limits.Limits(**bounds), clock))
    memory.expect_late(late or {})
    deferrals = fakes.deferrals(clock, suppressed, memory.breakers, background)
    dispatcher: dispatch.Dispatcher[Any] = dispatch.Dispatcher(
        sender,
        limits.Limits(**bounds),
        quick_retry or backoff.QuickRetry(first_wait_s=0.001),
        deferrals,
        background,
        memory=memory,
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
