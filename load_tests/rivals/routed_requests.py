"""Turn a Kafka record into the requests that are due, by the platform's own parsing, routing, payload and signature.

Runs in the plain consumer. Pure: no Kafka, no network, no Postgres.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

from delivery import errors
from delivery.model import Event, Record
from delivery.registry_model import ContentMode, DeliveryMode, Endpoint, EndpointStatus, TenantStatus
from delivery.webhooks.events import parsing
from delivery.webhooks.routing import matching
from delivery.webhooks.sending import payload, signing


class RoutedRequest(NamedTuple):
    """A request that is due to an endpoint. The signature is missing, because it holds the time of the attempt."""

    endpoint: Endpoint
    webhook_id: str
    content_headers: bytes
    """Header lines that describe the body, each ended by CRLF."""
    body: bytes


def requests_of(record: Record, router: matching.Router, layout: parsing.Layout) -> Iterator[RoutedRequest]:
    """Yield the requests that are due to active endpoints in direct mode.

    Events for paused, disabled and quarantined endpoints are dropped, where the platform would keep them. Raise EventRejected
    if the record is not an event of an active tenant.
    """
    event = parsing.parse(record, layout)
    if router.tenant_status(event.tenant_id) is not TenantStatus.ACTIVE:
        raise errors.EventRejected("unknown_tenant", f"tenant {event.tenant_id} is not an active tenant of the registry")
    contents: dict[ContentMode, payload.Content] = {}
    for match in router.matches(event):
        if matching.skip_reason(match.subscription) is None and _is_direct(match.endpoint):
            content = _content(event, match.endpoint.content_mode, contents)
            webhook_id = payload.webhook_id(event, match.subscription.subscription_id)
            yield RoutedRequest(match.endpoint, webhook_id, content.headers, content.body)


def headers_of(request: RoutedRequest, now_s: int) -> dict[str, str]:
    """Return the headers of one attempt at `now_s`, seconds since the epoch, with the signature of Standard Webhooks."""
    return {
        "webhook-id": request.webhook_id,
        "webhook-timestamp": str(now_s),
        "webhook-signature": signing.sign(request.endpoint.signing_keys, request.webhook_id, now_s, request.body),
        # aiohttp would write this name with capitals. The load tests' receiver reads small letters, as the platform writes.
        "content-length": str(len(request.body)),
        **fields_of(request.content_headers),
    }


@functools.lru_cache(maxsize=1_000)
def fields_of(lines: bytes) -> dict[str, str]:
    """Return header lines, each ended by CRLF, as names and values."""
    return dict(line.split(": ", 1) for line in lines.decode("ascii").split("\r\n") if line)


def _is_direct(endpoint: Endpoint) -> bool:
    return endpoint.mode is DeliveryMode.DIRECT and endpoint.status is EndpointStatus.ACTIVE and not endpoint.fault


def _content(event: Event, mode: ContentMode, known: dict[ContentMode, payload.Content]) -> payload.Content:
    """Return the event's content in `mode`. Endpoints with the same mode share it."""
    if mode not in known:
        known[mode] = payload.content(event, mode)
    return known[mode]
