"""Build the request body of a batch, and read from the response which events of the batch it rejects.

Source: Standard Webhooks 1.0 for each message of the array. CloudEvents 1.0.2, "JSON Batch Format" (section 4 of the JSON event
format) and "HTTP Protocol Binding" (section 3.3).
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import orjson

from delivery.model import LeaveReason, Outcome, OutcomeKind
from delivery.registry_model import ContentMode, Endpoint, EndpointId, SubscriptionId
from delivery.webhooks.batching.segment import Packed
from delivery.webhooks.sending import payload

REJECTED = "rejected_by_endpoint"
"""Reason of the dead letter of an event that the endpoint rejected in its response to a batch."""
MAX_REASON_CHARS = 200
"""Maximum of characters that are kept of the reason for which an endpoint rejects an event."""
GZIP_LEVEL = 1
"""Compression level of gzip. Level 6 would make batches of JSON a fifth smaller, for three times the CPU."""


class BatchDelivery(NamedTuple):
    """A batch: events due to one endpoint that go to it in one request.

    `signed` is the request body before compression, which the signature covers. `body` is the request body as it is sent.
    """

    endpoint: Endpoint
    webhook_id: str
    signed: bytes
    body: bytes
    content_headers: bytes
    events: Sequence[Packed]
    subscription_ids: Sequence[SubscriptionId]
    """For each event, in the same order, the subscription by which it is due."""
    left_by: LeaveReason

    @property
    def kept_response_bytes(self) -> int:
        """Return the most bytes of a response to keep: the transport's maximum, enough to reject some hundred events."""
        return 16 * 1024


class BatchOutcome(NamedTuple):
    """The outcome of a batch, with the events that the endpoint rejected although it accepted the batch."""

    outcome: Outcome[BatchDelivery]
    rejected: Mapping[int, str] = {}  # never changed
    """In an accepted batch: the indexes of the rejected events, each with the endpoint's shortened reason."""


def content(events: Sequence[Packed], mode: ContentMode) -> payload.Content:
    """Return the body and content headers of a request for a batch. Each payload stays the same byte for byte.

    `mode` is not binary: the database refuses that mode for batches.
    """
    if mode is ContentMode.CLOUDEVENTS_STRUCTURED:
        headers, as_json = b"content-type: application/cloudevents-batch+json\r\n", payload.structured
    else:
        headers, as_json = b"content-type: application/json\r\n", payload.standard
    return payload.Content(headers, b"[%s]" % b",".join(map(as_json, events)))


def compressed(plain: payload.Content) -> payload.Content:
    """Return the content with its body compressed by gzip, and with the header `content-encoding`.

    Callers sign the body before compression. The public libraries with which receivers verify signatures take text, and many
    servers pass on only the decompressed body.
    """
    return payload.Content(plain.headers + b"content-encoding: gzip\r\n", gzip.compress(plain.body, GZIP_LEVEL, mtime=0))


def with_content(delivery: BatchDelivery) -> BatchDelivery:
    """Return the batch with its body, in the content mode of its endpoint, compressed if the endpoint asks for gzip."""
    made = content(delivery.events, delivery.endpoint.content_mode)
    batching = delivery.endpoint.batching
    sent = compressed(made) if batching is not None and batching.is_gzipped else made
    return delivery._replace(signed=made.body, body=sent.body, content_headers=sent.headers)


def batch_outcome(outcome: Outcome[BatchDelivery]) -> BatchOutcome:
    """Return a batch's outcome with the events that the response rejected. The request's body is dropped."""
    named: Mapping[int, str] = {}
    if outcome.kind is OutcomeKind.DELIVERED:
        named = rejected_events(outcome.attempts[-1].response, len(outcome.delivery.events))
    return BatchOutcome(outcome._replace(delivery=outcome.delivery._replace(signed=b"", body=b"")), named)


def webhook_id(endpoint_id: EndpointId, events: Sequence[Packed], subscription_ids: Sequence[SubscriptionId]) -> str:
    """Return the `webhook-id` of a batch: a digest of its endpoint, events and subscriptions.

    All attempts with these events have the same id. The id changes if some events are skipped before a later attempt. The id
    also changes if the events are in other batches after a crash (docs/adr/0014-journal.md).
    """
    parts = [f"{payload.identity_of(event)}\0{name}" for event, name in zip(events, subscription_ids, strict=True)]
    return "batch_" + hashlib.blake2b("\0".join([endpoint_id, *parts]).encode(), digest_size=16).hexdigest()


def rejected_events(response: bytes, count: int) -> dict[int, str]:
    """Return the indexes of the events that a 2xx response to a batch rejects, each with the shortened reason.

    The batch has `count` events. A rejecting response is `{"rejected": [{"index": 3, "reason": "no such order"}]}`. Any other
    response rejects nothing, for example `ok`, a page, or other JSON. A list with one invalid entry rejects nothing either, nor
    does a response that was cut because it is longer than BatchDelivery.kept_response_bytes.
    """
    if b'"rejected"' not in response:  # the usual case
        return {}
    try:
        named = orjson.loads(response)["rejected"]
        found = {entry["index"]: entry.get("reason", "") for entry in named}
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}
    if not all(type(place) is int and 0 <= place < count and isinstance(why, str) for place, why in found.items()):
        return {}
    return {place: why[:MAX_REASON_CHARS] for place, why in found.items()}
