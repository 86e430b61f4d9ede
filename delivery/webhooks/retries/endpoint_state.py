"""Keep together what waits for one endpoint and what is known of it, and sum it up for the shard's index.

Runs in the executors. Must not import pyspark or psycopg. Pure: `now_ms` comes in.

The index is read in each micro-batch, and most endpoints have nothing to do in it. So it has an entry for each, of a few
numbers, and the rest as bytes that are read when the endpoint's time has come or something arrives for it.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from delivery.model import CustomerId, EndpointId
from delivery.webhooks.retries import fifo, retry_messages
from delivery.webhooks.retries.window import NEVER_MS, Policy, Window
from delivery.webhooks.state import segment_store

SETTLED_KEPT_MS = 60_000
"""A parcel comes at most so much later than what was told of its attempt."""


class Waiting(msgspec.Struct, array_like=True):
    """What waits for one endpoint."""

    window: Window = msgspec.field(default_factory=Window)
    events: int = 0
    size: int = 0
    flows: dict[str | None, fifo.Flow] = {}
    """By the key in whose order they are; None: those of no order, which wait in the wheel besides."""
    under_way: dict[bytes, tuple[int, int]] = {}
    """Parcels in the wheel of which an attempt goes on, by its name: their events and bytes."""
    settled: dict[bytes, int] = {}
    """Attempts that were told to have ended before their parcels came, by when: a worker writes the two on two threads."""

    def room(self, policy: Policy) -> int:
        """Return how many more requests may be under way. The parcels of a turn in order leave one after another."""
        under_way = sum(one.away if key is None else 1 for key, one in self.flows.items() if one.away)
        return min(self.window.size, policy.max_turn) - under_way

    def begin(self, came: retry_messages.Parcel, turns: int) -> None:
        """Count in a parcel. A flow that begins stands behind those whose turns have left."""
        self.events += len(came.packed)
        self.size += came.size
        self.flows.setdefault(came.order_key, fifo.Flow(turn=turns)).waiting += 1

    def end(self, ended: retry_messages.Parcel) -> None:
        """Count out a parcel that waits no more."""
        self.events -= len(ended.packed)
        self.size -= ended.size
        self.flows[ended.order_key].waiting -= 1

    def expect(self, waits: retry_messages.Parcel) -> None:
        """Remember a parcel that goes into the wheel, if an attempt of it goes on."""
        if waits.under_way is not None:
            self.under_way[waits.under_way] = (len(waits.packed), waits.size)

    def settle(self, name: bytes, now_ms: int) -> None:
        """Count out the parcel whose attempt has ended by itself. The wheel gives it back later: see `has_ended`."""
        if name not in self.under_way:
            self.settled[name] = now_ms
            return
        events, size = self.under_way.pop(name)
        self.events -= events
        self.size -= size
        self.flows[None].waiting -= 1

    def had_ended(self, came: retry_messages.Parcel) -> bool:
        """Tell whether a parcel need not be taken in."""
        return came.under_way is not None and self.settled.pop(came.under_way, None) is not None

    def has_ended(self, woken: retry_messages.Parcel) -> bool:
        """Tell whether what has waited long enough has ended meanwhile. If not, its attempt is not waited for any more."""
        return woken.under_way is not None and self.under_way.pop(woken.under_way, None) is None

    def forget(self, now_ms: int) -> None:
        """Drop the flows in which nothing waits, and what was settled too long ago for its parcel to be still on its way."""
        self.flows = {key: one for key, one in self.flows.items() if one.waiting}
        self.settled = {name: told_ms for name, told_ms in self.settled.items() if told_ms + SETTLED_KEPT_MS > now_ms}

    def pieces(self) -> Iterator[list[segment_store.Piece]]:
        """Yield the pieces of each flow."""
        return (one.pieces for one in self.flows.values())

    def due_ms(self, policy: Policy) -> int:
        """Return when to look at the endpoint, if nothing arrives for it before and nothing comes of the wheel.

        1. A turn's report has not come.             3. There is room for a turn again.
        2. A parcel expires.                         4. Nothing waits any more, and what was known is out of date.
        """
        has_room = self.room(policy) > 0
        times = [NEVER_MS if self.flows else self.window.kept_until_ms(policy)]
        times += [told_ms + SETTLED_KEPT_MS for told_ms in self.settled.values()]
        for one in self.flows.values():
            if one.away:
                times.append(one.left_ms + round(policy.away_s * 1000))
            elif one.pieces:
                times.append(one.expires_ms)
                times += [max(self.window.hold_until_ms, one.not_before_ms)] if has_room else []
        return min(times)


class Entry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What the index says of an endpoint."""

    written: bytes
    """A Waiting."""
    due_ms: int
    events: int
    size: int
    since_ms: int
    """When the first of what is in its flows came."""
    held_until_ms: int
    is_away: bool
    """Whether a turn of it is."""
    failing_ms: int
    """When it was last reported that it is to be disabled; 0: it was not."""
    failing_since_ms: int = 0
    failed_ms: int = 0
    """The times of that report: see pending.Failing."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Waiting)


def entry(one: Waiting, policy: Policy, now_ms: int) -> Entry:
    """Return an endpoint as the index has it."""
    is_failing = one.window.is_failing(policy, now_ms)
    return Entry(
        written=_encoder.encode(one),
        due_ms=one.due_ms(policy),
        events=one.events,
        size=one.size,
        since_ms=min((piece.since_ms for pieces in one.pieces() for piece in pieces), default=NEVER_MS),
        held_until_ms=one.window.held_until_ms if None in one.flows else 0,
        is_away=any(each.away for each in one.flows.values()),
        failing_ms=now_ms if is_failing else 0,
        failing_since_ms=(one.window.failing_since_ms or 0) if is_failing else 0,
        failed_ms=one.window.failed_ms if is_failing else 0,
    )


def read(of: Entry | None, now_ms: int) -> Waiting:
    """Return what waits for an endpoint; nothing for one that has no entry."""
    if of is None:
        return Waiting()
    one = _decoder.decode(of.written)
    if not one.flows and one.window.known_until_ms <= now_ms:
        one.window = one.window.of_old()
    return one


def key(customer_id: CustomerId, endpoint_id: EndpointId) -> str:
    """Name an endpoint in the index. With the customer: its id may be registered again by another. No id has a `/`."""
    return f"{customer_id}/{endpoint_id}"


def customer_id(of: str) -> CustomerId:
    """Return whose the endpoint of a key is."""
    return CustomerId(of[: of.index("/")])


def endpoint_id(of: str) -> EndpointId:
    """Return the endpoint of a key."""
    return EndpointId(of[of.index("/") + 1 :])
