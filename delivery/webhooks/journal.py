"""Decide, from what a micro-batch has written before it was broken off, which of its deliveries have ended.

Runs on the driver and in the executors. Must not import pyspark or psycopg. A micro-batch that runs again makes everything
again that is not known here. That is allowed, at least once; to leave out what has not ended is not. So only what itself ends a
delivery counts: the row that says delivered, the dead letter, the parcel of the retry lane. That an attempt failed is not
enough: its dead letter may never have reached Kafka. Rows of replays are passed over: what they tell of was asked for besides.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Container, Iterator
from typing import Any, NamedTuple

import orjson

from delivery.model import Event, SubscriptionId
from delivery.webhooks import parcel, segment

log = logging.getLogger(__name__)

MAX_ENDED = 1_000_000
"""More are not remembered: some 100 bytes each. What is not remembered is made again."""
Key = bytes
"""Names a delivery, alone or in a batch. 16 bytes, because there may be very many."""
Ended = Container[Key]


class Place(NamedTuple):
    """Where an event is in Kafka."""

    topic: str
    partition: int
    offset: int


def key(subscription_id: str, place: Place) -> Key:
    """Return the key of a delivery: by its place, because an event that is published twice has its `webhook-id` twice."""
    return hashlib.blake2b(f"{subscription_id} {place}".encode(), digest_size=16).digest()


def of(event: Event, subscription_id: SubscriptionId) -> Key:
    """Return the key of a delivery of this event."""
    record = event.record
    return key(subscription_id, Place(record.topic, record.partition, record.offset))


def of_packed(event: segment.Packed, subscription_id: SubscriptionId) -> Key:
    """Return the key of an event of a batch. The events that share a batch may be others when the micro-batch runs again."""
    return key(subscription_id, Place(event.topic, event.partition, event.offset))


class Journal:
    """What has ended, as it is read."""

    def __init__(self, max_ended: int = MAX_ENDED) -> None:
        self.ended: set[Key] = set()
        self._max_ended = max_ended

    def take_dead_letter(self, value: bytes) -> None:
        """Take a row of the dead-letter topic."""
        self._take(value, self._dead_letter)

    def take_retry(self, value: bytes) -> None:
        """Take a row of the retries topic."""
        self._take(value, self._retry)

    def take_attempts(self, value: bytes) -> None:
        """Take a row of the attempts topic."""
        self._take(value, self._attempts)

    def _take(self, value: bytes, take: Callable[[bytes], None]) -> None:
        if len(self.ended) >= self._max_ended:
            return
        try:
            take(value)
        except Exception:  # a row of another version: what it says is made again, and nothing stands still for it
            log.exception("a row could not be read back; what it is about is made again")

    def _dead_letter(self, value: bytes) -> None:
        letter = orjson.loads(value)
        if letter.get("replay") is None:
            self.ended.add(_of_entry(letter))

    def _retry(self, value: bytes) -> None:
        told = parcel.message(value)
        if isinstance(told, parcel.Postponed):
            for waiting in (one for one in told.parcels if one.replay is None):
                through = waiting.through or [0] * len(waiting.packed)
                for packed, number in zip(waiting.packed, through, strict=True):
                    self.ended.add(of_packed(segment.unpacked(packed), waiting.subscriptions[number]))

    def _attempts(self, value: bytes) -> None:
        for entry in orjson.loads(value).get("entries", ()):
            if entry.get("replay") is not None:
                continue
            if entry["kind"] == "attempt" and entry["error_class"] is None:
                self.ended.add(_of_entry(entry))
            elif entry["kind"] == "batch_attempt" and entry["error_class"] is None:
                # What the answer rejected has a dead letter for each event, which may be missing.
                self.ended |= set(_keys(entry["offsets"])) - set(_keys(entry["rejected"]))


def _of_entry(entry: dict[str, Any]) -> Key:
    return key(entry["subscription_id"], Place(entry["topic"], entry["partition"], entry["offset"]))


def _keys(offsets: dict[str, dict[str, dict[str, list[int]]]]) -> Iterator[Key]:
    """Yield the deliveries of a batch: its entry names, by subscription, topic and partition, the offsets."""
    for subscription_id, by_topic in offsets.items():
        for topic, by_partition in by_topic.items():
            for partition, at in by_partition.items():
                for offset in at:
                    yield key(subscription_id, Place(topic, int(partition), offset))
