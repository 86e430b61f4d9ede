"""Write what waits for its batch as bytes, and read it back: the events of some endpoints, and the batch that is ready.

Runs in the executors. Must not import pyspark or psycopg. These bytes are shuffled, and stay in a lane's state over restarts
and upgrades: a new field stands at the end and has a default, so that old bytes can be read; VERSION rises when that is not
enough.

An event is packed once, when it is collected, and unpacked when its request is made. Between, batching moves packed events
about: all that it decides by stands beside them.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import orjson

from delivery.model import (
    Attributes,
    Batching,
    CustomerId,
    EndpointId,
    Event,
    EventId,
    LeaveReason,
    Record,
    SubscriptionId,
    SubTenantId,
    TenantId,
)
from delivery.webhooks.state import versioning

VERSION = 1
MAX_BYTES = 2 * 1024 * 1024
"""A segment is cut when its events have so many bytes: far below what a row, or a value of the state, may have."""
SPREAD, MAX_SPREAD_MS = 0.1, 10_000
"""Endpoints wait less than they may by up to this part of it, and by no more than this."""
_SPREAD_SALT = -1
"""Makes that part independent of the endpoint's shard. A full batch's salt is its number."""
_FRAME_BYTES = 136
"""What the larger of the two layouts of a body adds to an event's attributes and payload. Held by a test."""
_ATTRIBUTES_FRAME_BYTES = 16
"""What it adds to further attributes, where there are some."""


class Packed(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An event, with all that a dead letter tells of it. The parsed content is left out: it was for the filters."""

    event_id: EventId
    """The event's id, as its producer gave it."""
    event_type: str
    """The event's type."""
    source: str
    """The event's source."""
    tenant_id: TenantId
    """Tenant at which the event happened."""
    sub_tenant_id: SubTenantId | None
    """Department of the tenant, where the event has one."""
    time: str
    """When the event happened, RFC 3339, as its producer wrote it; else when Kafka appended the event."""
    data: bytes
    """The event's payload, byte for byte."""
    topic: str
    """Topic of the event."""
    partition: int
    """Partition of the event."""
    offset: int
    """Offset of the event."""
    appended_at_ms: int
    """When Kafka appended the event."""
    headers: tuple[tuple[str, bytes], ...] = ()
    """Headers of the event's record: pairs of a name and a value."""
    attributes: Attributes = ()
    """The event's other CloudEvents attributes: pairs of a name and a value. The element is left out where there are none.
    Since 2026-11-24."""

    def event(self) -> Event:
        """Return the event as the direct lane has it, less what was parsed and the record's value."""
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
        )


class Item(NamedTuple):
    """A packed event and what batching needs to know of it."""

    packed: bytes
    size: int
    """No fewer bytes than it takes in a body, in either layout."""
    arrived_at_ms: int


class Bounds(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """When a batch leaves. They come with the events, so that the state needs no registry."""

    max_events: int
    max_wait_ms: int
    max_bytes: int


class Mark:
    """What is to be done with a lot."""

    WAITS = 0
    PASSES = 1
    """Its endpoint's wait is over before the next micro-batch can come: it leaves now."""
    FULL = 2
    """It is a whole batch already, and has nothing to do with what else waits for the endpoint."""


@dataclass(slots=True, kw_only=True)
class Lot:
    """What is due to one endpoint, in order of arrival."""

    endpoint_id: EndpointId
    customer_id: CustomerId
    bounds: Bounds
    mark: int = Mark.WAITS
    items: list[Item] = field(default_factory=list)
    through: list[SubscriptionId] = field(default_factory=list)
    """By which subscription each item is due."""
    size: int = 0
    """Of all items."""
    oldest_ms: int = 2**62
    """When the first of them arrived."""

    @property
    def key(self) -> str:
        """Say whose it is. With the customer, who may be another one when the id is registered again; no id has a `/`."""
        return f"{self.customer_id}/{self.endpoint_id}"

    def add(self, item: Item, subscription_id: SubscriptionId) -> None:
        """Add the item that arrived last."""
        self.items.append(item)
        self.through.append(subscription_id)
        self.size += item.size
        if item.arrived_at_ms < self.oldest_ms:  # noqa: PLR1730  # for each event; min takes three times as long
            self.oldest_ms = item.arrived_at_ms

    def extend(self, later: Lot) -> None:
        """Add what arrived after this; the bounds are those that came last."""
        self.items += later.items
        self.through += later.through
        self.size += later.size
        self.oldest_ms = min(self.oldest_ms, later.oldest_ms)
        self.bounds, self.mark = later.bounds, later.mark

    def part(self, first: int, end: int) -> Lot:
        """Return the items from `first` to `end`."""
        if (first, end) == (0, len(self.items)):
            return self
        items = self.items[first:end]
        return Lot(
            endpoint_id=self.endpoint_id,
            customer_id=self.customer_id,
            bounds=self.bounds,
            items=items,
            through=self.through[first:end],
            size=sum(item.size for item in items),
            oldest_ms=min((item.arrived_at_ms for item in items), default=2**62),
        )


class _Due(msgspec.Struct, array_like=True, gc=False):
    """A lot as it is written: its items by their places in the segment, its subscriptions by their places in a list."""

    endpoint_id: EndpointId
    customer_id: CustomerId
    bounds: Bounds
    mark: int
    size: int
    oldest_ms: int
    subscriptions: list[SubscriptionId]
    places: list[int]
    through: list[int]
    """Empty where all are due by the one subscription."""


class _Segment(msgspec.Struct, array_like=True, gc=False):
    packed: list[bytes]
    sizes: list[int]
    arrived_at_ms: list[int]
    lots: list[_Due]


class Batch(msgspec.Struct, array_like=True, gc=False):
    """A batch that has left its shard and is to be delivered."""

    endpoint_id: EndpointId
    customer_id: CustomerId
    reason: LeaveReason
    subscriptions: list[SubscriptionId]
    through: list[int]
    packed: list[bytes]


_encoder = msgspec.msgpack.Encoder()
_packed = msgspec.msgpack.Decoder(Packed)
_segments = msgspec.msgpack.Decoder(_Segment)
_batches = msgspec.msgpack.Decoder(Batch)


def shard_of(endpoint_id: EndpointId, shards: int, salt: int = 0) -> int:
    """Return the shard that an endpoint lives in; with a salt, where one of its full batches goes. The same everywhere."""
    digest = hashlib.blake2b(f"{salt}:{endpoint_id}".encode() if salt else endpoint_id.encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % shards


@functools.lru_cache(maxsize=50_000)  # asked for each lot
def bounds_of(endpoint_id: EndpointId, batching: Batching) -> Bounds:
    """Return the part of an endpoint's settings that travels with its events.

    Each endpoint waits a little less than it may, by a part of its own. Those that began together, as after a start or a spike,
    would else be due together ever after: a thousand batches in one moment, and nothing between.
    """
    max_wait_ms = round(batching.max_wait_s * 1000)
    spread_ms = min(round(max_wait_ms * SPREAD), MAX_SPREAD_MS)
    less_ms = shard_of(endpoint_id, spread_ms + 1, salt=_SPREAD_SALT)
    return Bounds(batching.max_events, max_wait_ms - less_ms, batching.max_bytes)


def item(event: Event, now_ms: int) -> Item:
    """Pack an event that has arrived by now, even if it says otherwise: producers' clocks may be ahead."""
    topic, partition, offset, appended_at_ms, _, headers = event.record
    # As a Packed is written: to make one first would take half as long again.
    fields: tuple[object, ...] = (*event[:7], topic, partition, offset, appended_at_ms, headers)
    # The attributes as JSON have the escapes that they have in a body.
    size = len(orjson.dumps(event[:6])) + len(event.data) + _FRAME_BYTES
    if event.attributes:
        fields = (*fields, event.attributes)
        size += len(orjson.dumps(dict(event.attributes))) + _ATTRIBUTES_FRAME_BYTES
    packed = _encoder.encode(fields)
    # Headers of Kafka are in no body, and yet travel with the event: a batch that is postponed is one record with all of them.
    return Item(packed, max(size, len(packed)), min(appended_at_ms, now_ms))


def unpacked(packed: bytes) -> Packed:
    """Return a packed event."""
    return _packed.decode(packed)


def packed(event: Packed) -> bytes:
    """Return the bytes of which it was read."""
    return _encoder.encode(event if event.attributes else msgspec.structs.astuple(event)[:-1])


def encoded(lots: Iterable[Lot], max_bytes: int = MAX_BYTES) -> Iterator[tuple[bytes, list[Lot]]]:
    """Yield segments with all `lots`, each with those that it holds, at most `max_bytes` of them or one.

    An event that is due to several stands in a segment once.
    """
    held: list[Lot] = []
    places: dict[int, int] = {}
    size = 0
    for lot in lots:
        if held and size + lot.size > max_bytes:
            yield _encoded(held, places), held
            held, places, size = [], {}, 0
        held.append(lot)
        size += lot.size
    if held:
        yield _encoded(held, places), held


def _encoded(lots: list[Lot], places: dict[int, int]) -> bytes:
    written = _Segment([], [], [], [])
    for lot in lots:
        subscriptions = {name: number for number, name in enumerate(dict.fromkeys(lot.through))}
        stands_at = []
        for one in lot.items:
            # By identity: the same object is the same event, and all of them are alive here.
            place = places.get(id(one))
            if place is None:
                place = places[id(one)] = len(written.packed)
                written.packed.append(one.packed)
                written.sizes.append(one.size)
                written.arrived_at_ms.append(one.arrived_at_ms)
            stands_at.append(place)
        written.lots.append(
            _Due(
                lot.endpoint_id,
                lot.customer_id,
                lot.bounds,
                lot.mark,
                lot.size,
                lot.oldest_ms,
                list(subscriptions),
                stands_at,
                [subscriptions[name] for name in lot.through] if len(subscriptions) > 1 else [],
            )
        )
    return versioning.marked(VERSION, _encoder.encode(written))


def decoded(written: bytes) -> list[Lot]:
    """Return the lots of a segment."""
    read = _segments.decode(versioning.read(written, VERSION, "a segment of the batch lane"))
    items = list(map(Item, read.packed, read.sizes, read.arrived_at_ms))
    return [
        Lot(
            endpoint_id=due.endpoint_id,
            customer_id=due.customer_id,
            bounds=due.bounds,
            mark=due.mark,
            items=[items[place] for place in due.places],
            through=[due.subscriptions[number] for number in due.through]
            if due.through
            else due.subscriptions * len(due.places),
            size=due.size,
            oldest_ms=due.oldest_ms,
        )
        for due in read.lots
    ]


def batch_of(lot: Lot, reason: LeaveReason) -> bytes:
    """Return the whole lot as a batch that leaves."""
    subscriptions = {name: number for number, name in enumerate(dict.fromkeys(lot.through))}
    batch = Batch(
        lot.endpoint_id,
        lot.customer_id,
        reason,
        list(subscriptions),
        [subscriptions[name] for name in lot.through] if len(subscriptions) > 1 else [],
        [one.packed for one in lot.items],
    )
    return versioning.marked(VERSION, _encoder.encode(batch))


def batch(written: bytes) -> Batch:
    """Return a batch that left."""
    return _batches.decode(versioning.read(written, VERSION, "a batch that left its shard"))
