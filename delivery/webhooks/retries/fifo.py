"""Keep the parcels of an endpoint, or of one key of it, in order, and know which of them are away in a turn.

Runs in the executors. Must not import pyspark or psycopg. Pure: `now_ms` comes in.

A flow is a FIFO of which one turn at a time is away: its first parcels. They stay where they are until the turn's report says
what came of each, so a turn that is lost, or that attempted nothing, costs nothing: they are still in front.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import msgspec

from delivery.webhooks.retries.retry_messages import Parcel
from delivery.webhooks.state import chunking, segment_store

MAX_TURN_BYTES = 4 * 1024 * 1024
"""Of events in one turn. One parcel always may be."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Parcel)


class Flow(msgspec.Struct, array_like=True, gc=False):
    """What waits in one order."""

    waiting: int = 0
    """Parcels, also those that are away and those in the wheel."""
    turn: int = 0
    """The number of the last turn; of a flow that has had none, of the shard's last one when it began."""
    away: int = 0
    """So many of the first parcels are away in it; 0: none is."""
    left_ms: int = 0
    """When it left."""
    not_before_ms: int = 0
    """The first parcel waits until then, and the others behind it."""
    pieces: list[segment_store.Piece] = []

    @property
    def expires_ms(self) -> int:
        """When to look for a parcel to give up. Of those that are away none is: it may yet be delivered."""
        return min(piece.expires_ms for piece in self.pieces)

    def ready(self, kept: segment_store.Shelf, most: int, now_ms: int) -> list[Parcel]:
        """Return the parcels that may leave together: the first ones, as far as each may be attempted now."""
        first = itertools.islice(self._parcels(kept), most)
        due = itertools.takewhile(lambda parcel: parcel.again_at_ms <= now_ms, first)
        found = next(chunking.of(due, lambda parcel: parcel.size, MAX_TURN_BYTES), [])
        if not found:
            self.not_before_ms = next(self._parcels(kept)).again_at_ms
        return found

    def taken(self, kept: segment_store.Shelf) -> list[Parcel]:
        """Take out the parcels of the turn that is away."""
        parcels = list(itertools.islice(self._parcels(kept), self.away))
        kept.cut(self.pieces, self.away)
        self.away = 0
        return parcels

    def expired(self, kept: segment_store.Shelf, max_bytes: int, now_ms: int) -> list[Parcel]:
        """Take out what has expired, piece by piece, until it is `max_bytes`; the rest is due at once."""
        expired: list[Parcel] = []
        room = max_bytes
        self.not_before_ms = 0  # the first may be another one then
        for piece in [piece for piece in self.pieces if piece.expires_ms <= now_ms]:
            if room <= 0:
                break
            parcels = list(map(_decoder.decode, kept.items(piece)))
            gone = [parcel for parcel in parcels if parcel.expires_ms <= now_ms]
            stays = [parcel for parcel in parcels if parcel.expires_ms > now_ms]
            if stays and gone == parcels[: len(gone)]:  # the oldest, as a rule
                kept.shorten(piece, len(gone))
                piece.expires_ms = min(parcel.expires_ms for parcel in stays)
            else:
                place = self.pieces.index(piece)
                kept.remove(piece)
                self.pieces[place : place + 1] = kept.lay(map(item, stays))
            room -= sum(parcel.size for parcel in gone)
            expired += gone
        return expired

    def return_in_front(self, kept: segment_store.Shelf, parcels: Iterable[Parcel]) -> None:
        """Put back what a turn did not end."""
        self.pieces[:0] = kept.lay(map(item, parcels))

    def _parcels(self, kept: segment_store.Shelf) -> Iterator[Parcel]:
        return map(_decoder.decode, kept.front(self.pieces))


def item(parcel: Parcel) -> segment_store.Item:
    """Return a parcel as it is kept."""
    return segment_store.Item(_encoder.encode(parcel), parcel.since_ms, parcel.expires_ms)


def parcel(kept: bytes) -> Parcel:
    """Return a parcel that was kept."""
    return _decoder.decode(kept)
