"""Keep the retry state of one endpoint, and its summary in the index of the shard.

Runs in the executors. Pure: the caller passes `now_ms`. A shard is one key of Spark's state: the retry entries of a part of all
endpoints, and their index.

Each micro-batch reads the whole index, and changes the state of few endpoints. So an index entry has a few numbers, and the
endpoint's state as bytes. The bytes are decoded in three cases: the endpoint is due, one of its entries in the timer wheel is
due, or a message arrives for the endpoint.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from delivery.registry_model import CustomerId, EndpointId
from delivery.webhooks.retries import fifo, retry_messages
from delivery.webhooks.retries.window import NEVER_MS, ShardPolicy, Window
from delivery.webhooks.state import segment_store

LEASED_POLL_MS = 1000
"""Milliseconds between two wake-ups of the retry lane while a lease waits for its report."""
COMPLETED_KEPT_MS = 660_000
"""Milliseconds for which a shard remembers a completion: the message that a background attempt has ended. The shard waits for
the retry entry of this attempt, to drop the entry when it arrives. A worker may wait for Kafka up to `delivery.timeout.ms`
(sink.DELIVERY_TIMEOUT_MS: 600 s) before it writes the entry. Meanwhile another thread may write the completion, if the
completion's partition is available. The remaining minute is for a busy retry lane. A completion takes 27 bytes, less than the
entry would take."""


class EndpointState(msgspec.Struct, array_like=True):
    """The retry state of one endpoint: its window, its FIFOs, the totals of its waiting events, and its background attempts.

    The entries themselves are in segments. Entries in the timer wheel count in these totals too. The timer wheel is in the
    shard's index (`RetryIndex.buckets`).
    """

    window: Window = msgspec.field(default_factory=Window)
    events: int = 0
    """Events that wait for the endpoint, including leased events."""
    size: int = 0
    """Bytes of these events."""
    fifos: dict[str | None, fifo.Fifo] = {}
    """FIFOs by order key. The key None has the entries without an order key. Some of these wait in the timer wheel."""
    background: dict[bytes, tuple[int, int]] = {}
    """The background attempts in flight, by name. For each attempt: how many events its entry in the timer wheel has, and their
    bytes."""
    completed: dict[bytes, int] = {}
    """The completed background attempts without an entry in the timer wheel, by name. For each attempt: when the shard read its
    completion. Either the attempt's entry has not arrived yet, because a worker writes entry and completion on two threads. Or
    the entry has left the timer wheel, and is retried already."""

    def free_slots(self, policy: ShardPolicy) -> int:
        """Return how many more requests to the endpoint may begin. 0 or less: none.

        The number is the window, at most `max_lease_entries`, minus the requests of leased entries. Each leased entry without
        an order key counts as one request. All entries of a lease with an order key count as one request together, because they
        are sent one after another.
        """
        in_flight = sum(line.leased if key is None else 1 for key, line in self.fifos.items() if line.leased)
        return min(self.window.size, policy.max_lease_entries) - in_flight

    def count_in(self, entry: retry_messages.RetryEntry, last_lease: int) -> None:
        """Count an arrived entry in the numbers of the endpoint and of the entry's FIFO. Create the FIFO if it is missing.

        `last_lease` is the number of the shard's last lease. A new FIFO begins with this number, as if it had been leased last:
        FIFOs with a lower number come first.
        """
        self.events += len(entry.packed)
        self.size += entry.size
        self.fifos.setdefault(entry.order_key, fifo.Fifo(lease=last_lease)).waiting += 1

    def count_out(self, entry: retry_messages.RetryEntry) -> None:
        """Subtract an ended entry from the numbers of the endpoint and of the entry's FIFO."""
        self.events -= len(entry.packed)
        self.size -= entry.size
        self.fifos[entry.order_key].waiting -= 1

    def track_background_attempt(self, entry: retry_messages.RetryEntry) -> None:
        """Remember an entry of the timer wheel if its background attempt is in flight."""
        if entry.background_attempt is not None:
            self.background[entry.background_attempt] = (len(entry.packed), entry.size)

    def complete(self, name: bytes, now_ms: int) -> None:
        """Subtract the entry of the completed background attempt `name` from the numbers of the endpoint and of the FIFO.

        The timer wheel still has the entry. When the wheel returns it, `has_completed` is True, and the entry is dropped. If
        `background` lacks the attempt, only remember the completion, for `knows_attempt_of`. Then the attempt's entry has not
        arrived yet, or is retried already.
        """
        if name not in self.background:
            self.completed[name] = now_ms
            return
        events, size = self.background.pop(name)
        self.events -= events
        self.size -= size
        self.fifos[None].waiting -= 1

    def knows_attempt_of(self, arrived: retry_messages.RetryEntry) -> bool:
        """Return True if an arrived entry must be dropped, because the endpoint knows the entry's background attempt already.

        1. The attempt completed before the entry arrived, so the entry has ended. The completion is forgotten.
        2. The timer wheel has an entry with the same attempt, so the arrived entry is a repetition.
        """
        name = arrived.background_attempt
        return name is not None and (self.completed.pop(name, None) is not None or name in self.background)

    def has_completed(self, waiting: retry_messages.RetryEntry) -> bool:
        """Return True if the background attempt of an entry in the timer wheel has completed. Then the entry has ended."""
        return waiting.background_attempt is not None and waiting.background_attempt not in self.background

    def forget_background_attempt(self, due: retry_messages.RetryEntry) -> None:
        """Stop tracking the background attempt that was in flight when an entry was postponed.

        Called when the timer wheel has returned the entry for its retry. The background attempt must not have completed.
        """
        if due.background_attempt is not None:
            del self.background[due.background_attempt]

    def prune(self, now_ms: int) -> None:
        """Drop empty FIFOs, and completions older than COMPLETED_KEPT_MS."""
        self.fifos = {key: line for key, line in self.fifos.items() if line.waiting}
        self.completed = {name: at_ms for name, at_ms in self.completed.items() if at_ms + COMPLETED_KEPT_MS > now_ms}

    def lists(self) -> Iterator[list[segment_store.SegmentSlice]]:
        """Yield, for each FIFO, the list of its slices (SegmentSlice), for SegmentStore.write."""
        return (line.slices for line in self.fifos.values())

    def due_ms(self, policy: ShardPolicy, now_ms: int) -> int:
        """Return when the endpoint next needs a decision, in ms since the epoch: the earliest of these times.

        1. LEASED_POLL_MS after `now_ms`, if no decision has looked for the report of a lease yet.
        2. The expiry of a lease.
        3. The expiry of an entry in a FIFO without a lease.
        4. The time at which a further lease may begin.
        5. The time at which the state, or a remembered end of a background attempt (`completed`), may be dropped.

        Return NEVER_MS if all entries wait in the timer wheel, and no completion is kept. A message for the endpoint, or a due
        entry in the timer wheel, causes a decision before this time.
        """
        has_slots = self.free_slots(policy) > 0
        times = [NEVER_MS if self.fifos else self.window.kept_until_ms(policy)]
        times += [at_ms + COMPLETED_KEPT_MS for at_ms in self.completed.values()]
        for line in self.fifos.values():
            if line.leased and not line.unreported_since_ms:
                times.append(now_ms + LEASED_POLL_MS)
            elif line.leased:
                times.append(line.unreported_since_ms + round(policy.lease_timeout_s * 1000))
            elif line.slices:
                times.append(line.expires_ms)
                times += [max(self.window.backoff_until_ms, line.not_before_ms)] if has_slots else []
        return min(times)


class IndexEntry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The summary of an endpoint in the index of its shard."""

    written: bytes
    """The EndpointState as msgpack bytes."""
    due_ms: int
    """When the endpoint needs a decision, so that its state is decoded. A message for the endpoint, or a due entry in the timer
    wheel, causes an earlier decision."""
    events: int
    """Events that wait for the endpoint, including leased events."""
    size: int
    """Bytes of these events."""
    since_ms: int
    """When the oldest entry in the FIFOs arrived; entries in the timer wheel do not count. NEVER_MS: the FIFOs are empty. An
    entry that has left counts until its slice is rewritten."""
    suppressed_until_ms: int
    """Time until which other lanes defer the endpoint's events to the retry lane. A time in the past: the endpoint is not
    suppressed. 0 if no entry waits, or if all waiting entries have an order key."""
    is_leased: bool
    """True if a FIFO of the endpoint has a lease."""
    failing_ms: int
    """Time of the decision that wrote this summary, if that decision found that the endpoint is to be disabled. Else 0."""
    failing_since_ms: int = 0
    """Time of the first failure, for backlog.Failing. 0 if `failing_ms` is 0."""
    failed_ms: int = 0
    """Time of the last failure, for backlog.Failing. 0 if `failing_ms` is 0."""
    is_watched: bool = True
    """False if no request failed after the last accepted one (`Window.failing_since_ms` is None). A summary of a version before
    2026-11-29 does not have this value, and counts as True until the next decision about the endpoint."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(EndpointState)


def index_entry(state: EndpointState, policy: ShardPolicy, now_ms: int) -> IndexEntry:
    """Return the summary of an endpoint for the index."""
    is_failing = state.window.is_failing(policy, now_ms)
    return IndexEntry(
        written=_encoder.encode(state),
        due_ms=state.due_ms(policy, now_ms),
        events=state.events,
        size=state.size,
        since_ms=min((slice_.since_ms for slices in state.lists() for slice_ in slices), default=NEVER_MS),
        suppressed_until_ms=state.window.suppressed_until_ms if None in state.fifos else 0,
        is_leased=any(line.leased for line in state.fifos.values()),
        failing_ms=now_ms if is_failing else 0,
        failing_since_ms=(state.window.failing_since_ms or 0) if is_failing else 0,
        failed_ms=state.window.failed_ms if is_failing else 0,
        is_watched=state.window.failing_since_ms is not None,
    )


def decoded(entry: IndexEntry | None, now_ms: int) -> EndpointState:
    """Return the state of an endpoint from its index entry; return a new state if `entry` is None.

    If the endpoint has no retry entries, and `known_until_ms` has passed, its window is reset. The reset keeps only some times
    (Window.without_report).
    """
    if entry is None:
        return EndpointState()
    state = _decoder.decode(entry.written)
    if not state.fifos and state.window.known_until_ms <= now_ms:
        state.window = state.window.without_report()
    return state


def key(customer_id: CustomerId, endpoint_id: EndpointId) -> str:
    """Return the key of an endpoint in the index: `customer/endpoint`. No id has a `/`.

    The key names the customer, because another customer may register the same endpoint id later.
    """
    return f"{customer_id}/{endpoint_id}"


def customer_id(key: str) -> CustomerId:
    """Return the customer in a result of the function `key`."""
    return CustomerId(key[: key.index("/")])


def endpoint_id(key: str) -> EndpointId:
    """Return the endpoint in a result of the function `key`."""
    return EndpointId(key[key.index("/") + 1 :])
