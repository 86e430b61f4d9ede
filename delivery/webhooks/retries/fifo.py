"""Keep the retry entries of one endpoint, or of one order key of an endpoint, in order; mark those leased to a worker.

Runs in the executors. Pure: the caller passes `now_ms`.

A lease gives the first entries of a FIFO to a worker. A FIFO has one lease at a time. Leased entries stay in place until the
lease's report has the result of each entry. If a lease expires, or if its endpoint is paused, disabled or quarantined, no entry
has to be written again: the entries are still in front. Entries without an order key that are not due yet wait in the timer
wheel.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import msgspec

from delivery.webhooks.retries import resends, window
from delivery.webhooks.retries.retry_messages import RetryEntry
from delivery.webhooks.state import chunking, segment_store

MAX_LEASE_BYTES = 4 * 1024 * 1024
"""Maximum of bytes of entries (RetryEntry.written_bytes) in one lease. A single larger entry is leased alone."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(RetryEntry)


class Fifo(msgspec.Struct, array_like=True, gc=False):
    """The retry entries of one endpoint that have the same order key, or that have none: first in, first out."""

    waiting: int = 0
    """Number of entries, including leased entries and entries that still wait in the timer wheel."""
    lease: int = 0
    """Number of the FIFO's last lease. If the FIFO had none yet: number of the shard's last lease when the FIFO was created."""
    leased: int = 0
    """Number of leased entries, always the first entries of the FIFO. 0: there is no lease."""
    unreported_since_ms: int = 0
    """Time of the first decision that found no report of the FIFO's last lease. 0: no decision has looked for this report in
    vain yet. `lease_timeout_s` counts from this time, because a worker may get a lease long after the shard has decided on
    it."""
    not_before_ms: int = 0
    """Earliest time of the first entry's next attempt. The entries behind the first one wait as well. 0: unknown."""
    slices: list[segment_store.SegmentSlice] = []

    @property
    def expires_ms(self) -> int:
        """Return the earliest time at which an entry may expire. Called only if the FIFO has entries (`slices` is not empty).

        The time may be too early, because removed entries count until SegmentSlice.expires_ms is updated. Leased entries count
        too. The scheduler gives up expired entries only of a FIFO without a lease.
        """
        return min(slice_.expires_ms for slice_ in self.slices)

    def ready(
        self, store: segment_store.SegmentStore, most: int, now_ms: int, *, max_bytes: int = MAX_LEASE_BYTES
    ) -> list[RetryEntry]:
        """Return the first entries that may be attempted now: at most `most`, with at most `max_bytes` together.

        A first entry with more bytes is returned alone. If the first entry is not due, set `not_before_ms` to its time, and
        return an empty list. Called only if the FIFO has entries.
        """
        first = itertools.islice(self._entries(store), most)
        due = itertools.takewhile(lambda entry: entry.again_at_ms <= now_ms, first)
        found = next(chunking.chunks(due, lambda entry: entry.written_bytes, max_bytes), [])
        if not found:
            self.not_before_ms = next(self._entries(store)).again_at_ms
        return found

    def expire_lease(self, policy: window.ShardPolicy, now_ms: int, behind_ms: int) -> bool:
        """Mark a lease that has no report yet, or end it if it has expired. Return True if the FIFO changed.

        Called after the reports of a decision are applied. The lease expires when the shard has read all records that were
        written until `policy.lease_timeout_s` after the mark. Before that, the report may still be unread in the topic. A
        shard that is `behind_ms` behind has not read the records written after `now_ms - behind_ms`.
        """
        if self.leased and not self.unreported_since_ms:
            self.unreported_since_ms = now_ms
            return True
        if self.leased and self.unreported_since_ms + round(policy.lease_timeout_s * 1000) + behind_ms <= now_ms:
            self.leased = 0
            return True
        return False

    def remove_leased(self, store: segment_store.SegmentStore) -> list[RetryEntry]:
        """Remove and return the leased entries, and end the lease."""
        entries = list(itertools.islice(self._entries(store), self.leased))
        store.remove_first(self.slices, self.leased)
        self.leased = 0
        return entries

    def remove_expired(self, store: segment_store.SegmentStore, max_bytes: int, now_ms: int) -> list[RetryEntry]:
        """Remove and return expired entries, slice by slice, until the returned entries have `max_bytes` or more.

        Called only while the FIFO has no lease. The next decision removes the remaining expired entries.
        """
        expired: list[RetryEntry] = []
        room = max_bytes
        self.not_before_ms = 0  # another entry may be the first one now
        for slice_ in [slice_ for slice_ in self.slices if slice_.expires_ms <= now_ms]:
            if room <= 0:
                break
            entries = list(map(_decoder.decode, store.items(slice_)))
            gone = [entry for entry in entries if entry.expires_ms <= now_ms]
            stays = [entry for entry in entries if entry.expires_ms > now_ms]
            if stays and gone == entries[: len(gone)]:  # the usual case: the oldest expire first
                store.shorten(slice_, len(gone))
                slice_.expires_ms = min(entry.expires_ms for entry in stays)
            else:
                place = self.slices.index(slice_)
                store.remove(slice_)
                self.slices[place : place + 1] = store.slices(map(item, stays))
            room -= sum(entry.written_bytes for entry in gone)
            expired += gone
        return expired

    def bring_forward(self, owner: str, store: segment_store.SegmentStore, search: resends.Search, now_ms: int) -> int:
        """Make the entries of resent deliveries due now, each in its place. Return the number of entries that were read.

        `owner` is the endpoint's key. `search` has the resends, and remembers each resend whose delivery waits in this FIFO. No
        further slice is read once `search` has read its maximum of bytes.
        """
        read = 0
        for slice_ in list(self.slices):
            if search.is_exhausted:
                break
            written = store.items(slice_)
            search.count_read(written)
            before = list(map(_decoder.decode, written))
            after = [
                entry.due_at(now_ms) if search.finds(owner, entry, is_in_flight=place < self.leased) else entry
                for place, entry in enumerate(before, start=read)
            ]
            read += len(written)
            if after != before:
                place = self.slices.index(slice_)
                store.remove(slice_)
                self.slices[place : place + 1] = store.slices(map(item, after))
                self.not_before_ms = 0
        return read

    def requeue_in_front(self, store: segment_store.SegmentStore, entries: Iterable[RetryEntry]) -> None:
        """Insert unfinished entries of the last lease before all others."""
        self.slices[:0] = store.slices(map(item, entries))

    def _entries(self, store: segment_store.SegmentStore) -> Iterator[RetryEntry]:
        return map(_decoder.decode, store.all_items(self.slices))


def item(entry: RetryEntry) -> segment_store.StoredItem:
    """Return a retry entry as an item of the segment store."""
    return segment_store.StoredItem(_encoder.encode(entry), entry.since_ms, entry.expires_ms)


def entry_of(item_data: bytes) -> RetryEntry:
    """Return the retry entry in the bytes of an item of the segment store."""
    return _decoder.decode(item_data)
