"""Make what a customer receives of a batch, and read which of its events the response rejects.

Runs in the executors. Must not import pyspark or psycopg.
Source: Standard Webhooks 1.0 for each message of the array; CloudEvents 1.0.2, "JSON Batch Format" (section 4 of the JSON event
format) and "HTTP Protocol Binding" (section 3.3).
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import orjson

from delivery.model import ContentMode, Endpoint, EndpointId, LeaveReason, Outcome, OutcomeKind, SubscriptionId
from delivery.webhooks.batching.segment import Packed
from delivery.webhooks.sending import payload

REJECTED = "rejected_by_endpoint"
"""The reason of the dead letter of an event that the endpoint named in its answer to a batch."""
MAX_REASON_CHARS = 200
GZIP_LEVEL = 1
"""Of JSON in batches, level 6 leaves a fifth less for three times the CPU."""


class BatchDelivery(NamedTuple):
    """Events due to one endpoint, in one request."""

    endpoint: Endpoint
    webhook_id: str
    signed: bytes
    body: bytes
    content_headers: bytes
    events: Sequence[Packed]
    through: Sequence[SubscriptionId]
    """By which subscription each event is due."""
    left_by: LeaveReason

    @property
    def kept_response_bytes(self) -> int:
        """Enough for an endpoint to reject each of some hundred events; what the transport reads at most."""
        return 16 * 1024


class BatchOutcome(NamedTuple):
    """How a batch ended."""

    outcome: Outcome[BatchDelivery]
    rejected: Mapping[int, str] = {}  # never changed
    """Of a batch that was accepted: the events that were not, by their places, each with the endpoint's reason."""


def content(events: Sequence[Packed], mode: ContentMode) -> payload.Content:
    """Return what is sent of a batch; every payload is in it byte for byte."""
    if mode is ContentMode.CLOUDEVENTS_STRUCTURED:
        headers, one = b"content-type: application/cloudevents-batch+json\r\n", payload.structured
    else:
        headers, one = b"content-type: application/json\r\n", payload.standard
    return payload.Content(headers, b"[%s]" % b",".join(map(one, events)))


def compressed(content: payload.Content) -> payload.Content:
    """Return the same content for an endpoint that asks for gzip.

    What is signed stays the body before this: the public libraries verify text, and many servers hand over nothing else.
    """
    return payload.Content(content.headers + b"content-encoding: gzip\r\n", gzip.compress(content.body, GZIP_LEVEL, mtime=0))


def with_content(delivery: BatchDelivery) -> BatchDelivery:
    """Return the batch with what is sent of it, as its endpoint takes it."""
    made = content(delivery.events, delivery.endpoint.content_mode)
    batching = delivery.endpoint.batching
    sent = compressed(made) if batching is not None and batching.is_gzipped else made
    return delivery._replace(signed=made.body, body=sent.body, content_headers=sent.headers)


def settled(outcome: Outcome[BatchDelivery]) -> BatchOutcome:
    """Return how a batch ended, each event of it, without the body: what is left to write is about the events."""
    named: Mapping[int, str] = {}
    if outcome.kind is OutcomeKind.DELIVERED:
        named = rejected(outcome.attempts[-1].response, len(outcome.delivery.events))
    return BatchOutcome(outcome._replace(delivery=outcome.delivery._replace(signed=b"", body=b"")), named)


def webhook_id(endpoint_id: EndpointId, events: Sequence[Packed], through: Sequence[SubscriptionId]) -> str:
    """Return the id that all attempts of this batch carry: a digest of what is in it.

    After a crash its events may leave in other batches, which then have other ids (docs/adr/0014-journal.md).
    """
    parts = [f"{event.source}\0{event.event_id}\0{name}" for event, name in zip(events, through, strict=True)]
    return "batch_" + hashlib.blake2b("\0".join([endpoint_id, *parts]).encode(), digest_size=16).hexdigest()


def rejected(response: bytes, count: int) -> dict[int, str]:
    """Return which of `count` events a 2xx response rejects, each with its reason.

    `{"rejected": [{"index": 3, "reason": "no such order"}]}`. A response that is anything else, or in which anything of this is
    wrong, rejects nothing: a customer who answers `ok`, a page, or JSON of their own has accepted the batch.
    """
    if b'"rejected"' not in response:  # the usual case
        return {}
    try:
        named = orjson.loads(response)["rejected"]
        found = {one["index"]: one.get("reason", "") for one in named}
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}
    if not all(type(place) is int and 0 <= place < count and isinstance(why, str) for place, why in found.items()):
        return {}
    return {place: why[:MAX_REASON_CHARS] for place, why in found.items()}
