"""Store the recorded states of each delivery compactly, for `fanout reconcile`. Pure.

Runs in `fanout` commands, the tests and the load tests. One word of eight bytes records one state of one delivery (an event and
its recipient), so that millions of deliveries fit into memory. An event takes two bytes, an offset receipt 48.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Iterator
from typing import NamedTuple

from delivery.model import SkipReason
from delivery.registry_model import DeliveryMode
from delivery.webhooks.batching import segment
from delivery.webhooks.results import log_entries
from delivery.webhooks.results.dead_letter_records import DeadLetter
from delivery.webhooks.results.log_entries import BatchEntry, Entry, RedrivenEntry
from delivery.webhooks.results.log_records import AttemptsRecord, LogRecord, OffsetReceipt
from delivery.webhooks.results.rejected_records import RejectedRecord
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.routing import intake
from fanout.kafka.places import Place

DELIVERED, DEAD, REDRIVEN, DEAD_IN_LOG, FAILED, POSTPONED, REJECTED, REJECTED_BY_A_LANE, REPLAYED = range(1, 10)
"""States of a delivery or a rejected record, in the low 16 bits of a word. DEAD: a dead letter. REDRIVEN: a dead letter that
was redriven since. DEAD_IN_LOG: given up without an attempt, as the attempts topic says. FAILED: an attempt failed. POSTPONED:
given to the retry lane, as the attempts topic says. REJECTED: rejected for a reason that is the same in every lane.
REJECTED_BY_A_LANE: rejected for a reason that may hold in one lane only. REPLAYED: delivered by a replay. Other outcomes of
replays prove nothing about due deliveries, and are not stored."""
SKIPPED = 16
"""A skipped delivery: SKIPPED plus the index of the reason in `Evidence.reasons`."""
ENQUEUED = 0x8000
"""A delivery in the retries topic: ENQUEUED plus the number of the quarter of a day in which it expires."""
_QUARTER_MS = 6 * 3_600_000
_FIRST_QUARTER = 80_000
"""Quarter of a day in the year 2024 from which quarters are numbered, so that a number fits into 15 bits until 2047."""
_CHUNK_BITS = 16
"""A word stores only this many low bits of its offset. The higher bits are the key of its chunk: the words of 2**16 offsets."""
_NO_EVENT, _OTHER_TYPE = 1, 0xFFFF
"""Numbers in place of the number of an event type. _NO_EVENT: the record is not an event. _OTHER_TYPE: the event has a type
after the first 65,533 types."""


class Recipient(NamedTuple):
    """Lane, endpoint and subscription of a delivery. A word holds only the number of the recipient."""

    lane: str
    endpoint_id: str
    subscription_id: str


NOBODY = Recipient("", "", "")
"""Recipient of a rejected record."""


class HandledRange(NamedTuple):
    """A range of offsets that a lane handled, with the counts of the OffsetReceipt that reports the range."""

    first: int
    last: int
    records: int
    rejected: int
    due: int
    written_at_ms: int
    surplus_allowed: int = 0
    """Deliveries that may have ended beyond `due`: an earlier run of the micro-batch found them due by an older registry."""


class Events:
    """The event type of each record in one partition of an event topic, from the offset `first` on."""

    def __init__(self, first: int) -> None:
        self.first = first
        self._types = array("H")

    @property
    def end(self) -> int:
        """Return the offset after the last record that was added; `first` if there is none."""
        return self.first + len(self._types)

    def add(self, offset: int, kind: int) -> None:
        """Add the record at `offset`, which is after all earlier records. `kind` is the number of the event's type."""
        self._types.extend([0] * (offset - self.end))  # markers of transactions have offsets, and are not records
        self._types.append(kind)

    def count(self, first: int, last: int) -> int:
        """Return the number of added records from the offset `first` to the offset `last`, both included."""
        kinds = self._types[max(first - self.first, 0) : max(last + 1 - self.first, 0)]
        return len(kinds) - kinds.count(0)

    def kind(self, offset: int) -> int | None:
        """Return the number under which `Evidence` has stored the event's type.

        1: the record is not an event. 0: no record has this offset, because a transaction's marker has it, or because Kafka has
        compacted the topic. 65,535: the type came after the first 65,533 types. None: the offset was not read.
        """
        return self._types[offset - self.first] if self.first <= offset < self.end else None


class Evidence:
    """Everything that was read from the topics about each delivery.

    The caller adds the records of the attempts and retries topics before the dead letters, because notes in these two topics
    say which dead letters were redriven.
    """

    def __init__(self) -> None:
        self.events: dict[Place, Events] = {}
        self.reasons = [reason.value for reason in SkipReason]
        self._types = ["", ""]
        self._type_numbers: dict[str, int] = {}
        self._recipients: list[Recipient] = [NOBODY]
        self._recipient_numbers: dict[Recipient, int] = {NOBODY: 0}
        self._words: dict[Place, dict[int, array[int]]] = {}
        self._receipts: dict[tuple[str, Place], array[int]] = {}
        self._redriven: dict[tuple[Place, int, int], int] = {}

    def add_event(self, place: Place, offset: int, event_type: str | None) -> None:
        """Add a record of an event topic; `event_type` None: the record is not an event.

        The attribute `events` must have the partition already. The caller adds records in the order of their offsets.
        """
        number = _NO_EVENT if event_type is None else self._type_numbers.get(event_type, 0)
        if not number:
            number = self._type_numbers[str(event_type)] = min(len(self._types), _OTHER_TYPE)
            if number < _OTHER_TYPE:
                self._types.append(str(event_type))
        self.events[place].add(offset, number)

    def add_log_record(self, record: AttemptsRecord | None, written_at_ms: int) -> None:
        """Add a record of the attempts topic. None, a record of an unknown kind, is ignored.

        Entries of replays are ignored, unless they say delivered.
        """
        if isinstance(record, OffsetReceipt):
            counts = (record.first_offset, record.last_offset, record.records, record.rejected, record.due, written_at_ms)
            self._receipts.setdefault((record.lane, Place(record.topic, record.partition)), array("q")).extend(counts)
        elif record is not None:
            for entry in record.entries:
                self._add_entry(entry, record)

    def _add_entry(self, entry: Entry, record: LogRecord) -> None:
        state = self._state(entry)
        if entry.replay:
            if state != DELIVERED:
                return
            state = REPLAYED
        if isinstance(entry, BatchEntry):
            for due in entry.accepted() if state in {DELIVERED, REPLAYED} else entry.due():
                recipient = self._number(DeliveryMode.BATCH.value, record.endpoint_id, due.subscription_id)
                self._add(_place_of(due.topic, due.partition), due.offset, recipient, state)
            return
        # The mode names the lane. The batch lane writes single entries for deliveries that it skips before it collects a batch.
        recipient = self._number(record.mode, record.endpoint_id, entry.subscription_id)
        place = _place_of(entry.topic, entry.partition)
        if isinstance(entry, RedrivenEntry):
            self._redrive(place, entry.offset, recipient, entry.dead_lettered_at_ms)
        else:
            self._add(place, entry.offset, recipient, state)

    def _state(self, entry: Entry) -> int:
        if isinstance(entry, log_entries.ATTEMPTED):
            return DELIVERED if entry.error_class is None else FAILED
        if isinstance(entry, log_entries.SKIPPED):
            return self._skipped(str(entry.reason))
        if isinstance(entry, log_entries.POSTPONED):
            return POSTPONED
        return REDRIVEN if isinstance(entry, RedrivenEntry) else DEAD_IN_LOG

    def add_retry_message(self, message: retry_messages.Postponed | retry_messages.Report) -> None:
        """Add a record of the retries topic.

        Entries of replays are ignored, and so are reports: the attempts topic has their outcomes. The caller adds a note of a
        redrive, from the record's header, with `add_log_record`.
        """
        if isinstance(message, retry_messages.Report):
            return
        for retry_entry in message.entries:
            if retry_entry.replay is not None:
                continue
            lane = DeliveryMode.DIRECT if retry_entry.left_by is None else DeliveryMode.BATCH
            quarter = min(max(retry_entry.expires_ms // _QUARTER_MS - _FIRST_QUARTER, 0), ENQUEUED - 1)
            for number, packed in enumerate(retry_entry.packed):
                event = segment.unpacked(packed)
                name = retry_entry.subscriptions[
                    retry_entry.subscription_places[number] if retry_entry.subscription_places else 0
                ]
                recipient = self._number(lane.value, message.endpoint_id, name)
                place = _place_of(event.topic, event.partition)
                self._add(place, event.offset, recipient, ENQUEUED | quarter)

    def add_dead_letter(self, letter: DeadLetter) -> None:
        """Add a dead letter. Dead letters of replays are ignored."""
        if letter.replay:
            return
        recipient = self._number(letter.mode.value, letter.endpoint_id, letter.subscription_id)
        place, offset = _place_of(letter.topic, letter.partition), letter.offset
        is_redriven = letter.dead_lettered_at_ms <= self._redriven.get((place, offset, recipient), -1)
        self._add(place, offset, recipient, REDRIVEN if is_redriven else DEAD)

    def add_rejected(self, record: RejectedRecord) -> None:
        """Add a rejected record. An unreadable retry entry is ignored, because its event is unknown."""
        if record.reason == intake.UNREADABLE:
            return
        state = REJECTED_BY_A_LANE if record.reason in intake.LANE_SPECIFIC else REJECTED
        self._add(_place_of(record.topic, record.partition), record.offset, 0, state)

    def places(self) -> list[Place]:
        """Return all partitions of event topics with any evidence."""
        return sorted({*self.events, *self._words, *(place for _, place in self._receipts)})

    def ranges(self, lane: str, place: Place) -> list[HandledRange]:
        """Return the ranges of a lane's receipts about one partition, in the order in which the caller added the receipts."""
        numbers = self._receipts.get((lane, place), ())
        return [HandledRange(*numbers[at : at + 6]) for at in range(0, len(numbers), 6)]

    def first_offset(self, place: Place, since_ms: int) -> int | None:
        """Return the lowest offset of the partition in all lanes' receipts written at or after `since_ms`; None: no receipt."""
        ranges = (handled for lane in DeliveryMode for handled in self.ranges(lane.value, place))
        return min((handled.first for handled in ranges if handled.written_at_ms >= since_ms), default=None)

    def has_lane(self, lane: str) -> bool:
        """Return True if there is any evidence of this lane."""
        return any(name == lane for name, _ in self._receipts) or any(recipient.lane == lane for recipient in self._recipients)

    def statements(self, place: Place, first: int = 0, last: int = 2**62) -> Iterator[tuple[int, Recipient, list[int]]]:
        """Yield offset, recipient and all states of each delivery from offset `first` to `last`, in the order of offsets.

        Both offsets are included, and the states are sorted. The recipient of a rejected record is NOBODY.
        """
        chunks = self._words.get(place, {})
        for chunk in sorted(chunks):
            if not first >> _CHUNK_BITS <= chunk <= last >> _CHUNK_BITS:
                continue
            before, states = -1, list[int]()
            for word in sorted(chunks[chunk]):
                if word >> 16 != before:
                    if states and first <= (at := chunk << _CHUNK_BITS | before >> 32) <= last:
                        yield at, self._recipients[before & 0xFFFF_FFFF], states
                    before, states = word >> 16, []
                states.append(word & 0xFFFF)
            if states and first <= (at := chunk << _CHUNK_BITS | before >> 32) <= last:
                yield at, self._recipients[before & 0xFFFF_FFFF], states

    def type_at(self, place: Place, offset: int) -> str | None:
        """Return the type of the event at an offset; "" if no event is there, and "(others)" for a type after the first 65,533.

        None: the offset was not read, for example because Kafka had deleted the beginning of the partition.
        """
        events = self.events.get(place)
        kind = None if events is None else events.kind(offset)
        if kind == _OTHER_TYPE:
            return "(others)"
        return None if kind is None else self._types[kind]

    @staticmethod
    def expires_ms(state: int) -> int:
        """Return the end of the quarter of a day in which a delivery in the retries topic expires, in ms since the epoch.

        `state` is ENQUEUED plus the number of the quarter.
        """
        return ((state & ~ENQUEUED) + _FIRST_QUARTER + 1) * _QUARTER_MS

    def _skipped(self, reason: str) -> int:
        if reason not in self.reasons:  # written by a newer version
            self.reasons.append(reason)
        return SKIPPED + self.reasons.index(reason)

    def _number(self, lane: str, endpoint_id: str, subscription_id: str) -> int:
        recipient = Recipient(lane, endpoint_id, subscription_id)
        number = self._recipient_numbers.get(recipient)
        if number is None:
            number = self._recipient_numbers[recipient] = len(self._recipients)
            self._recipients.append(recipient)
        return number

    def _redrive(self, place: Place, offset: int, recipient: int, until_ms: int) -> None:
        """Record that all dead letters of this delivery up to the time `until_ms` were redriven."""
        key = (place, offset, recipient)
        self._redriven[key] = max(until_ms, self._redriven.get(key, 0))

    def _add(self, place: Place, offset: int, recipient: int, state: int) -> None:
        chunks = self._words.setdefault(place, {})
        words = chunks.get(offset >> _CHUNK_BITS)
        if words is None:
            words = chunks[offset >> _CHUNK_BITS] = array("Q")
        words.append((offset & 0xFFFF) << 48 | recipient << 16 | state)


@functools.lru_cache(maxsize=10_000)
def _place_of(topic: str, partition: int) -> Place:
    """Return one shared object for all deliveries of a partition: each place is a key of large dictionaries."""
    return Place(topic, partition)
