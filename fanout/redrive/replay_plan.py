"""Decide which retry entries a replay writes. Pure, except that `Routes.due` may ask the schema registry.

Runs in `fanout archive` and the tests. For a time range, delivery.webhooks.routing.intake decides with the present registry
which events are due, as in the lanes. Each retry entry carries the id of the replay, and so do all later records about the
entry. By this id `fanout reconcile` distinguishes replayed deliveries from due deliveries. A delivery keeps its `webhook-id`
while `source.reused_ids` stays the same. A batch has a digest of its events as `webhook-id`, so a replayed batch usually gets
another `webhook-id`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from delivery.model import Event, LeaveReason, NextAttempt, Record
from delivery.registry_model import Endpoint, Revision, SubscriptionId
from delivery.webhooks.batching import segment
from delivery.webhooks.events import opaque, ordering_key, parsing
from delivery.webhooks.formats import decoder
from delivery.webhooks.policy import retry_reasons
from delivery.webhooks.results import topic_rows
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.routing import intake, matching, registries
from delivery.webhooks.routing.registry_snapshot import Snapshot
from delivery.webhooks.state import chunking

MAX_BYTES = 2 * 1024 * 1024
"""Bytes of packed events after which `Routes.due` takes no further record. If Kafka does not confirm a chunk within
publishing.FLUSH_TIMEOUT_S, the whole chunk is enqueued again. So a replay needs a Kafka that takes 70 KB a second."""
MAX_REQUEST_BYTES = 256 * 1024
"""Maximum bytes of events in one batch, so that Kafka takes the record. A larger event is a batch of its own."""


class Due(NamedTuple):
    """A delivery to replay. It lacks the event's parsed content, which takes several times the memory of the event's bytes."""

    item: segment.SegmentItem
    """The event, packed."""
    subscription_id: SubscriptionId
    """The subscription that the event matches."""
    order_key: str | None
    """The event's order key. None: the endpoint has no `order_by`."""


class Chunk:
    """A range of offsets of one partition that a replay reads. Selects the records in the replay's time range."""

    def __init__(self, first: int, end: int, *, since_ms: int, until_ms: int) -> None:
        """The offsets are from `first` to `end` - 1. The times are from `since_ms` up to, and not including, `until_ms`."""
        self._end = end
        self._since_ms, self._until_ms = since_ms, until_ms
        self.records = 0
        """Number of records read, in the time range or not."""
        self.earliest_ms: float = math.inf
        """The earliest time of a record read. Infinite: no record was read."""
        self.next_offset = first
        """The first offset that is not read."""

    def in_range(self, records: Iterable[Record]) -> Iterator[Record]:
        """Yield the chunk's `records` that are in the time range. The caller may stop before the end."""
        for record in records:
            self.records += 1
            self.earliest_ms = min(self.earliest_ms, record.appended_at_ms)
            self.next_offset = record.offset + 1
            if self._since_ms <= record.appended_at_ms < self._until_ms:
                yield record
        self.next_offset = self._end  # behind the last record there may be offsets without a record


class Routes:
    """Decide which events are due to an endpoint, which must be the only endpoint in `registry`."""

    def __init__(
        self, registry: Snapshot, endpoint: Endpoint, layout: parsing.Layout, formats: decoder.Decoder | None = None
    ) -> None:
        self.endpoint = endpoint
        self.revision = registry.revision
        self._registry = registries.WholeRegistry("", registry)
        self._layout = layout
        self._formats = formats

    def due(self, records: Iterable[Record], event_types: Sequence[str] | None, *, max_bytes: int = MAX_BYTES) -> list[Due]:
        """Return the deliveries of these records that are due to the endpoint and have one of the `event_types`.

        Take no further record once the deliveries have `max_bytes` of packed events. An event counts once for each of its
        deliveries, with its size before compression. `event_types` may have prefix wildcards; None: every type. Records that
        the lanes reject are left out, and are not written to the topic of rejected records. Raise SchemaRegistryUnavailable if
        the schema of a record cannot be read now.
        """
        return asyncio.run(self._due(records, event_types, max_bytes))

    async def _due(self, records: Iterable[Record], event_types: Sequence[str] | None, max_bytes: int) -> list[Due]:
        def prepared(event: Event, matches: list[matching.Match]) -> list[Due]:
            if event_types is not None and not any(matching.takes_type(wanted, event.event_type) for wanted in event_types):
                return []
            return deliveries(event, self.endpoint, [match.subscription.subscription_id for match in matches])

        accepted = intake.Intake(self._registry, self._layout, self.endpoint.mode, prepared, formats=self._formats)
        found: list[Due] = []
        size = 0
        for record in records:
            of_record = await accepted.accept(record, []) or ()
            found += of_record
            size += sum(len(due.item.packed) for due in of_record)
            if size >= max_bytes:
                break
        return found


def deliveries(event: Event, endpoint: Endpoint, subscription_ids: Iterable[SubscriptionId]) -> list[Due]:
    """Return the deliveries of an event to an endpoint, one for each subscription. All deliveries share the packed event."""
    item = segment.item(opaque.as_received(event, endpoint.payload), event.record.appended_at_ms)
    order_key = None if endpoint.order_by is None else ordering_key.key_of(event.content, endpoint.order_by)
    return [Due(item, subscription_id, order_key) for subscription_id in subscription_ids]


def requests(due: Iterable[Due], endpoint: Endpoint) -> Iterator[list[Due]]:
    """Group deliveries into requests: for an endpoint in direct mode one delivery each, in batch mode batches.

    A batch keeps to the bounds of the endpoint, and to MAX_REQUEST_BYTES. An event that is larger than these bounds permit is a
    batch of its own.
    """
    if endpoint.batching is None:
        yield from ([delivery] for delivery in due)
        return
    max_bytes = min(endpoint.batching.max_bytes, MAX_REQUEST_BYTES)
    for together in chunking.chunks(due, _count, endpoint.batching.max_events):
        yield from chunking.chunks(together, lambda delivery: delivery.item.size, max_bytes)


def entry_of(
    together: Sequence[Due], endpoint: Endpoint, replay_id: str, *, now_ms: int, revision: Revision
) -> retry_messages.RetryEntry:
    """Return the retry entry of deliveries that go in one request, and are due by this `revision` of the registry."""
    return retry_messages.new_entry(
        [due.item.packed for due in together],
        [due.subscription_id for due in together],
        left_by=None if endpoint.batching is None else LeaveReason.REDRIVE,
        next_attempt=NextAttempt(at_ms=now_ms, retries=0),
        max_age_s=endpoint.retrying.max_age_s,
        reason=retry_reasons.REPLAYED,
        now_ms=now_ms,
        order_key=together[0].order_key,
        replay=replay_id,
        revision=revision,
    )


def records(due: Iterable[Due], routes: Routes, replay_id: str, *, now_ms: int, resends: bool) -> Iterator[bytes]:
    """Yield the values of the records that enqueue `due` in the retries topic. The key of each record is the endpoint's id.

    `resends` True: each of `due` is a resend, which was requested for one delivery. If the delivery waits in the retry lane
    already, the lane makes its retry entry due now, and skips the resend (delivery.webhooks.retries.resends). The lane never
    skips a batch.
    """
    endpoint, revision = routes.endpoint, routes.revision
    entries = (
        entry_of(together, endpoint, replay_id, now_ms=now_ms, revision=revision) for together in requests(due, endpoint)
    )
    for chunk in chunking.chunks(entries, lambda entry: entry.written_bytes, topic_rows.MAX_POSTPONED_BYTES):
        yield retry_messages.encoded(
            retry_messages.Postponed.deferral(endpoint.endpoint_id, endpoint.customer_id, chunk, resends=resends)
        )


def _count(_: Due) -> int:
    return 1
