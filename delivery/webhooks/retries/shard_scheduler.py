"""Decide which retry entries of a shard are leased now, and keep all entries until they end.

Runs in the executors. Pure: values and `now_ms` in, a decision out. A shard is one key of Spark's state: the retry entries of a
part of all endpoints. A lease is a list of entries that a worker attempts now, or ends because they are given up or skipped.

    arrival ─► timer wheel, until again_at_ms ─► FIFO ─► lease, one at a time ─► report, a message to this shard
                                                                                 ├─► the entry has ended
                                                                                 └─► requeued: timer wheel, or front of the FIFO

An entry whose background attempt is in flight waits in the timer wheel too. If a message says that the attempt completed
(delivery.webhooks.scheduling.background_attempts), the entry is dropped when it is due.

The state of a shard is an index and numbered segments (delivery.webhooks.state.segment_store). The index is small. Each
decision that changes something writes the index. An entry leaves the state when a report or a background attempt has its
result, or when it is given up. A lease expires `lease_timeout_s` after the first decision that misses its report. Its entries
are then leased again. A shard that is behind in the retries topic waits longer, because the report may be unread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from delivery.model import SkipReason
from delivery.webhooks.policy import retry_reasons
from delivery.webhooks.retries import endpoint_state, fifo, leasing_bounds, resends, retry_messages, timer_wheel
from delivery.webhooks.retries.endpoint_state import EndpointState
from delivery.webhooks.retries.leasing_bounds import LeasingBounds
from delivery.webhooks.retries.retry_messages import RetryEntry
from delivery.webhooks.retries.window import ShardPolicy
from delivery.webhooks.state import chunking, segment_store, versioning

Message: TypeAlias = retry_messages.Postponed | retry_messages.Report

VERSION = 2
"""Format of the index. Version 1 had no background attempts, and code of version 1 fails on entries that have one."""


class RetryIndex(msgspec.Struct, array_like=True):
    """The state of one shard, without its segments."""

    last_lease: int = 0
    """Number of the shard's last lease."""
    segments: segment_store.SegmentIndex = msgspec.field(default_factory=segment_store.SegmentIndex)
    endpoints: dict[str, endpoint_state.IndexEntry] = {}
    """Summaries of the endpoints, by endpoint_state.key."""
    buckets: timer_wheel.Buckets = {}
    """The timer wheel."""


@dataclass(slots=True, kw_only=True)
class LeaseDecision:
    """A shard's decision: leases for workers, and changes of the shard's state. No segment is in both `append` and `drop`."""

    index: RetryIndex
    policy: ShardPolicy
    look_ahead_ms: int
    leases: list[bytes] = field(default_factory=list)
    """Leases as bytes, which `retry_messages.lease` reads."""
    append: dict[int, bytes] = field(default_factory=dict)
    """Segments to write into the shard's state, by number."""
    drop: list[int] = field(default_factory=list)
    """Numbers of the segments to delete from the shard's state."""
    changed: bool = False
    """True if the index, or a segment, is to be written."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(RetryIndex)


def encoded(index: RetryIndex) -> bytes:
    """Return the index of a shard as bytes."""
    return versioning.versioned(VERSION, _encoder.encode(index))


def decoded(written: bytes | None) -> RetryIndex:
    """Return the index of a shard from its bytes. If `written` is None, the shard is new: return an empty index.

    Raise StateUnreadable if a newer version wrote the bytes; msgspec.MsgspecError or UnicodeDecodeError if they are no index.
    """
    if not written:
        return RetryIndex()
    return _decoder.decode(versioning.read(written, VERSION, "an index of the retry lane", oldest=1))


def decide(
    index: RetryIndex,
    messages: Iterable[Message],
    read: Callable[[int], bytes],
    policy: ShardPolicy,
    *,
    now_ms: int,
    look_ahead_ms: int,
    behind_ms: int = 0,
    bounds: LeasingBounds = leasing_bounds.BOUNDS,
) -> LeaseDecision:
    """Decide once for a shard: return the leases and the changes of its state. `index` is changed in place.

    Called in each micro-batch. `messages` are those of the shard's records in the retries topic, in the topic's order. `read`
    returns the bytes of the segment with a given number. Messages that were written after `now_ms - behind_ms` may be unread.
    `look_ahead_ms` is only for `shard_backlog.of`: no entry is leased before it is due. A second run with the same arguments
    makes the same decision. Raise StateUnreadable, msgspec.MsgspecError or UnicodeDecodeError if a segment is unreadable.
    """
    decision = LeaseDecision(index=index, policy=policy, look_ahead_ms=look_ahead_ms)
    return _Scheduler(decision, read, now_ms, behind_ms, bounds).decide(list(messages))


class _Scheduler:
    """Make one decision of one shard. Used once."""

    def __init__(
        self, decision: LeaseDecision, read: Callable[[int], bytes], now_ms: int, behind_ms: int, bounds: LeasingBounds
    ) -> None:
        self._decision = decision
        self._index = decision.index
        self._policy = decision.policy
        self._store = segment_store.SegmentStore(decision.index.segments, read, bounds.store)
        self._now_ms = now_ms
        self._behind_ms = behind_ms
        self._bounds = bounds
        self._room = bounds.max_leased_bytes
        self._open: dict[str, EndpointState] = {}
        """The endpoints whose state is decoded in this decision, by key."""

    def decide(self, messages: list[Message]) -> LeaseDecision:
        """Apply messages, move due entries to FIFOs, give up expired entries, lease entries, and return the decision."""
        self._open_due()
        self._apply_settled(messages)  # before the timer wheel: an attempt may complete just when its entry is due
        self._wake_due()
        self._apply_and_admit(messages)
        postponed = (message for message in messages if isinstance(message, retry_messages.Postponed))
        self._apply_resends([message for message in postponed if message.resends])
        self._expire()
        self._lease()
        self._write()
        return self._decision

    def _open_due(self) -> None:
        """Decode the state of each endpoint whose EndpointState.due_ms has come."""
        for key, entry in self._index.endpoints.items():
            if entry.due_ms <= self._now_ms:
                self._open[key] = endpoint_state.decoded(entry, self._now_ms)

    def _opened(self, key: str) -> EndpointState:
        """Return the decoded state of an endpoint. `_write` stores its changes."""
        if key not in self._open:
            self._open[key] = endpoint_state.decoded(self._index.endpoints.get(key), self._now_ms)
        return self._open[key]

    def _apply_settled(self, messages: list[Message]) -> None:
        """Call EndpointState.complete for each background attempt that a message names as completed."""
        for message in messages:
            if isinstance(message, retry_messages.Postponed) and message.settled:
                endpoint = self._opened(endpoint_state.key(message.customer_id, message.endpoint_id))
                for name in message.settled:
                    endpoint.complete(name, self._now_ms)

    def _wake_due(self) -> None:
        """Move due entries from the timer wheel to the end of their FIFO.

        1. The entry's background attempt has completed: drop the entry.
        2. The attempt's completion may still be unread, because the shard is behind: put the entry back into the timer wheel.
        3. Otherwise move the entry.
        """
        unread: list[tuple[str, EndpointState, RetryEntry]] = []
        for timer_entry in timer_wheel.remove_due(self._index.buckets, self._store, self._now_ms, self._bounds.max_due_bytes):
            self._decision.changed = True
            entry, endpoint = fifo.entry_of(timer_entry.data), self._opened(timer_entry.owner)
            if endpoint.has_completed(entry):
                continue
            if entry.wakes_at_ms(self._behind_ms, self._now_ms) > self._now_ms:
                unread.append((timer_entry.owner, endpoint, entry))
                continue
            endpoint.forget_background_attempt(entry)
            item = segment_store.StoredItem(timer_entry.data, entry.since_ms, entry.expires_ms)
            self._store.append(endpoint.fifos[None].slices, item)
        for waiting in unread:
            self._put(*waiting)

    def _apply_and_admit(self, messages: list[Message]) -> None:
        """Apply the results of leases and the health hints, and admit new entries except resends, in the order of the topic."""
        for message in messages:
            if isinstance(message, retry_messages.Report):
                self._apply_result(message)
                continue
            if message.resends:
                continue  # _apply_resends handles the message after all others
            key = endpoint_state.key(message.customer_id, message.endpoint_id)
            if message.is_acceptance_only and key not in self._open and key not in self._index.endpoints:
                continue  # an endpoint without state is known to accept
            self._opened(key).window.apply_health_hint(message, self._policy, self._now_ms)
            self._admit(key, message.entries)

    def _admit(self, key: str, entries: Sequence[RetryEntry]) -> None:
        """Add entries to the state of an endpoint. Apply the reason of each entry's postponement to the endpoint's window.

        Entries that ShardPolicy.admits refuses are given up, except those whose background attempt is in flight. An entry
        is dropped if its background attempt has completed. It is also dropped if the timer wheel has an entry with the
        same background attempt.
        """
        self._decision.changed = True
        endpoint = self._opened(key)
        excess: list[RetryEntry] = []
        for written in entries:
            if endpoint.knows_attempt_of(written):
                continue
            entry = written.on_shard_clock(self._now_ms)
            endpoint.window.apply_deferral(entry.reason, self._policy, self._now_ms, entry.since_ms)
            # An entry with an attempt in flight is not given up. There are never many.
            if entry.background_attempt is None and not self._policy.admits(entry.reason, endpoint.events + len(entry.packed)):
                excess.append(entry)
            else:
                endpoint.count_in(entry, self._index.last_lease)
                self._put(key, endpoint, entry)
        self._give_up(key, None, excess, retry_reasons.NO_ROOM)

    def _apply_resends(self, messages: list[retry_messages.Postponed]) -> None:
        """Bring forward the next attempt of each resent delivery that waits in this shard. Admit resends of other deliveries.

        Called after all other messages, because a report may have put the delivery back just now.
        1. The delivery's entry waits in the timer wheel: it moves to the end of its FIFO.
        2. The entry waits in a FIFO: it is due now, in its place. Entries of the same order key before it go first.
        3. The entry is leased, or its background attempt is in flight: nothing changes. That attempt counts as the resend.
        4. The search, up to `max_searched_bytes`, finds no entry, or only an expired one: the first resend is admitted.

        All other resends are skipped. A batch, or an unreadable resend, is always admitted.
        """
        search = resends.Search(self._now_ms, max_bytes=self._bounds.max_searched_bytes)
        for message in messages:
            key = endpoint_state.key(message.customer_id, message.endpoint_id)
            batches = [entry for entry in message.entries if not search.add(key, entry)]
            if batches:
                self._admit(key, batches)
        is_in_wheel = False
        for key in search.owners:
            for line in self._opened(key).fifos.values():
                is_in_wheel |= line.bring_forward(key, self._store, search, self._now_ms) < line.waiting
        if is_in_wheel:
            for key, entry in timer_wheel.remove_resent(self._index.buckets, self._store, search, self._has_ended):
                item = fifo.item(entry.due_at(self._now_ms))
                self._store.append(self._opened(key).fifos[None].slices, item)
        for key in search.owners:
            to_deliver, waits_already = search.results(key)
            if to_deliver:
                self._admit(key, to_deliver)
            self._give_up(key, None, waits_already, SkipReason.BROUGHT_FORWARD)

    def _has_ended(self, key: str, waiting: RetryEntry) -> bool:
        return self._opened(key).has_completed(waiting)

    def _put(self, key: str, endpoint: EndpointState, entry: RetryEntry) -> None:
        """Put an entry that is due now, or has an order key, at the end of its FIFO. Put any other into the timer wheel."""
        item, at_ms = fifo.item(entry), entry.wakes_at_ms(self._behind_ms, self._now_ms)
        if entry.order_key is not None or at_ms <= self._now_ms:
            self._store.append(endpoint.fifos[entry.order_key].slices, item)
        else:
            endpoint.track_background_attempt(entry)
            timer_entry = timer_wheel.TimerEntry(key, at_ms, entry.since_ms, item.data)
            timer_wheel.add(self._index.buckets, self._store, timer_entry, self._now_ms)

    def _apply_result(self, report: retry_messages.Report) -> None:
        """Apply the result of a lease. A report for an expired lease, or a repeated report, is ignored.

        1. The endpoint is paused, disabled or quarantined: all entries stay where they are.
        2. An entry that is not requeued has ended.
        3. A requeued entry goes back to the front of its FIFO in two cases: it has an order key, or it had no attempt in this
           lease and does not wait for a newer registry.
        4. Any other requeued entry goes into the timer wheel, or to the end of its FIFO if it is due.
        """
        self._decision.changed = True
        key = endpoint_state.key(report.customer_id, report.endpoint_id)
        endpoint = self._opened(key)
        line = endpoint.fifos.get(report.order_key)
        if line is None or not line.leased or line.lease != report.lease or report.entries not in {0, line.leased}:
            return
        endpoint.window.apply_report(report, self._policy, self._now_ms)
        if report.blocked is not None:
            line.leased = 0
            return
        requeued = {requeue.place: requeue for requeue in report.requeued_on_shard_clock(self._now_ms)}
        in_front: list[RetryEntry] = []
        for place, entry in enumerate(line.remove_leased(self._store)):
            if place not in requeued:
                endpoint.count_out(entry)
            elif report.order_key is not None or not (
                requeued[place].attempts or requeued[place].reason == retry_reasons.REGISTRY_BEHIND
            ):
                in_front.append(entry.requeued(requeued[place]))
            else:
                self._put(key, endpoint, entry.requeued(requeued[place]))
        line.requeue_in_front(self._store, in_front)

    def _expire(self) -> None:
        """Start the timeout of unreported leases, end expired leases, and give up expired entries of FIFOs without a lease."""
        for key, endpoint in self._open.items():
            self._expire_endpoint(key, endpoint)

    def _expire_endpoint(self, key: str, endpoint: EndpointState) -> None:
        for order_key, line in endpoint.fifos.items():
            self._decision.changed |= line.expire_lease(self._policy, self._now_ms, self._behind_ms)
            if line.slices and not line.leased and line.expires_ms <= self._now_ms and self._room > 0:
                expired = line.remove_expired(self._store, self._room, self._now_ms)
                for entry in expired:
                    self._room -= entry.written_bytes
                    endpoint.count_out(entry)
                self._give_up(key, order_key, expired, retry_reasons.EXPIRED)

    def _lease(self) -> None:
        """Lease the retry entries that may be attempted now, within each endpoint's free slots and `max_leased_bytes`.

        FIFOs take turns: the FIFO that was leased least recently comes first.
        """
        ready = [
            (line.lease, key, order_key)
            for key, endpoint in self._open.items()
            if endpoint.window.backoff_until_ms <= self._now_ms
            for order_key, line in endpoint.fifos.items()
            if line.slices and not line.leased and line.not_before_ms <= self._now_ms
        ]
        slots = {key: self._open[key].free_slots(self._policy) for key in {key for _, key, _ in ready}}
        for _, key, order_key in sorted(ready, key=lambda line: line[0]):
            if slots[key] > 0 and self._room > 0:
                is_ordered = order_key is not None
                leased = self._lease_first(key, order_key, self._policy.max_lease_entries if is_ordered else slots[key])
                slots[key] -= min(leased, 1) if is_ordered else leased

    def _lease_first(self, key: str, order_key: str | None, most: int) -> int:
        """Lease a FIFO's first due entries; return their number.

        The lease has at most `most` entries, and at most `max_lease_bytes`. A larger first entry is leased alone.
        """
        endpoint = self._open[key]
        line = endpoint.fifos[order_key]
        entries = line.ready(self._store, most, self._now_ms, max_bytes=self._bounds.max_lease_bytes)
        if entries:
            self._index.last_lease += 1
            # `now_ms` is no time for the lease: a micro-batch that runs again after an outage has its old time.
            line.lease, line.leased, line.unreported_since_ms = self._index.last_lease, len(entries), 0
            self._room -= sum(entry.written_bytes for entry in entries)
            known = {"is_probe": endpoint.window.is_degraded, "accepted_ms": endpoint.window.accepted_ms}
            self._emit(key, entries, order_key=order_key, number=line.lease, given_up=None, **known)
        return len(entries)

    def _give_up(self, key: str, order_key: str | None, entries: list[RetryEntry], reason: str) -> None:
        for chunk in chunking.chunks(entries, lambda entry: entry.written_bytes, self._bounds.max_lease_bytes):
            self._emit(key, chunk, order_key=order_key, number=0, given_up=reason)

    def _emit(self, key: str, entries: list[RetryEntry], **fields: Any) -> None:
        endpoint_id, customer_id = endpoint_state.endpoint_id(key), endpoint_state.customer_id(key)
        lease = retry_messages.Lease(endpoint_id=endpoint_id, customer_id=customer_id, entries=entries, **fields)
        self._decision.leases.append(retry_messages.encoded(lease))

    def _write(self) -> None:
        """Put new and removed segments into `_decision`. Store decoded endpoints in the index; drop endpoints without state."""
        for endpoint in self._open.values():
            endpoint.prune(self._now_ms)
        decision = self._decision
        decision.append, decision.drop = self._store.write([timer_wheel.OWNER, *self._open], self._lists_of)
        decision.changed |= bool(decision.append or decision.drop or decision.leases)
        for key, endpoint in self._open.items():
            if endpoint.fifos or endpoint.completed or endpoint.window.kept_until_ms(self._policy) > self._now_ms:
                self._index.endpoints[key] = endpoint_state.index_entry(endpoint, self._policy, self._now_ms)
            elif self._index.endpoints.pop(key, None) is not None:
                decision.changed = True

    def _lists_of(self, owner: str) -> Iterator[list[segment_store.SegmentSlice]]:
        if owner == timer_wheel.OWNER:
            return (bucket.slices for bucket in self._index.buckets.values())
        return self._opened(owner).lists()
