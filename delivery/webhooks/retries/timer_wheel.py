"""Keep what waits until a time in buckets that are the wider the longer the wait, and give it back when the time has come.

Runs in the executors. Must not import pyspark or psycopg. Pure: `now_ms` comes in.

A bucket is at most a quarter as wide as the wait of what is put into it. When the first of it is due, the rest goes on into
buckets at most an eighth as wide. So a wait of ten hours is written six times, however many micro-batches it lasts, and there
are about eight buckets for each doubling of the wait, however much waits.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from delivery.webhooks.state import segment_store

HOME = ""
"""Where the shelf finds its buckets; no endpoint is called so."""
FINEST = 10
"""Log2 of the narrowest bucket, ms: what is due within the same second comes back together, with the last of it."""
MAX_SORTED_BYTES = 16 * 1024 * 1024
"""No more is taken out of buckets by one decision; the rest is due at once."""


class Sleeper(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What waits, as it is kept."""

    owner: str
    at_ms: int
    """Not to be given back before then."""
    since_ms: int
    data: bytes


class Bucket(msgspec.Struct, array_like=True, gc=False):
    """What is due at about the same time."""

    due_ms: int
    """When to look at it: of the narrowest buckets when the last of it is due, of the others when the first is."""
    since_ms: int
    """When the first of it came."""
    pieces: list[segment_store.Piece]


Buckets = dict[int, Bucket]
"""By the time at which they begin, in whose low bits the log2 of their width has room."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Sleeper)


def put(buckets: Buckets, kept: segment_store.Shelf, sleeper: Sleeper, now_ms: int) -> None:
    """Let it wait."""
    level = max(FINEST, (sleeper.at_ms - now_ms).bit_length() - 3)
    begins_ms = sleeper.at_ms >> level << level
    bucket = buckets.get(begins_ms + level)
    if bucket is None:
        bucket = buckets[begins_ms + level] = Bucket(sleeper.at_ms, sleeper.since_ms, [])
    bucket.due_ms = (max if level == FINEST else min)(bucket.due_ms, sleeper.at_ms)
    bucket.since_ms = min(bucket.since_ms, sleeper.since_ms)
    kept.add(bucket.pieces, segment_store.Item(_encoder.encode(sleeper), sleeper.since_ms, sleeper.at_ms))


def due(buckets: Buckets, kept: segment_store.Shelf, now_ms: int) -> Iterator[Sleeper]:
    """Take out and yield what has waited long enough, as far as MAX_SORTED_BYTES go."""
    room = MAX_SORTED_BYTES
    for key in sorted((key for key, one in buckets.items() if one.due_ms <= now_ms), key=lambda key: buckets[key].due_ms):
        bucket = buckets[key]
        while bucket.pieces and room > 0:
            items = kept.items(bucket.pieces[0])
            kept.remove(bucket.pieces.pop(0))
            room -= sum(map(len, items))
            for sleeper in map(_decoder.decode, items):
                if sleeper.at_ms <= now_ms:
                    yield sleeper
                else:
                    put(buckets, kept, sleeper, now_ms)
        if not bucket.pieces:
            del buckets[key]
