"""Write events, pending batches and finished batches as bytes, and read them back.

Runs in the executors. The API, the archive and the commands use packed events too. A segment is the value of one row: pending
batches of one or more endpoints of one shard. The bytes are shuffled, and stay in a lane's state over restarts and upgrades. A
new field comes at the end and has a default, so that old bytes can be read. Any other change needs a higher VERSION.

The batch lane packs an event (MessagePack) when it collects the event, and unpacks it when it makes the request. Batching
decodes no event: it decides by the size and the arrival of the event, which stand beside the packed event.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import orjson

from delivery.model import Attributes, Event, EventId, LeaveReason, Record
from delivery.payload_form import Opaque
from delivery.registry_model import Batching, CustomerId, EndpointId, SubscriptionId, SubTenantId, TenantId
from delivery.webhooks.state import versioning

VERSION = 1
MAX_BYTES = 2 * 1024 * 1024
"""Most bytes of events in a segment that is shuffled; far below the limits of a row and of a value of Spark's state. A segment
with a single pending batch may exceed MAX_BYTES."""
SPREAD, MAX_SPREAD_MS = 0.1, 10_000
"""`bounds_of` reduces an endpoint's longest wait by at most the share SPREAD, and by at most MAX_SPREAD_MS milliseconds."""
_SPREAD_SALT = -1
"""Salt that `bounds_of` passes to `shard_of`, so that the reduction does not depend on the endpoint's shard. The salts of full
batches are 0, 1, … (`shard_of`), so -1 is free."""
_FRAME_BYTES = 136
"""Bytes that a body adds to an event's attributes and payload, in the larger content mode. A test checks the number."""
_ATTRIBUTES_FRAME_BYTES = 16
"""Bytes that a body adds to `Event.attributes`, if the event has any."""
_OPAQUE_FRAME_BYTES = 32
"""Bytes that a body adds to the media type of an opaque payload: the names `datacontenttype` and `data_base64`."""


class Packed(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A packed event: a MessagePack array with every field that the event's dead letter needs.

    The array leaves out fields at its end that have their default, but never `headers`. The parsed content, which only filters
    need, is no field.
    """

    event_id: EventId
    """The event's id. If its producer gave none: `topic:partition:offset`."""
    event_type: str
    """The event's type."""
    source: str
    """The event's source."""
    tenant_id: TenantId
    """Tenant at which the event happened."""
    sub_tenant_id: SubTenantId | None
    """Department of the tenant, where the event has one."""
    time: str
    """When the event happened (RFC 3339), as its producer wrote it. Without a valid time: when Kafka appended the event."""
    data: bytes
    """The payload as JSON, byte for byte as it came, or decoded by its schema. An opaque payload is a JSON string: its text, or
    the base64 of its bytes. An event without a payload has `null`."""
    topic: str
    """Topic of the event's record."""
    partition: int
    """Partition of the event's record."""
    offset: int
    """Offset of the event's record."""
    appended_at_ms: int
    """When Kafka appended the event, milliseconds since the epoch."""
    headers: tuple[tuple[str, bytes], ...] = ()
    """Headers of the event's record: pairs of a name and a value."""
    attributes: Attributes = ()
    """The CloudEvents attributes that no field above has, such as `subject`: pairs of a name and a value. Written since
    2026-11-24."""
    opaque: Opaque | None = None
    """Form and media type of a payload that is not JSON. None: the payload is JSON. Written since 2026-11-25."""
    payload_digest: str = ""
    """Digest of the payload, if the `webhook-id` depends on the payload. Otherwise empty. Written since 2026-11-25."""
    json_type: str = ""
    """Media type of a JSON payload, by its producer. Empty for `application/json`, and for a payload that is not JSON. Written
    since 2026-11-26."""

    def event(self) -> Event:
        """Return the event as an Event.

        The fields that are not packed are None: `content`, `framed`, and the record's value and key. `has_invalid_time` is
        False.
        """
        record = Record(self.topic, self.partition, self.offset, self.appended_at_ms, None, self.headers)
        return Event(
            event_id=self.event_id,
            event_type=self.event_type,
            source=self.source,
            tenant_id=self.tenant_id,
            sub_tenant_id=self.sub_tenant_id,
            time=self.time,
            data=self.data,
            content=None,
            record=record,
            attributes=self.attributes,
            opaque=self.opaque,
            payload_digest=self.payload_digest,
            json_type=self.json_type,
        )


class SegmentItem(NamedTuple):
    """A packed event, with its size and time of arrival."""

    packed: bytes
    size: int
    """Upper bound of the event's bytes in a body, in either content mode."""
    arrived_at_ms: int
    """When Kafka appended the event, or when a task packed it, whichever is earlier. Milliseconds since the epoch."""


class Bounds(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Bounds of an endpoint's batches. The bounds travel with the events, so that a shard needs no registry."""

    max_events: int
    max_wait_ms: int
    max_bytes: int


class Mark:
    """The mark of a pending batch. The task that collects the events sets the mark, which says when the shard sends them."""

    WAITS = 0
    """The shard sends the events when they fill a batch, or when the oldest has waited long enough."""
    IMMEDIATE = 1
    """Immediate flush: the endpoint's longest wait is not longer than the look-ahead. The shard sends the events now."""
    FULL = 2
    """The events are a full batch. The shard sends this batch as it is, apart from the endpoint's other events."""


@dataclass(slots=True, kw_only=True)
class PendingBatch:
    """Events for one endpoint that wait for their batch, in order of arrival."""

    endpoint_id: EndpointId
    customer_id: CustomerId
    bounds: Bounds
    mark: int = Mark.WAITS
    items: list[SegmentItem] = field(default_factory=list)
    subscription_ids: list[SubscriptionId] = field(default_factory=list)
    """For each item, in the same order, the subscription that the event matched."""
    size: int = 0
    """Sum of the sizes of all items, in bytes."""
    oldest_ms: int = 2**62
    """When the oldest item arrived, milliseconds since the epoch. 2**62: there is no item."""

    @property
    def key(self) -> str:
        """Return the endpoint's key, `customer id/endpoint id`: another customer may register the same endpoint id later."""
        return f"{self.customer_id}/{self.endpoint_id}"

    def add(self, item: SegmentItem, subscription_id: SubscriptionId) -> None:
        """Append an item, and the subscription that its event matched."""
        self.items.append(item)
        self.subscription_ids.append(subscription_id)
        self.size += item.size
        if item.arrived_at_ms < self.oldest_ms:  # noqa: PLR1730  # for each event; min takes three times as long
            self.oldest_ms = item.arrived_at_ms

    def extend(self, later: PendingBatch) -> None:
        """Add the events of a later pending batch of the same endpoint. `bounds` and `mark` become those of `later`."""
        self.items += later.items
        self.subscription_ids += later.subscription_ids
        self.size += later.size
        self.oldest_ms = min(self.oldest_ms, later.oldest_ms)
        self.bounds, self.mark = later.bounds, later.mark

    def part(self, first: int, end: int) -> PendingBatch:
        """Return a pending batch with the items `first` to `end`, `end` excluded, and the mark WAITS.

        If these are all items, return this object itself, with its own mark.
        """
        if (first, end) == (0, len(self.items)):
            return self
        items = self.items[first:end]
        return PendingBatch(
            endpoint_id=self.endpoint_id,
            customer_id=self.customer_id,
            bounds=self.bounds,
            items=items,
            subscription_ids=self.subscription_ids[first:end],
            size=sum(item.size for item in items),
            oldest_ms=min((item.arrived_at_ms for item in items), default=2**62),
        )


class _WrittenBatch(msgspec.Struct, array_like=True, gc=False):
    """A pending batch in a segment. `places` has the index of each of its items in the lists of _Segment."""

    endpoint_id: EndpointId
    customer_id: CustomerId
    bounds: Bounds
    mark: int
    size: int
    oldest_ms: int
    subscriptions: list[SubscriptionId]
    places: list[int]
    subscription_places: list[int]
    """For each item the index of its subscription in `subscriptions`. Empty if there is one subscription."""


class _Segment(msgspec.Struct, array_like=True, gc=False):
    """A segment as written: its items in three lists of the same length, and the pending batches that refer to them."""

    packed: list[bytes]
    sizes: list[int]
    arrived_at_ms: list[int]
    batches: list[_WrittenBatch]


class Batch(msgspec.Struct, array_like=True, gc=False):
    """A batch that a shard has sent to the tasks that deliver batches."""

    endpoint_id: EndpointId
    customer_id: CustomerId
    reason: LeaveReason
    subscriptions: list[SubscriptionId]
    subscription_places: list[int]
    """For each event the index of its subscription in `subscriptions`. Empty if there is one subscription."""
    packed: list[bytes]
    """The packed events, in order of arrival."""


_ATTRIBUTES_PLACE = Packed.__struct_fields__.index("attributes")
_encoder = msgspec.msgpack.Encoder()
_packed = msgspec.msgpack.Decoder(Packed)
_segments = msgspec.msgpack.Decoder(_Segment)
_batches = msgspec.msgpack.Decoder(Batch)


def shard_of(endpoint_id: EndpointId, shards: int, salt: int = 0) -> int:
    """Return the number of an endpoint's shard, from 0 to `shards` - 1, the same in every process.

    The shard depends on `salt` too, so the full batches of one endpoint, each with its own salt, spread over the shards.
    """
    digest = hashlib.blake2b(f"{salt}:{endpoint_id}".encode() if salt else endpoint_id.encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % shards


@functools.lru_cache(maxsize=50_000)  # asked for each batch
def bounds_of(endpoint_id: EndpointId, batching: Batching) -> Bounds:
    """Return the bounds of an endpoint's batches, with a reduced wait.

    The reduction is at most the share SPREAD of the wait, and at most MAX_SPREAD_MS. Only the endpoint's id decides how large
    the reduction is. Without the reduction, batches that began to wait together, as after a start of the job, would be due
    together for ever. A thousand batches would leave in one moment, and none between.
    """
    max_wait_ms = round(batching.max_wait_s * 1000)
    spread_ms = min(round(max_wait_ms * SPREAD), MAX_SPREAD_MS)
    less_ms = shard_of(endpoint_id, spread_ms + 1, salt=_SPREAD_SALT)
    return Bounds(batching.max_events, max_wait_ms - less_ms, batching.max_bytes)


def item(event: Event, now_ms: int) -> SegmentItem:
    """Return an event as an item that arrived at the time of its record or at `now_ms`, whichever is earlier."""
    topic, partition, offset, appended_at_ms, _, headers, _ = event.record
    # The bytes of a Packed. Making one first would take 1.5 times as long.
    fields: tuple[object, ...] = (*event[:7], topic, partition, offset, appended_at_ms, headers)
    # Attributes as JSON have the same escapes as in a body.
    size = len(orjson.dumps(event[:6])) + len(event.data) + _FRAME_BYTES
    if event.attributes:
        fields = (*fields, event.attributes)
        size += len(orjson.dumps(dict(event.attributes))) + _ATTRIBUTES_FRAME_BYTES
    if event.opaque is not None:
        fields = (*fields[:_ATTRIBUTES_PLACE], event.attributes, event.opaque)
        size += len(orjson.dumps(event.opaque.media_type)) + _OPAQUE_FRAME_BYTES
    if event.payload_digest:
        fields = (*fields[:_ATTRIBUTES_PLACE], event.attributes, event.opaque, event.payload_digest)
    if event.json_type:
        fields = (*fields[:_ATTRIBUTES_PLACE], event.attributes, event.opaque, event.payload_digest, event.json_type)
        size += len(orjson.dumps(event.json_type))
    packed = _encoder.encode(fields)
    # Kafka headers are in no body, but travel with the event: a deferred batch is one record with all of them.
    return SegmentItem(packed, max(size, len(packed)), min(appended_at_ms, now_ms))


def unpacked(packed: bytes) -> Packed:
    """Return the event that `item` or `packed` packed."""
    return _packed.decode(packed)


def packed(event: Packed) -> bytes:
    """Return the event as the bytes that `unpacked` reads."""
    if event.json_type:
        return _encoder.encode(event)
    further = 3 if event.payload_digest else 2 if event.opaque is not None else 1 if event.attributes else 0
    return _encoder.encode(msgspec.structs.astuple(event)[: _ATTRIBUTES_PLACE + further])


def encoded(batches: Iterable[PendingBatch], max_bytes: int = MAX_BYTES) -> Iterator[tuple[bytes, list[PendingBatch]]]:
    """Yield the pending batches as segments: pairs of a segment's bytes and the pending batches in it.

    A segment has at most `max_bytes` of events, or a single pending batch. A SegmentItem object that several pending batches
    share is in a segment once.
    """
    together: list[PendingBatch] = []
    places: dict[int, int] = {}
    size = 0
    for batch in batches:
        if together and size + batch.size > max_bytes:
            yield _encoded(together, places), together
            together, places, size = [], {}, 0
        together.append(batch)
        size += batch.size
    if together:
        yield _encoded(together, places), together


def _encoded(batches: list[PendingBatch], places: dict[int, int]) -> bytes:
    written = _Segment([], [], [], [])
    for batch in batches:
        subscriptions = {name: number for number, name in enumerate(dict.fromkeys(batch.subscription_ids))}
        stands_at = []
        for pending in batch.items:
            # By identity: the same object is the same event, and all items are alive here.
            place = places.get(id(pending))
            if place is None:
                place = places[id(pending)] = len(written.packed)
                written.packed.append(pending.packed)
                written.sizes.append(pending.size)
                written.arrived_at_ms.append(pending.arrived_at_ms)
            stands_at.append(place)
        written.batches.append(
            _WrittenBatch(
                batch.endpoint_id,
                batch.customer_id,
                batch.bounds,
                batch.mark,
                batch.size,
                batch.oldest_ms,
                list(subscriptions),
                stands_at,
                [subscriptions[name] for name in batch.subscription_ids] if len(subscriptions) > 1 else [],
            )
        )
    return versioning.versioned(VERSION, _encoder.encode(written))


def decoded(written: bytes) -> list[PendingBatch]:
    """Return the pending batches of a segment that `encoded` wrote. Raise StateUnreadable for the bytes of another VERSION."""
    read = _segments.decode(versioning.read(written, VERSION, "a segment of the batch lane"))
    items = list(map(SegmentItem, read.packed, read.sizes, read.arrived_at_ms))
    return [
        PendingBatch(
            endpoint_id=batch.endpoint_id,
            customer_id=batch.customer_id,
            bounds=batch.bounds,
            mark=batch.mark,
            items=[items[place] for place in batch.places],
            subscription_ids=[batch.subscriptions[number] for number in batch.subscription_places]
            if batch.subscription_places
            else batch.subscriptions * len(batch.places),
            size=batch.size,
            oldest_ms=batch.oldest_ms,
        )
        for batch in read.batches
    ]


def encoded_batch(batch: PendingBatch, reason: LeaveReason) -> bytes:
    """Return all events of a pending batch as the bytes of a `Batch` that a shard sends for `reason`."""
    subscriptions = {name: number for number, name in enumerate(dict.fromkeys(batch.subscription_ids))}
    left = Batch(
        batch.endpoint_id,
        batch.customer_id,
        reason,
        list(subscriptions),
        [subscriptions[name] for name in batch.subscription_ids] if len(subscriptions) > 1 else [],
        [item.packed for item in batch.items],
    )
    return versioning.versioned(VERSION, _encoder.encode(left))


def decoded_batch(written: bytes) -> Batch:
    """Return the batch that `encoded_batch` wrote. Raise StateUnreadable for the bytes of another VERSION."""
    return _batches.decode(versioning.read(written, VERSION, "a batch that left its shard"))
