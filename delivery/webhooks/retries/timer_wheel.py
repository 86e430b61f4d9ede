"""Store retry entries that wait for a time, in buckets by time, and return each entry when its time has come.

Runs in the executors. Pure: the caller passes `now_ms`.

The longer the wait, the wider the bucket. An entry goes into a bucket at most a quarter as wide as the entry's wait. When the
first entry of a bucket is due, the others move to buckets at most an eighth as wide as this bucket. No bucket is narrower than
a second (FINEST). So an entry that waits ten hours moves at most five times, whatever the number of micro-batches. There
are about eight buckets for each doubling of the wait, whatever the number of entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from delivery.webhooks.retries import fifo, resends
from delivery.webhooks.retries.retry_messages import RetryEntry
from delivery.webhooks.state import segment_store

OWNER = ""
"""Name by which the segment store knows the timer wheel as an owner of slices. No endpoint has this key."""
FINEST = 10
"""Log2 of the width of the narrowest bucket, in ms. The entries of such a bucket are due within about a second of each other.
These entries are returned together when the last one is due."""
MAX_DUE_BYTES = 16 * 1024 * 1024
"""Maximum of bytes that one decision takes out of buckets. All other due entries stay due, and the next decision comes at
once."""


class TimerEntry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A retry entry as the timer wheel stores it."""

    owner: str
    """Key of the endpoint (endpoint_state.key)."""
    at_ms: int
    """Earliest time at which the entry is returned."""
    since_ms: int
    """When the retry entry was postponed to the retry lane."""
    data: bytes
    """The retry entry as bytes."""


class Bucket(msgspec.Struct, array_like=True, gc=False):
    """Timer entries whose times lie in one interval.

    The length of the interval is at most a quarter of the wait of its entries, or about a second if that is longer.
    """

    due_ms: int
    """When to open the bucket: when its first entry is due. A bucket of the narrowest width: when its last entry is due."""
    since_ms: int
    """Earliest `since_ms` of the entries."""
    slices: list[segment_store.SegmentSlice]


Buckets = dict[int, Bucket]
"""Buckets by key. The key is the time at which the bucket begins, in ms, plus the log2 of the bucket's width in ms. The sum is
unique, because a bucket begins at a multiple of its width."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(TimerEntry)


def add(buckets: Buckets, store: segment_store.SegmentStore, entry: TimerEntry, now_ms: int) -> None:
    """Put an entry into the bucket of its time. The wait from `now_ms` decides the width of the bucket."""
    level = max(FINEST, (entry.at_ms - now_ms).bit_length() - 3)
    begins_ms = entry.at_ms >> level << level
    bucket = buckets.get(begins_ms + level)
    if bucket is None:
        bucket = buckets[begins_ms + level] = Bucket(entry.at_ms, entry.since_ms, [])
    bucket.due_ms = (max if level == FINEST else min)(bucket.due_ms, entry.at_ms)
    bucket.since_ms = min(bucket.since_ms, entry.since_ms)
    store.append(bucket.slices, _item(entry))


def remove_due(
    buckets: Buckets, store: segment_store.SegmentStore, now_ms: int, max_bytes: int = MAX_DUE_BYTES
) -> Iterator[TimerEntry]:
    """Remove and yield the entries that are due, until `max_bytes` are read.

    An entry in a bucket of the narrowest width (FINEST) is yielded when the last entry of this bucket is due.

    The entries of an opened bucket that are not due move to narrower buckets. They move when the iterator ends, because the
    iterator may still have to read these buckets. So the caller must exhaust the iterator.
    """
    room = max_bytes
    not_due: list[TimerEntry] = []
    due = sorted((key for key, bucket in buckets.items() if bucket.due_ms <= now_ms), key=lambda key: buckets[key].due_ms)
    for key in due:
        bucket = buckets[key]
        while bucket.slices and room > 0:
            items = store.items(bucket.slices[0])
            store.remove(bucket.slices.pop(0))
            room -= sum(map(len, items))
            for entry in map(_decoder.decode, items):
                if entry.at_ms <= now_ms:
                    yield entry
                else:
                    not_due.append(entry)
        if not bucket.slices:
            del buckets[key]
    for entry in not_due:
        add(buckets, store, entry, now_ms)


def remove_resent(
    buckets: Buckets,
    store: segment_store.SegmentStore,
    search: resends.Search,
    has_ended: Callable[[str, RetryEntry], bool],
) -> list[tuple[str, RetryEntry]]:
    """Remove the entries whose deliveries are resent, and return each with the key of its endpoint.

    An entry whose background attempt is in flight stays: this attempt counts as the resend, so `search` remembers that the
    delivery waits. An entry whose background attempt has completed (`has_ended(owner, entry)`) stays too, but `search` does not
    count its delivery as waiting.

    The buckets that are due first are searched first, until `search` is exhausted. A bucket from which entries are removed
    keeps its `due_ms`. So the bucket may be opened before any of its entries is due. The entries then move to other buckets.
    """
    removed: list[tuple[str, RetryEntry]] = []
    for key in sorted(buckets, key=lambda key: buckets[key].due_ms):
        slices = buckets[key].slices
        for slice_ in list(slices):
            if search.is_exhausted:
                break
            written = store.items(slice_)
            search.count_read(written)
            entries = list(map(_decoder.decode, written))
            resent = (_resent(waiting, search, has_ended) for waiting in entries)
            found = {place: entry for place, entry in enumerate(resent) if entry is not None}
            if found:
                removed += [(entries[place].owner, entry) for place, entry in found.items()]
                kept = [entry for place, entry in enumerate(entries) if place not in found]
                place = slices.index(slice_)
                store.remove(slice_)
                slices[place : place + 1] = store.slices(map(_item, kept))
        if slices:
            buckets[key].since_ms = min(slice_.since_ms for slice_ in slices)
        else:
            del buckets[key]
    return removed


def _resent(waiting: TimerEntry, search: resends.Search, has_ended: Callable[[str, RetryEntry], bool]) -> RetryEntry | None:
    if not search.has_resends(waiting.owner):
        return None
    entry = fifo.entry_of(waiting.data)
    is_in_flight = entry.background_attempt is not None
    if has_ended(waiting.owner, entry) or not search.finds(waiting.owner, entry, is_in_flight=is_in_flight):
        return None
    return None if is_in_flight else entry


def _item(entry: TimerEntry) -> segment_store.StoredItem:
    return segment_store.StoredItem(_encoder.encode(entry), entry.since_ms, entry.at_ms)
