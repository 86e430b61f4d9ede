"""Decide which parcels of a shard of the retry lane are attempted now, and keep the others.

Runs in the executors. Must not import pyspark or psycopg. Pure: values and `now_ms` in, a decision out.

    arrived ─► wheel, until again_at_ms ─► flow, in order ─► turn, one at a time ─► report, arrives
                                                                                    ├─► ended
                                                                                    └─► back: wheel, or front of the flow

A parcel of which an attempt was under way as it arrived waits in the wheel too, and is dropped there when that is told to have
ended (delivery.webhooks.scheduling.background_attempts).

A shard's state is an index, which is small and written with each decision that changes something, and the numbered segments of
delivery.webhooks.state.segment_store. Nothing leaves the state before a report says how it ended, or before it is given up:
whatever is lost on the way, a turn or its report, leaves again (`away_s`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from delivery.webhooks.policy import retry_decision
from delivery.webhooks.retries import endpoint_state, fifo, retry_messages, timer_wheel, window
from delivery.webhooks.retries.endpoint_state import Waiting
from delivery.webhooks.retries.retry_messages import Parcel
from delivery.webhooks.state import backlog, chunking, segment_store, versioning

Policy = window.Policy

VERSION = 2
"""1 knew nothing of attempts that go on: it would fail on what the wheel has of them."""
MAX_LEAVING_BYTES = 64 * 1024 * 1024
"""Of events that leave by one decision, whose turns are in memory together; one turn more always may. The rest is due at
once."""
AWAY_POLL_MS = 1000
"""While a turn is away the lane is woken so often, to collect its answers."""


class Index(msgspec.Struct, array_like=True):
    """The state of one shard, less its segments."""

    turns: int = 0
    """The number of the last turn that left."""
    stock: segment_store.Stock = msgspec.field(default_factory=segment_store.Stock)
    endpoints: dict[str, endpoint_state.Entry] = {}
    """By waiting.key."""
    buckets: timer_wheel.Buckets = {}


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
    return versioning.marked(VERSION, _encoder.encode(index))


def decoded(written: bytes | None) -> Index:
    """Return the index of a shard; an empty one for a shard that has none yet."""
    if not written:
        return Index()
    return _decoder.decode(versioning.read(written, VERSION, "an index of the retry lane", oldest=1))


def decide(
    index: Index, arrived: Iterable[bytes], read: Callable[[int], bytes], policy: Policy, *, now_ms: int, horizon_ms: int
) -> Decision:
    """Return what leaves and what is kept, with the index changed in place. `read` gives a segment of the state.

    `arrived` are the records of the retries topic for endpoints of this shard, in the topic's order; the same ones give the
    same decision when it runs again. Nothing leaves early: the horizon is only how far ahead of a time the lane is woken.
    """
    decision = Decision(index=index, policy=policy, horizon_ms=horizon_ms)
    return _Deciding(decision, read, now_ms).decided(arrived)


def told(decided: Decision, now_ms: int) -> backlog.Pending:
    """Return what waits in one shard after a decision, and who is held and failing."""
    events = size = 0
    held, failing = set(), set()
    times = [(one.due_ms, one.since_ms) for one in decided.index.buckets.values()]
    for key, one in decided.index.endpoints.items():
        if one.failing_ms == now_ms:
            failing.add(backlog.Failing(endpoint_state.endpoint_id(key), one.failing_since_ms, one.failed_ms))
        if not one.events:
            continue
        events += one.events
        size += one.size
        times.append((min(one.due_ms, now_ms + AWAY_POLL_MS) if one.is_away else one.due_ms, one.since_ms))
        if one.held_until_ms > now_ms:
            held.add(endpoint_state.endpoint_id(key))
    return backlog.Pending(
        shards=1,
        events=events,
        size=size,
        oldest_ms=min(since_ms for _, since_ms in times) if events else None,
        due_ms=min(due_ms for due_ms, _ in times) + decided.horizon_ms if times else None,
        held=frozenset(held),
        failing=frozenset(failing),
    )


class _Deciding:
    def __init__(self, decision: Decision, read: Callable[[int], bytes], now_ms: int) -> None:
        self._decision = decision
        self._index = decision.index
        self._policy = decision.policy
        self._shelf = segment_store.Shelf(decision.index.stock, read)
        self._now_ms = now_ms
        self._room = MAX_LEAVING_BYTES
        self._open: dict[str, Waiting] = {}
        """The endpoints that are looked at."""

    def decided(self, arrived: Iterable[bytes]) -> Decision:
        for key, entry in self._index.endpoints.items():
            if entry.due_ms <= self._now_ms:
                self._open[key] = endpoint_state.read(entry, self._now_ms)
        messages = [retry_messages.message(written) for written in arrived]
        # Before anything is woken: what came of an attempt may be told just as its parcel has waited long enough.
        for message in messages:
            if isinstance(message, retry_messages.Postponed):
                self._count_out(message)
        self._wake()
        for message in messages:
            if isinstance(message, retry_messages.Report):
                self._settle(message)
            elif not self._is_no_news(message):
                self._admit(message)
        for key, one in self._open.items():
            self._give_up(key, one)
        self._send()
        self._close()
        return self._decision

    def _of(self, key: str) -> Waiting:
        """Return what waits for an endpoint, to be changed."""
        if key not in self._open:
            self._open[key] = endpoint_state.read(self._index.endpoints.get(key), self._now_ms)
        return self._open[key]

    def _is_no_news(self, told: retry_messages.Postponed) -> bool:
        """Tell whether nothing changes by it: an endpoint accepts something that is not known to have failed anything."""
        key = endpoint_state.key(told.customer_id, told.endpoint_id)
        is_word = bool(told.accepts) and not told.parcels and not told.settled
        return is_word and key not in self._open and key not in self._index.endpoints

    def _count_out(self, told: retry_messages.Postponed) -> None:
        """Forget parcels whose attempts have ended by themselves."""
        if not told.settled:
            return
        one = self._of(endpoint_state.key(told.customer_id, told.endpoint_id))
        for name in told.settled:
            one.settle(name, self._now_ms)

    def _wake(self) -> None:
        """Let what has waited long enough join its flow."""
        for sleeper in timer_wheel.due(self._index.buckets, self._shelf, self._now_ms):
            self._decision.changed = True
            waits, one = fifo.parcel(sleeper.data), self._of(sleeper.owner)
            if not one.has_ended(waits):
                self._shelf.add(one.flows[None].pieces, segment_store.Item(sleeper.data, waits.since_ms, waits.expires_ms))

    def _admit(self, postponed: retry_messages.Postponed) -> None:
        """Take in what another lane hands over, as far as there is room for it."""
        self._decision.changed = True
        key = endpoint_state.key(postponed.customer_id, postponed.endpoint_id)
        one = self._of(key)
        beyond: list[Parcel] = []
        if postponed.accepts:
            one.window.accepted()
        elif postponed.accepts is not None:
            one.window.failed(self._policy, min(postponed.at_ms, self._now_ms))
        for written in postponed.parcels:
            if one.had_ended(written):
                continue
            came = written.arrived(self._now_ms)
            one.window.heard(came.reason, self._policy, self._now_ms, came.since_ms)
            # What is under way is not given up, and there is never much of it.
            if came.under_way is None and one.events + len(came.packed) > self._policy.max_pending:
                beyond.append(came)
            else:
                one.begin(came, self._index.turns)
                self._put(key, one, came)
        self._leave_for_good(key, None, beyond, retry_decision.NO_ROOM)

    def _put(self, key: str, one: Waiting, waits: Parcel) -> None:
        """Let a parcel wait in the wheel, or at the end of its flow, in order, when it is to be attempted at once."""
        item, at_ms = fifo.item(waits), min(waits.again_at_ms, waits.expires_ms)
        if waits.order_key is not None or at_ms <= self._now_ms:
            self._shelf.add(one.flows[waits.order_key].pieces, item)
        else:
            one.expect(waits)
            timer_wheel.put(
                self._index.buckets, self._shelf, timer_wheel.Sleeper(key, at_ms, waits.since_ms, item.data), self._now_ms
            )

    def _settle(self, report: retry_messages.Report) -> None:
        """Take what came of a turn. One that is not away any more is no news: it was lost, or this is a repeat.

        1. The endpoint may not be asked: all of the turn stands where it stood.
        2. What does not come back has ended.
        3. What is in order, or was not attempted, stands in front again.
        4. What has failed waits for its next attempt in the wheel; and what the registry does not know yet, for that.
        """
        self._decision.changed = True
        key = endpoint_state.key(report.customer_id, report.endpoint_id)
        one = self._of(key)
        line = one.flows.get(report.order_key)
        if line is None or not line.away or line.turn != report.turn or report.parcels not in {0, line.away}:
            return
        one.window.reported(report, self._policy, self._now_ms)
        if report.hold is not None:
            line.away = 0
            return
        back = {each.place: each for each in report.back_by(self._now_ms)}
        in_front: list[Parcel] = []
        for place, left in enumerate(line.taken(self._shelf)):
            if place not in back:
                one.end(left)
            elif report.order_key is not None or not (
                back[place].attempts or back[place].reason == retry_decision.REGISTRY_BEHIND
            ):
                in_front.append(left.returned(back[place]))
            else:
                self._put(key, one, left.returned(back[place]))
        line.return_in_front(self._shelf, in_front)

    def _give_up(self, key: str, one: Waiting) -> None:
        """Wait no longer for a turn that is lost, and let go what has expired, as far as there is room."""
        lost_ms = self._now_ms - round(self._policy.away_s * 1000)
        for order_key, line in one.flows.items():
            if line.away and line.left_ms <= lost_ms:
                line.away = 0
                self._decision.changed = True
            if line.pieces and not line.away and line.expires_ms <= self._now_ms and self._room > 0:
                expired = line.expired(self._shelf, self._room, self._now_ms)
                for each in expired:
                    self._room -= each.size
                    one.end(each)
                self._leave_for_good(key, order_key, expired, retry_decision.EXPIRED)

    def _send(self) -> None:
        """Let turns leave, of those who have waited longest for theirs first."""
        ready = [
            (line.turn, key, order_key)
            for key, one in self._open.items()
            if one.window.hold_until_ms <= self._now_ms
            for order_key, line in one.flows.items()
            if line.pieces and not line.away and line.not_before_ms <= self._now_ms
        ]
        rooms = {key: self._open[key].room(self._policy) for key in {key for _, key, _ in ready}}
        for _, key, order_key in sorted(ready, key=lambda each: each[0]):
            if rooms[key] > 0 and self._room > 0:
                in_order = order_key is not None
                left = self._send_turn(key, order_key, self._policy.max_turn if in_order else rooms[key])
                rooms[key] -= min(left, 1) if in_order else left

    def _send_turn(self, key: str, order_key: str | None, most: int) -> int:
        """Let the turn of a flow leave, if its first parcel may; return how many leave."""
        one = self._open[key]
        line = one.flows[order_key]
        leaving = line.ready(self._shelf, most, self._now_ms)
        if leaving:
            self._index.turns += 1
            line.turn, line.away, line.left_ms = self._index.turns, len(leaving), self._now_ms
            self._room -= sum(each.size for each in leaving)
            is_probe = one.window.is_ill
            self._leave(key, leaving, order_key=order_key, number=line.turn, given_up=None, is_probe=is_probe)
        return len(leaving)

    def _leave_for_good(self, key: str, order_key: str | None, parcels: list[Parcel], reason: str) -> None:
        for together in chunking.of(parcels, lambda each: each.size, fifo.MAX_TURN_BYTES):
            self._leave(key, together, order_key=order_key, number=0, given_up=reason)

    def _leave(self, key: str, parcels: list[Parcel], **fields: Any) -> None:
        endpoint_id, customer_id = endpoint_state.endpoint_id(key), endpoint_state.customer_id(key)
        turn = retry_messages.Turn(endpoint_id=endpoint_id, customer_id=customer_id, parcels=parcels, **fields)
        self._decision.turns.append(retry_messages.encoded(turn))

    def _close(self) -> None:
        """Write what has changed: segments, and the entries of the endpoints that were looked at."""
        for one in self._open.values():
            one.forget(self._now_ms)
        homes = [timer_wheel.HOME, *self._open]
        decision = self._decision
        decision.append, decision.drop = self._shelf.write(homes, self._pieces_of)
        decision.changed |= bool(decision.append or decision.drop or decision.turns)
        for key, one in self._open.items():
            if one.flows or one.settled or one.window.kept_until_ms(self._policy) > self._now_ms:
                self._index.endpoints[key] = endpoint_state.entry(one, self._policy, self._now_ms)
            elif self._index.endpoints.pop(key, None) is not None:
                decision.changed = True

    def _pieces_of(self, home: str) -> Iterator[list[segment_store.Piece]]:
        if home == timer_wheel.HOME:
            return (bucket.pieces for bucket in self._index.buckets.values())
        return self._of(home).pieces()
