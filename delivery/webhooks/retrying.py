"""Decide which parcels of a shard of the retry lane are attempted now, and keep the others.

Runs in the executors. Must not import pyspark or psycopg. Pure: values and `now_ms` in, a decision out.

    arrived ─► wheel, until again_at_ms ─► flow, in order ─► turn, one at a time ─► report, arrives
                                                                                    ├─► ended
                                                                                    └─► back: wheel, or front of the flow

A shard's state is an index, which is small and written with each decision that changes something, and the numbered segments of
delivery.webhooks.shelf. Nothing leaves the state before a report says how it ended, or before it is given up: whatever is lost
on the way, a turn or its report, leaves again (`away_s`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from delivery import errors
from delivery.model import CustomerId, EndpointId
from delivery.webhooks import chunks, flow, parcel, pending, retry, shelf, wheel, window
from delivery.webhooks.parcel import Parcel

Policy = window.Policy

VERSION = 1
MAX_LEAVING_BYTES = 64 * 1024 * 1024
"""Of events that leave by one decision, whose turns are in memory together. One parcel always may; the rest is due at once."""
AWAY_POLL_MS = 1000
"""While a turn is away the lane is woken so often, to collect its answers."""


class Endpoint(msgspec.Struct, array_like=True):
    """What waits for one endpoint, and what is known of it."""

    window: window.Window
    events: int = 0
    size: int = 0
    flows: dict[str | None, flow.Flow] = {}
    """By the key in whose order they are; None: those of no order, which wait in the wheel besides."""

    def room(self, policy: Policy) -> int:
        """Return how many more requests may be under way. The parcels of a turn in order leave one after another."""
        under_way = sum(lane.away if key is None else 1 for key, lane in self.flows.items() if lane.away)
        return min(self.window.size, policy.max_turn) - under_way


class Index(msgspec.Struct, array_like=True):
    """The state of one shard, less its segments."""

    turns: int = 0
    """The number of the last turn that left."""
    stock: shelf.Stock = msgspec.field(default_factory=shelf.Stock)
    endpoints: dict[str, Endpoint] = {}
    """By customer and endpoint, with a `/` between: the id may be registered again by another customer. No id has a `/`."""
    buckets: wheel.Buckets = {}


@dataclass(slots=True, kw_only=True)
class Decision:
    """What is to be done. `append` and `drop` are disjoint."""

    index: Index
    policy: Policy
    horizon_ms: int
    turns: list[bytes] = field(default_factory=list)
    """As parcel.turn reads them."""
    append: dict[int, bytes] = field(default_factory=dict)
    drop: list[int] = field(default_factory=list)
    changed: bool = False
    """Whether there is anything to write."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Index)


def encoded(index: Index) -> bytes:
    """Return the index as it is kept."""
    return bytes((VERSION,)) + _encoder.encode(index)


def decoded(written: bytes | None) -> Index:
    """Return the index of a shard; an empty one for a shard that has none yet."""
    if not written:
        return Index()
    if written[0] != VERSION:
        raise errors.StateUnreadable(
            f"what waits in the retry lane was indexed in format {written[0]} by a newer version; this one knows {VERSION}"
        )
    return _decoder.decode(memoryview(written)[1:])


def decide(
    index: Index, arrived: Iterable[bytes], read: Callable[[int], bytes], policy: Policy, *, now_ms: int, horizon_ms: int
) -> Decision:
    """Return what leaves and what is kept, with the index changed in place. `read` gives a segment of the state.

    `arrived` are the records of the retries topic for endpoints of this shard, in the topic's order; the same ones give the
    same decision when it runs again. Nothing leaves early: the horizon is only how far ahead of a time the lane is woken.
    """
    return _Deciding(index, read, policy, now_ms, horizon_ms).decided(arrived)


def told(decided: Decision, now_ms: int) -> pending.Pending:
    """Return what waits in one shard after a decision, and who is held and failing."""
    index, policy = decided.index, decided.policy
    waiting = {key: one for key, one in index.endpoints.items() if one.events}
    pieces = (piece for pieces in _owners(index) for piece in pieces)
    due = min(_due_ms(index, policy, now_ms), default=None)
    return pending.Pending(
        shards=1,
        events=sum(one.events for one in waiting.values()),
        size=sum(one.size for one in waiting.values()),
        oldest_ms=min((piece.since_ms for piece in pieces), default=None),
        due_ms=None if due is None else due + decided.horizon_ms,
        held=frozenset(
            _ids(key)[1]
            for key, one in waiting.items()
            if None in one.flows and (not one.window.is_open or one.window.hold_until_ms > now_ms)
        ),
        failing=frozenset(_ids(key)[1] for key, one in waiting.items() if one.window.is_failing(policy)),
    )


def _due_ms(index: Index, policy: Policy, now_ms: int) -> Iterator[int]:
    """Yield the times at which there is something to decide, if nothing arrives before."""
    first = wheel.due_ms(index.buckets)
    if first is not None:
        yield first
    for one in index.endpoints.values():
        has_room = one.room(policy) > 0
        for lane in one.flows.values():
            if lane.away:
                yield now_ms + AWAY_POLL_MS
            elif lane.pieces:
                if has_room:
                    yield max(one.window.hold_until_ms, lane.not_before_ms)
                expires_ms = lane.expires_ms
                if expires_ms is not None:
                    yield expires_ms


def _owners(index: Index) -> Iterator[list[shelf.Piece]]:
    for one in index.endpoints.values():
        for lane in one.flows.values():
            yield lane.pieces
    for bucket in index.buckets.values():
        yield bucket.pieces


def _ids(key: str) -> tuple[CustomerId, EndpointId]:
    customer_id, endpoint_id = key.split("/")
    return CustomerId(customer_id), EndpointId(endpoint_id)


class _Deciding:
    def __init__(self, index: Index, read: Callable[[int], bytes], policy: Policy, now_ms: int, horizon_ms: int) -> None:
        self._index = index
        self._shelf = shelf.Shelf(index.stock, read)
        self._policy = policy
        self._now_ms = now_ms
        self._room = MAX_LEAVING_BYTES
        self._decision = Decision(index=index, policy=policy, horizon_ms=horizon_ms)

    def decided(self, arrived: Iterable[bytes]) -> Decision:
        self._wake()
        for written in arrived:
            message = parcel.message(written)
            if isinstance(message, parcel.Report):
                self._settle(message)
            else:
                self._admit(message)
        self._give_up()
        self._send()
        self._forget()
        self._decision.append, self._decision.drop = self._shelf.write(_owners(self._index))
        self._decision.changed |= bool(self._decision.append or self._decision.drop)
        return self._decision

    def _wake(self) -> None:
        """Let what has waited long enough join its flow."""
        for sleeper in wheel.due(self._index.buckets, self._shelf, self._now_ms):
            lane = self._index.endpoints[sleeper.owner].flows[None]
            self._shelf.add(lane.pieces, flow.item(flow.parcel(sleeper.data)))

    def _admit(self, postponed: parcel.Postponed) -> None:
        """Take in what another lane hands over, as far as there is room for it."""
        self._decision.changed = True
        key = f"{postponed.customer_id}/{postponed.endpoint_id}"
        one = self._index.endpoints.get(key)
        if one is None:
            one = self._index.endpoints[key] = Endpoint(window.Window())
        beyond: list[Parcel] = []
        for arrived in postponed.parcels:
            events = len(arrived.packed)
            if one.events + events > self._policy.max_pending:
                beyond.append(arrived)
                continue
            one.events += events
            one.size += arrived.size
            lane = one.flows.setdefault(arrived.order_key, flow.Flow(turn=self._index.turns))
            lane.waiting += 1
            one.window.heard(arrived.reason, self._policy, self._now_ms)
            self._put(key, lane, arrived)
        self._leave_for_good(key, beyond, retry.NO_ROOM)

    def _put(self, key: str, lane: flow.Flow, waits: Parcel) -> None:
        """Let a parcel wait in the wheel, or at the end of its flow.

        What was to be attempted at once when it came stays in order, though the clock here be behind.
        """
        item, at_ms = flow.item(waits), min(waits.again_at_ms, waits.expires_ms)
        if waits.order_key is not None or at_ms <= max(self._now_ms, waits.since_ms):
            self._shelf.add(lane.pieces, item)
        else:
            wheel.put(self._index.buckets, self._shelf, wheel.Sleeper(key, at_ms, waits.since_ms, item.data), self._now_ms)

    def _settle(self, report: parcel.Report) -> None:
        """Take what came of a turn; one that is not away any more is no news."""
        key = f"{report.customer_id}/{report.endpoint_id}"
        one = self._index.endpoints.get(key)
        lane = one.flows.get(report.order_key) if one is not None else None
        if one is None or lane is None or not lane.away or lane.turn != report.turn:
            return
        self._decision.changed = True
        one.window.reported(report, self._policy, self._now_ms)
        if report.hold is not None:
            lane.away = 0
            return
        back = {each.place: each for each in report.back}
        in_front: list[Parcel] = []
        for place, left in enumerate(lane.taken(self._shelf)):
            if place not in back:
                self._end(one, report.order_key, left)
                continue
            returned = left.returned(back[place])
            if report.order_key is not None or (not back[place].attempts and returned.again_at_ms <= self._now_ms):
                in_front.append(returned)
            else:
                self._put(key, lane, returned)
        lane.return_in_front(self._shelf, in_front)

    def _give_up(self) -> None:
        """Take the turns that are lost for not away; let go what has expired, as far as there is room."""
        lost_ms = self._now_ms - round(self._policy.away_s * 1000)
        for key, one in self._index.endpoints.items():
            for order_key, lane in list(one.flows.items()):
                if lane.away and lane.left_ms <= lost_ms:
                    lane.away = 0
                    self._decision.changed = True
                expires_ms = lane.expires_ms
                if expires_ms is not None and expires_ms <= self._now_ms and self._room > 0:
                    given_up = list(lane.expired(self._shelf, self._room, self._now_ms))
                    self._room -= sum(each.size for each in given_up)
                    for each in given_up:
                        self._end(one, order_key, each)
                    self._leave_for_good(key, given_up, retry.EXPIRED)

    def _send(self) -> None:
        """Let turns leave, of those who have waited longest for theirs first."""
        ready = [
            (lane.turn, key, order_key)
            for key, one in self._index.endpoints.items()
            if one.window.hold_until_ms <= self._now_ms
            for order_key, lane in one.flows.items()
            if lane.pieces and not lane.away and lane.not_before_ms <= self._now_ms
        ]
        rooms: dict[str, int] = {}
        for _, key, order_key in sorted(ready, key=lambda each: each[0]):
            if self._room <= 0:
                return
            one = self._index.endpoints[key]
            room = rooms[key] if key in rooms else one.room(self._policy)
            if room > 0:
                left = self._send_turn(key, order_key, room if order_key is None else self._policy.max_turn)
                room -= left if order_key is None else min(left, 1)
            rooms[key] = room

    def _send_turn(self, key: str, order_key: str | None, most: int) -> int:
        """Let the turn of a flow leave, if its first parcel may; return how many leave."""
        lane = self._index.endpoints[key].flows[order_key]
        leaving = lane.ready(self._shelf, most, self._now_ms)
        if leaving:
            self._index.turns += 1
            lane.turn, lane.away, lane.left_ms = self._index.turns, len(leaving), self._now_ms
            self._room -= sum(each.size for each in leaving)
            self._leave(key, leaving, order_key=order_key, number=lane.turn, given_up=None)
        return len(leaving)

    def _leave_for_good(self, key: str, parcels: list[Parcel], reason: str) -> None:
        for together in chunks.of(parcels, lambda each: each.size, flow.MAX_TURN_BYTES):
            self._leave(key, together, order_key=None, number=0, given_up=reason)

    def _leave(self, key: str, parcels: list[Parcel], **fields: Any) -> None:
        customer_id, endpoint_id = _ids(key)
        turn = parcel.Turn(endpoint_id=endpoint_id, customer_id=customer_id, parcels=parcels, **fields)
        self._decision.turns.append(parcel.encoded(turn))
        self._decision.changed = True

    def _end(self, one: Endpoint, order_key: str | None, ended: Parcel) -> None:
        one.events -= len(ended.packed)
        one.size -= ended.size
        one.flows[order_key].waiting -= 1

    def _forget(self) -> None:
        """Drop the flows in which nothing waits, and the endpoints of which nothing is to be remembered besides."""
        for key, one in list(self._index.endpoints.items()):
            for order_key in [order_key for order_key, lane in one.flows.items() if not lane.waiting]:
                del one.flows[order_key]
            if not one.flows:
                one.window.failing_since_ms = None
                if one.window.known_until_ms <= self._now_ms:
                    del self._index.endpoints[key]
