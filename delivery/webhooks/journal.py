"""Decide, from what a micro-batch has written before it was broken off, which of its deliveries have ended.

Runs on the driver and in the executors. Must not import pyspark or psycopg. A micro-batch that runs again makes everything
again that is not known here. That is allowed, at least once; to leave out what has not ended is not. So only what itself ends a
delivery counts: the row that says delivered, the dead letter, the parcel of the retry lane. That an attempt failed is not
enough: its dead letter may never have reached Kafka.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Container, Iterable
from typing import Any, NamedTuple

import orjson

from delivery.model import EndpointId, Event, SubscriptionId
from delivery.webhooks import batch_message, message, parcel, segment

log = logging.getLogger(__name__)

MAX_ENDED = 1_000_000
"""More are not remembered: some 100 bytes each. What is not remembered is made again."""
Key = bytes
"""Names a delivery, or a batch, of one lane. 16 bytes, because there may be very many."""
Ended = Container[Key]


class Place(NamedTuple):
    """Where an event is in Kafka."""

    topic: str
    partition: int
    offset: int


def key(webhook_id: str, places: Iterable[Place]) -> Key:
    """Return the key of what has this id and holds the events at these places.

    The id alone is not enough: a producer that repeats an event makes two deliveries with one id, and each is to end.
    """
    return hashlib.blake2b(f"{webhook_id} {min(places)}".encode(), digest_size=16).digest()


def of(event: Event, webhook_id: str) -> Key:
    """Return the key of a delivery of this event."""
    record = event.record
    return key(webhook_id, [Place(record.topic, record.partition, record.offset)])


def of_batch(webhook_id: str, events: Iterable[segment.Packed]) -> Key:
    """Return the key of a batch."""
    return key(webhook_id, [_place(event) for event in events])


class Journal:
    """What has ended, as it is read: the dead letters first, because a batch may need several to have ended."""

    def __init__(self, max_ended: int = MAX_ENDED) -> None:
        self.ended: set[Key] = set()
        self._letters: set[Key] = set()
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
        if len(self.ended) + len(self._letters) >= self._max_ended:
            return
        try:
            take(value)
        except Exception:  # a row of another version: what it says is made again, and nothing stands still for it
            log.exception("a row could not be read back; what it is about is made again")

    def _dead_letter(self, value: bytes) -> None:
        letter = orjson.loads(value)
        batch_id = letter.get("batch_webhook_id")
        if batch_id is None:
            self.ended.add(key(letter["webhook_id"], [_place_of(letter)]))
        else:
            self._letters.add(key(batch_id, [_place_of(letter)]))

    def _retry(self, value: bytes) -> None:
        told = parcel.message(value)
        if isinstance(told, parcel.Postponed):
            self.ended.update(_of_parcel(told.endpoint_id, one) for one in told.parcels)

    def _attempts(self, value: bytes) -> None:
        for entry in orjson.loads(value).get("entries", ()):
            if entry["kind"] == "attempt" and entry["error_class"] is None:
                self.ended.add(key(entry["webhook_id"], [_place_of(entry)]))
            elif entry["kind"] == "batch_attempt":
                # What was rejected, or all that was not accepted, has a dead letter for each event.
                owed = _places(entry["rejected"] if entry["error_class"] is None else entry["offsets"])
                if all(key(entry["webhook_id"], [place]) in self._letters for place in owed):
                    self.ended.add(key(entry["webhook_id"], _places(entry["offsets"])))


def _of_parcel(endpoint_id: EndpointId, waiting: parcel.Parcel) -> Key:
    events = [segment.unpacked(packed) for packed in waiting.packed]
    through: list[SubscriptionId] = [waiting.subscriptions[place] for place in (waiting.through or [0] * len(events))]
    if waiting.left_by is None:
        return key(message.webhook_id(events[0], through[0]), [_place(events[0])])
    return of_batch(batch_message.webhook_id(endpoint_id, events, through), events)


def _place(event: segment.Packed) -> Place:
    return Place(event.topic, event.partition, event.offset)


def _place_of(entry: dict[str, Any]) -> Place:
    return Place(entry["topic"], entry["partition"], entry["offset"])


def _places(offsets: dict[str, dict[str, dict[str, list[int]]]]) -> list[Place]:
    """Return where the events of a batch are: its entry names, by subscription, topic and partition, the offsets."""
    return [
        Place(topic, int(partition), offset)
        for by_topic in offsets.values()
        for topic, by_partition in by_topic.items()
        for partition, at in by_partition.items()
        for offset in at
    ]
