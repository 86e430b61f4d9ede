"""Collect the records of the attempts topic, the dead-letter topic and the topic of rejected records.

Runs in `fanout demo` and the tests. `fanout reconcile`, which reads far more, keeps less of each record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import confluent_kafka

from delivery.config import kafka_clients, settings
from delivery.webhooks.results import dead_letter_records, log_entries, log_records, rejected_records
from delivery.webhooks.results.dead_letter_records import DeadLetter
from delivery.webhooks.results.log_entries import Due, Entry, RedrivenEntry
from delivery.webhooks.results.log_records import AttemptsRecord, OffsetReceipt
from delivery.webhooks.results.rejected_records import RejectedRecord
from fanout.kafka.places import Place


@dataclass(slots=True)
class Ledger:
    """The outcomes of deliveries, and other facts, from the records that were added. A `Due` identifies a delivery."""

    attempts: int = 0
    """Number of requests. A batch is one request."""
    delivered: dict[Due, float] = field(default_factory=dict)
    """Delivered deliveries, each with the end of its accepted attempt in ms since the epoch. If several attempts were accepted,
    the attempt that was added first counts. An event that the response to a batch rejects is here too, and is a dead letter as
    well."""
    dead_letters: dict[tuple[str, str], DeadLetter] = field(default_factory=dict)
    """The last added dead letter of each pair of event id and subscription id."""
    skipped: dict[Due, str] = field(default_factory=dict)
    """Skipped deliveries, each with its skip reason."""
    postponed: dict[Due, str] = field(default_factory=dict)
    """Deliveries that a lane gave to the retry lane before an attempt had a result, each with the reason."""
    redriven: dict[Due, int] = field(default_factory=dict)
    """Redriven deliveries, each with the time of the redriven dead letter, in ms since the epoch. All dead letters of the
    delivery up to this time count as redriven."""
    batches: dict[str, str] = field(default_factory=dict)
    """`webhook-id` of each attempted batch → why the batch was sent (a LeaveReason)."""
    rejected: dict[tuple[str, int, int], RejectedRecord] = field(default_factory=dict)
    """Rejected records by topic, partition and offset, so that a record that several lanes rejected counts once."""
    receipts: dict[tuple[str, Place], list[OffsetReceipt]] = field(default_factory=dict)
    """Offset receipts by lane and partition: each says which offsets the lane has handled."""

    def handled_until(self, lane: str) -> dict[Place, int]:
        """Return the last offset that a lane has handled in each partition. Partitions without a receipt are left out."""
        return {
            place: max(receipt.last_offset for receipt in receipts)
            for (name, place), receipts in self.receipts.items()
            if name == lane
        }

    def revision_at(self, lane: str, place: Place, offset: int) -> int | None:
        """Return the registry revision with which a lane last routed a record; None: the lane has not routed the record."""
        for receipt in reversed(self.receipts.get((lane, place), ())):
            if receipt.first_offset <= offset <= receipt.last_offset:
                return receipt.revision
        return None

    def dead(self) -> set[Due]:
        """Return the deliveries that became dead letters and were not redriven since."""
        letters = {letter.due(): letter for letter in self.dead_letters.values()}
        return {due for due, letter in letters.items() if letter.dead_lettered_at_ms > self.redriven.get(due, -1)}

    def ended(self) -> set[Due]:
        """Return the deliveries that were delivered or skipped, or became dead letters and were not redriven since."""
        return self.delivered.keys() | self.skipped.keys() | self.dead()

    def pending(self) -> int:
        """Return the sum of the due deliveries in the offset receipts, minus the number of deliveries that ended.

        A receipt that was written again counts once. Pending deliveries wait for their batch, or in the retry lane.
        """
        # A micro-batch that runs again writes a receipt for the same offsets again.
        due: dict[tuple[str, Place, int], int] = {}
        for (lane, place), receipts in self.receipts.items():
            due |= {(lane, place, receipt.first_offset): receipt.due for receipt in receipts}
        return sum(due.values()) - len(self.ended())

    def adders(self, delivery: settings.DeliverySettings) -> dict[str, Callable[[bytes], None]]:
        """Return topic → the function that adds the value of a record of this topic."""
        return {
            delivery.attempts_topic: lambda written: self.add_log(log_records.decode(written)),
            delivery.dead_letter_topic: lambda written: self.add_dead_letter(dead_letter_records.decode(written)),
            delivery.rejected_topic: lambda written: self.add_rejected(rejected_records.decode(written)),
        }

    def add_rejected(self, record: RejectedRecord) -> None:
        """Add a rejected record."""
        self.rejected[record.topic, record.partition, record.offset] = record

    def add_dead_letter(self, letter: DeadLetter) -> None:
        """Add a dead letter. It replaces an earlier dead letter of the same event and subscription."""
        self.dead_letters[letter.event_id, letter.subscription_id] = letter

    def add_log(self, record: AttemptsRecord | None) -> None:
        """Add a record of the attempts topic. None, a record of an unknown kind, is ignored."""
        if isinstance(record, OffsetReceipt):
            self.receipts.setdefault((record.lane, Place(record.topic, record.partition)), []).append(record)
        elif record is not None:
            for entry in record.entries:
                self._add_entry(entry)

    def _add_entry(self, entry: Entry) -> None:
        if isinstance(entry, log_entries.SKIPPED):
            self.skipped |= dict.fromkeys(entry.due(), str(entry.reason))
        elif isinstance(entry, log_entries.POSTPONED):
            self.postponed |= dict.fromkeys(entry.due(), str(entry.reason))
        elif isinstance(entry, RedrivenEntry):
            self.redriven |= dict.fromkeys(entry.due(), entry.dead_lettered_at_ms)
        elif isinstance(entry, log_entries.ATTEMPTED):
            self.attempts += 1
            if isinstance(entry, log_entries.BatchAttemptEntry):
                self.batches[entry.webhook_id] = entry.left_by
            if entry.error_class is None:
                for due in entry.due():
                    self.delivered.setdefault(due, entry.started_at_ms + entry.duration_ms)


class RecordReader:
    """Read the attempts topic, the dead-letter topic and the topic of rejected records from their beginning, as records arrive.

    The topics must exist.
    """

    def __init__(self, kafka: settings.KafkaSettings, delivery: settings.DeliverySettings) -> None:
        self.ledger = Ledger()
        self._adders = self.ledger.adders(delivery)
        own = {"group.id": "fanout-ledger", "enable.auto.commit": False, "enable.partition.eof": False}
        self._consumer = kafka_clients.consumer(kafka, own)
        topics = self._consumer.list_topics(timeout=10).topics
        self._consumer.assign(
            [
                confluent_kafka.TopicPartition(name, partition, confluent_kafka.OFFSET_BEGINNING)
                for name in self._adders
                for partition in topics[name].partitions
            ]
        )

    def poll(self, timeout_s: float) -> int:
        """Wait up to `timeout_s` for at most 2,000 messages, add their records to `ledger`, and return the number of messages.

        The number includes messages about errors of the client, which add no record.
        """
        messages = self._consumer.consume(2000, timeout_s)
        for message in messages:
            if message.error() is None:
                self._adders[str(message.topic())](message.value() or b"")
        return len(messages)

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()
