"""Decide, from what a micro-batch has written before it was broken off, which of its deliveries have ended.

Runs on the driver and in the executors. Must not import pyspark or psycopg. A micro-batch that runs again makes everything
again that is not known here. That is allowed, at least once; to leave out what has not ended is not. So only what itself ends a
delivery counts: the row that says delivered, the dead letter, the parcel of the retry lane. That an attempt failed is not
enough: its dead letter may never have reached Kafka. Rows of replays are passed over: what they tell of was asked for besides.

For the retry lane the parcel and the dead letter do not count. The parcel is what it is to deliver; and a delivery that was
given up may have been redriven since, which only clocks could tell. There the report ends a turn, whatever came of it.
"""

from __future__ import annotations

import abc
import hashlib
import logging
from collections.abc import Callable, Container, Mapping
from typing import NamedTuple

from delivery.model import Event, SubscriptionId
from delivery.webhooks.batching import segment
from delivery.webhooks.results import dead_letter_records, log_entries, log_records, topic_rows
from delivery.webhooks.results.log_entries import Due
from delivery.webhooks.results.log_records import LogRecord
from delivery.webhooks.retries import retry_messages

log = logging.getLogger(__name__)

MAX_ENDED = 1_000_000
"""More are not remembered: some 100 bytes each. What is not remembered is made again."""
Key = bytes
"""Names a delivery, alone or in a batch, or a turn. 16 bytes, because there may be very many."""
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


def of_turn(endpoint_id: str, number: int, parcels: int) -> Key:
    """Return the key of a turn of the retry lane. A shard counts its turns, and an endpoint is always in the same one."""
    return hashlib.blake2b(f"turn {number} of {parcels} {endpoint_id}".encode(), digest_size=16).digest()


def of_packed(event: segment.Packed, subscription_id: SubscriptionId) -> Key:
    """Return the key of an event of a batch. The events that share a batch may be others when the micro-batch runs again."""
    return key(subscription_id, Place(event.topic, event.partition, event.offset))


class Journal(abc.ABC):
    """What has ended of a lane's deliveries, as it is read."""

    def __init__(self, max_ended: int = MAX_ENDED) -> None:
        self.ended: set[Key] = set()
        self._max_ended = max_ended

    @abc.abstractmethod
    def readers(self, topics: topic_rows.Topics) -> Mapping[str, Callable[[bytes], None]]:
        """Return by topic who takes its rows; what is in no topic that is named ends nothing."""

    def take(self, value: bytes, reader: Callable[[bytes], None]) -> None:
        """Let one of the readers take a row."""
        if len(self.ended) >= self._max_ended:
            return
        try:
            reader(value)
        except Exception:  # a row of another version: what it says is made again, and nothing stands still for it
            log.exception("a row could not be read back; what it is about is made again")

    def _accepted(self, value: bytes) -> None:
        record = log_records.decode(value)
        if not isinstance(record, LogRecord):
            return
        for entry in record.entries:
            # What the answer to a batch rejected has a dead letter for each event, which may be missing.
            if isinstance(entry, log_entries.ATTEMPTED) and entry.error_class is None and not entry.replay:
                self.ended.update(map(_of_due, entry.accepted()))


class OfFastLane(Journal):
    """Of the direct lane, or the batch lane."""

    def readers(self, topics: topic_rows.Topics) -> Mapping[str, Callable[[bytes], None]]:
        """As Journal."""
        return {
            topics.dead_letters: self._dead_letter,
            topics.retries: self._handed_over,
            topics.attempts: self._accepted,
        }

    def _dead_letter(self, value: bytes) -> None:
        letter = dead_letter_records.decode(value)
        if not letter.replay:
            self.ended.add(_of_due(letter.due()))

    def _handed_over(self, value: bytes) -> None:
        told = retry_messages.message(value)
        if isinstance(told, retry_messages.Postponed):
            for waiting in (one for one in told.parcels if one.replay is None):
                through = waiting.through or [0] * len(waiting.packed)
                for packed, number in zip(waiting.packed, through, strict=True):
                    self.ended.add(of_packed(segment.unpacked(packed), waiting.subscriptions[number]))


class OfRetryLane(Journal):
    """Of the retry lane: turns that were reported, and what was accepted of those that were not."""

    def readers(self, topics: topic_rows.Topics) -> Mapping[str, Callable[[bytes], None]]:
        """As Journal."""
        return {topics.retries: self._reported, topics.attempts: self._accepted}

    def _reported(self, value: bytes) -> None:
        told = retry_messages.message(value)
        if isinstance(told, retry_messages.Report):
            self.ended.add(of_turn(told.endpoint_id, told.turn, told.parcels))


def _of_due(due: Due) -> Key:
    return key(due.subscription_id, Place(due.topic, due.partition, due.offset))
