"""Find the deliveries that an interrupted micro-batch has completed, by the records in the result topics.

Runs on the driver and in the executors. The completed deliveries are the completed-work log. When the micro-batch runs again,
it repeats every delivery that is not in this log. A repeat is allowed (at least once). Leaving out a delivery that has not
ended is not allowed. So only a record that itself ends a delivery counts, whichever lane wrote it:

1. For the direct, batch and real-time lane: an accepted attempt, a dead letter, or a retry entry. A failed attempt does not
   count: its dead letter may never have reached Kafka.
2. For the retry lane: an accepted attempt, or the report of a lease (retry entries given to a worker). Retry entries do not
   count, because the retry lane has to deliver them. Dead letters do not count: a redrive after the dead letter makes the
   delivery due again. Only a comparison of clocks could tell which of the two came later.

Attempts, dead letters and retry entries of a replay do not count. A replay has the same key as the original delivery of the
event to the subscription. These records end only the replay, and the original delivery may still be open. The report of a lease
counts, also if the lease has replays.
"""

from __future__ import annotations

import abc
import hashlib
import logging
from collections.abc import Callable, Container, Mapping
from typing import NamedTuple

from delivery.model import Event
from delivery.registry_model import SubscriptionId
from delivery.webhooks.batching import segment
from delivery.webhooks.results import dead_letter_records, log_entries, log_records, topic_rows
from delivery.webhooks.results.log_entries import Due
from delivery.webhooks.results.log_records import LogRecord
from delivery.webhooks.retries import retry_messages, retry_records

log = logging.getLogger(__name__)

MAX_COMPLETED = 1_000_000
"""Maximum of keys in the log of one lane. A key takes some 100 bytes of memory. Deliveries and leases beyond this maximum are
repeated."""
Key = bytes
"""Digest of 16 bytes that identifies a delivery or a lease. Short, because a log may have a million keys."""
CompletedKeys = Container[Key]


class KafkaPosition(NamedTuple):
    """Position of an event in Kafka."""

    topic: str
    partition: int
    offset: int


def key(subscription_id: str, position: KafkaPosition) -> Key:
    """Return the key of a delivery: its subscription and its event's position in Kafka.

    The key is not the `webhook-id`: an event that its producer publishes twice has one `webhook-id`, and is two deliveries.
    """
    return hashlib.blake2b(f"{subscription_id} {position}".encode(), digest_size=16).digest()


def key_of_event(event: Event, subscription_id: SubscriptionId) -> Key:
    """Return the key of a delivery: a parsed event that is due by one subscription."""
    record = event.record
    return key(subscription_id, KafkaPosition(record.topic, record.partition, record.offset))


def key_of_lease(endpoint_id: str, number: int, entries: int) -> Key:
    """Return the key of a lease, from its endpoint, its number and the number of its entries.

    A shard numbers its leases, and an endpoint is always in the same shard.
    """
    return hashlib.blake2b(f"lease {number} of {entries} {endpoint_id}".encode(), digest_size=16).digest()


def key_of_packed(event: segment.Packed, subscription_id: SubscriptionId) -> Key:
    """Return the key of a delivery: a packed event, alone or in a batch, that is due by one subscription.

    A batch has no key of its own: a micro-batch that runs again may combine other events into a batch.
    """
    return key(subscription_id, KafkaPosition(event.topic, event.partition, event.offset))


class CompletedWorkLog(abc.ABC):
    """Collect the keys of the deliveries and leases that an interrupted micro-batch of one lane has completed.

    `add` is called with the records that came into the topics of `readers` since shortly before the micro-batch began. Other
    lanes may have written some of these records. In the real-time lane, an interrupted query stands for the micro-batch.
    """

    def __init__(self, max_completed: int = MAX_COMPLETED) -> None:
        self.completed: set[Key] = set()
        self.unreadable = 0
        """Number of records whose reader failed. The deliveries of these records are repeated."""
        self._max_completed = max_completed

    @abc.abstractmethod
    def readers(self, topics: topic_rows.Topics) -> Mapping[str, Callable[[bytes], None]]:
        """Return, by topic, a function that takes a record's value and adds the keys of the work that the record completes.

        Records of other topics complete nothing.
        """

    def add(self, value: bytes, reader: Callable[[bytes], None], place: tuple[str, int | None, int | None]) -> None:
        """Call `reader` with the value of a record, to add the work that the record completes.

        `reader` is the function that `readers` returns for the record's topic. `place` is the record's topic, partition and
        offset. Errors of `reader` are counted. Only the first error is logged, because a topic may have millions of records of
        another version. Once there are `max_completed` keys, nothing is added or counted.
        """
        if len(self.completed) >= self._max_completed:
            return
        try:
            reader(value)
        except Exception:  # a record of another version must not stop the lane
            self.unreadable += 1
            if self.unreadable == 1:
                log.exception(
                    "record %s:%s:%s could not be read when completed deliveries were searched: its deliveries may be sent "
                    "again, with the same webhook-id. A repeated batch with other events has a new webhook-id. A later line "
                    "counts all such records. After an upgrade or downgrade of the platform there is nothing to do. Otherwise "
                    "another program may write to the topic: find it, or send this traceback to the maintainers of the "
                    "platform",
                    *place,
                )

    def _accepted(self, value: bytes) -> None:
        record = log_records.decode(value)
        if not isinstance(record, LogRecord):
            return
        for entry in record.entries:
            # Each event that the response to a batch rejected has a dead letter, which may not have reached Kafka.
            if isinstance(entry, log_entries.ATTEMPTED) and entry.error_class is None and not entry.replay:
                self.completed.update(map(_key_of_due, entry.accepted()))


class FastLaneLog(CompletedWorkLog):
    """The completed work of the direct, the batch or the real-time lane."""

    def readers(self, topics: topic_rows.Topics) -> Mapping[str, Callable[[bytes], None]]:
        """Return, by topic, the function that adds the keys of a record's dead letter, retry entries or accepted attempts."""
        return {
            topics.dead_letters: self._dead_letter,
            topics.retries: self._deferred,
            topics.attempts: self._accepted,
        }

    def _dead_letter(self, value: bytes) -> None:
        letter = dead_letter_records.decode(value)
        if not letter.replay:
            self.completed.add(_key_of_due(letter.due()))

    def _deferred(self, value: bytes) -> None:
        for message in retry_records.messages(value):
            entries = message.entries if isinstance(message, retry_messages.Postponed) else []
            for entry in (entry for entry in entries if entry.replay is None):
                places = entry.subscription_places or [0] * len(entry.packed)
                for packed, place in zip(entry.packed, places, strict=True):
                    self.completed.add(key_of_packed(segment.unpacked(packed), entry.subscriptions[place]))


class RetryLaneLog(CompletedWorkLog):
    """The completed work of the retry lane: reported leases, and accepted attempts of all lanes."""

    def readers(self, topics: topic_rows.Topics) -> Mapping[str, Callable[[bytes], None]]:
        """Return, by topic, the function that adds the keys of a record's lease report or accepted attempts."""
        return {topics.retries: self._reported, topics.attempts: self._accepted}

    def _reported(self, value: bytes) -> None:
        for message in retry_records.messages(value):
            if isinstance(message, retry_messages.Report):
                self.completed.add(key_of_lease(message.endpoint_id, message.lease, message.entries))


def _key_of_due(due: Due) -> Key:
    return key(due.subscription_id, KafkaPosition(due.topic, due.partition, due.offset))
