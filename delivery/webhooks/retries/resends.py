"""Find the retry entries of resent deliveries, so that the retry lane's shard makes these entries due now.

Runs in the executors. Pure. A resend is a replay of one delivery. Without this search, a delivery that waits for its retry
would be sent twice: by its own retry entry, and by the resend's entry.

A shard has no index of its entries by delivery. For a million entries the index would have some 100 MB, and each micro-batch
would read it. So in a micro-batch with resends, the shard reads the entries of the resends' endpoints. The shard also reads the
timer wheel if entries of these endpoints wait there. Both searches together read at most about MAX_SEARCHED_BYTES.
"""

from __future__ import annotations

from typing import NamedTuple

from delivery.registry_model import SubscriptionId
from delivery.webhooks.batching import segment
from delivery.webhooks.retries import retry_messages

MAX_SEARCHED_BYTES = 128 * 1024 * 1024
"""Maximum of bytes of waiting entries that a shard reads in a micro-batch to find resent deliveries: some 250,000 entries with
payloads of 300 bytes, which take 0.15 s of CPU. If the waiting entry of a resend is beyond the maximum, the search misses it.
The delivery is then sent twice, by the resend and by the entry."""


class DeliveryKey(NamedTuple):
    """The identity of a delivery: the event's place in Kafka, its source and id, and the subscription."""

    topic: str
    partition: int
    offset: int
    source: str
    event_id: str
    """Part of the key, because a topic that was recreated has other events at the same offsets."""
    subscription_id: SubscriptionId


class Search:
    """Find the waiting entries of deliveries that somebody asks to resend, in one shard and one micro-batch.

    The caller reads the entries, and stops when the search is exhausted: `max_bytes` or more bytes of entries are read.
    `now_ms` is the time of the micro-batch.
    """

    def __init__(self, now_ms: int, *, max_bytes: int = MAX_SEARCHED_BYTES) -> None:
        self._now_ms = now_ms
        self._room = max_bytes
        self._resent: dict[str, dict[DeliveryKey, list[retry_messages.RetryEntry]]] = {}
        """Entries of resends by endpoint_state.key and delivery."""
        self._subscriptions: set[SubscriptionId] = set()
        self._found: set[tuple[str, DeliveryKey]] = set()

    def add(self, owner: str, entry: retry_messages.RetryEntry) -> bool:
        """Add a resend's entry to the search. `owner` is the key of its endpoint (endpoint_state.key).

        Return False, and add nothing, for a batch and for an unreadable entry: these are not searched.
        """
        key = _key_of(entry)
        if key is None:
            return False
        self._resent.setdefault(owner, {}).setdefault(key, []).append(entry)
        self._subscriptions.add(key.subscription_id)
        return True

    @property
    def owners(self) -> list[str]:
        """Return the keys of the endpoints with resends."""
        return list(self._resent)

    def has_resends(self, owner: str) -> bool:
        """Return True if there are resends to an endpoint."""
        return owner in self._resent

    @property
    def is_exhausted(self) -> bool:
        """Return True if the search has read its maximum of bytes. The caller then reads no further entries."""
        return self._room <= 0

    def count_read(self, items: list[bytes]) -> None:
        """Count the bytes of the stored entries that the caller has read for this search, until it `is_exhausted`."""
        self._room -= sum(map(len, items))

    def finds(self, owner: str, waiting: retry_messages.RetryEntry, *, is_in_flight: bool) -> bool:
        """Return True if a resend asks for the delivery of the `waiting` entry. `results` then skips these resends.

        Return False for an expired entry, because it becomes a dead letter without an attempt. With `is_in_flight`, an attempt
        of the entry may be in flight: then the entry is found although it has expired.
        """
        if waiting.subscriptions[0] not in self._subscriptions:
            return False
        if waiting.expires_ms <= self._now_ms and not is_in_flight:
            return False
        key = _key_of(waiting)
        if key is None or key not in self._resent.get(owner, ()):
            return False
        self._found.add((owner, key))
        return True

    def results(self, owner: str) -> tuple[list[retry_messages.RetryEntry], list[retry_messages.RetryEntry]]:
        """Return the entries of resends to an endpoint in two lists: entries to deliver, and entries to skip.

        `owner` is one of `owners`. If `finds` was True for a delivery, all its resends are skipped. Otherwise the first resend
        of the delivery is delivered, and all later resends are skipped.
        """
        to_deliver, waits_already = [], []
        for key, entries in self._resent[owner].items():
            first = 0 if (owner, key) in self._found else 1
            to_deliver += entries[:first]
            waits_already += entries[first:]
        return to_deliver, waits_already


def _key_of(entry: retry_messages.RetryEntry) -> DeliveryKey | None:
    """Return the identity of an entry's delivery; None for a batch, and for an entry that cannot be read."""
    if entry.left_by is not None or len(entry.packed) != 1:
        return None
    try:
        event = segment.unpacked(entry.packed[0])
    except Exception:  # noqa: BLE001  # unreadable: its attempt meets the same error and defers this entry alone
        return None
    return DeliveryKey(event.topic, event.partition, event.offset, event.source, event.event_id, entry.subscriptions[0])
