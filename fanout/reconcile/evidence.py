"""Keep what the topics say of each delivery, in few bytes: what `fanout reconcile` judges.

Runs in the command and the tests. Pure: it is handed what was read. A word of eight bytes says one thing of one delivery (an
event, and whom it is due to), so that millions of deliveries fit into memory; an event takes two bytes, a receipt 48.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Iterator
from typing import NamedTuple

from delivery.model import DeliveryMode, SkipReason
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
"""What a word says. REDRIVEN: a dead letter that is none any more. DEAD_IN_LOG: given up unattempted, by the log. POSTPONED: by
the log. REJECTED_BY_A_LANE: for a reason that the other lane need not have. REPLAYED: delivered because somebody asked for it
again. What else becomes of replays is no evidence of what was due, and is not taken."""
SKIPPED = 16
"""And more: the reason's place in `Evidence.reasons`."""
HANDED = 0x8000
"""And the quarter of a day until which it may wait: it stands in the retries topic."""
_QUARTER_MS = 6 * 3_600_000
_FIRST_QUARTER = 80_000
"""Of the year 2024: quarters of a day since then fit into 15 bits until 2047."""
_CHUNK_BITS = 16
"""So many low bits of the offset stand in a word. Words are sorted by chunks of that many offsets."""
_NO_EVENT, _OTHER_TYPE = 1, 0xFFFF


class Whose(NamedTuple):
    """To whom an event is due: what a word holds a number of."""

    lane: str
    endpoint_id: str
    subscription_id: str


NOBODY = Whose("", "", "")
"""Of a record that was rejected."""


class Run(NamedTuple):
    """What a lane says of one run of offsets, in a receipt."""

    first: int
    last: int
    records: int
    rejected: int
    due: int
    written_at_ms: int
    at_most: int = 0
    """How many may have ended beside those that are due: what an earlier try found due by an older registry."""


class Events:
    """What a partition of an event topic holds from an offset on."""

    def __init__(self, first: int) -> None:
        self.first = first
        self._types = array("H")

    @property
    def end(self) -> int:
        """Return the offset after the last record."""
        return self.first + len(self._types)

    def add(self, offset: int, kind: int) -> None:
        self._types.extend([0] * (offset - self.end))  # the marks of transactions have offsets, and are no records
        self._types.append(kind)

    def count(self, first: int, last: int) -> int:
        """Return how many records there are from `first` to `last`."""
        held = self._types[max(first - self.first, 0) : max(last + 1 - self.first, 0)]
        return len(held) - held.count(0)

    def kind(self, offset: int) -> int | None:
        """Return the number of the event's type; 0: no record, None: not held."""
        return self._types[offset - self.first] if self.first <= offset < self.end else None


class Evidence:
    """What was read. First the attempts and the retries topic, which say what was redriven; then the dead letters."""

    def __init__(self) -> None:
        self.events: dict[Place, Events] = {}
        self.reasons = [reason.value for reason in SkipReason]
        self._types = ["", ""]
        self._type_numbers: dict[str, int] = {}
        self._whose: list[Whose] = [NOBODY]
        self._whose_numbers: dict[Whose, int] = {NOBODY: 0}
        self._words: dict[Place, dict[int, array[int]]] = {}
        self._receipts: dict[tuple[str, Place], array[int]] = {}
        self._redriven: dict[tuple[Place, int, int], int] = {}

    def take_event(self, place: Place, offset: int, event_type: str | None) -> None:
        """Take a record of an event topic; None: it is no event."""
        number = _NO_EVENT if event_type is None else self._type_numbers.get(event_type, 0)
        if not number:
            number = self._type_numbers[str(event_type)] = min(len(self._types), _OTHER_TYPE)
            if number < _OTHER_TYPE:
                self._types.append(str(event_type))
        self.events[place].add(offset, number)

    def take_attempts(self, record: AttemptsRecord | None, written_at_ms: int) -> None:
        """Take a record of the attempts topic; None, of an unknown kind, says nothing."""
        if isinstance(record, OffsetReceipt):
            counts = (record.first_offset, record.last_offset, record.records, record.rejected, record.due, written_at_ms)
            self._receipts.setdefault((record.lane, Place(record.topic, record.partition)), array("q")).extend(counts)
        elif record is not None:
            for entry in record.entries:
                self._take_entry(entry, record)

    def _take_entry(self, entry: Entry, of: LogRecord) -> None:
        state = self._state(entry)
        if entry.replay:
            if state != DELIVERED:
                return
            state = REPLAYED
        if isinstance(entry, BatchEntry):
            for due in entry.accepted() if state in {DELIVERED, REPLAYED} else entry.due():
                whose = self._number(DeliveryMode.BATCH.value, of.endpoint_id, due.subscription_id)
                self._add(_place_of(due.topic, due.partition), due.offset, whose, state)
            return
        # What the batch lane skipped before it collected a batch is on that lane's account: by the mode, as all of an endpoint.
        whose = self._number(of.mode, of.endpoint_id, entry.subscription_id)
        place = _place_of(entry.topic, entry.partition)
        if isinstance(entry, RedrivenEntry):
            self._redrive(place, entry.offset, whose, entry.dead_lettered_at_ms)
        else:
            self._add(place, entry.offset, whose, state)

    def _state(self, entry: Entry) -> int:
        if isinstance(entry, log_entries.ATTEMPTED):
            return DELIVERED if entry.error_class is None else FAILED
        if isinstance(entry, log_entries.SKIPPED):
            return self._skipped(str(entry.reason))
        if isinstance(entry, log_entries.POSTPONED):
            return POSTPONED
        return REDRIVEN if isinstance(entry, RedrivenEntry) else DEAD_IN_LOG

    def take_retries(self, message: retry_messages.Postponed | retry_messages.Report) -> None:
        """Take a record of the retries topic. What a report says has ended stands in the log.

        A note in its header is taken as a record of the attempts topic.
        """
        if isinstance(message, retry_messages.Report):
            return
        for one in message.entries:
            if one.replay is not None:
                continue
            lane = DeliveryMode.DIRECT if one.left_by is None else DeliveryMode.BATCH
            quarter = min(max(one.expires_ms // _QUARTER_MS - _FIRST_QUARTER, 0), HANDED - 1)
            for number, packed in enumerate(one.packed):
                event = segment.unpacked(packed)
                name = one.subscriptions[one.subscription_places[number] if one.subscription_places else 0]
                whose = self._number(lane.value, message.endpoint_id, name)
                place = _place_of(event.topic, event.partition)
                self._add(place, event.offset, whose, HANDED | quarter)

    def take_dead_letter(self, letter: DeadLetter) -> None:
        """Take a dead letter."""
        if letter.replay:
            return
        lane = DeliveryMode.BATCH if letter.is_of_batch else DeliveryMode.DIRECT
        whose = self._number(lane.value, letter.endpoint_id, letter.subscription_id)
        place, offset = _place_of(letter.topic, letter.partition), letter.offset
        is_redriven = letter.dead_lettered_at_ms <= self._redriven.get((place, offset, whose), -1)
        self._add(place, offset, whose, REDRIVEN if is_redriven else DEAD)

    def take_rejected(self, record: RejectedRecord) -> None:
        """Take a record that was rejected."""
        if record.reason == intake.UNREADABLE:
            return  # it waited in the retry lane, and nobody knows which record it was
        state = REJECTED_BY_A_LANE if record.reason in intake.LANE_SPECIFIC else REJECTED
        self._add(_place_of(record.topic, record.partition), record.offset, 0, state)

    def places(self) -> list[Place]:
        """Return all partitions of event topics of which anything is known."""
        return sorted({*self.events, *self._words, *(place for _, place in self._receipts)})

    def runs(self, lane: str, place: Place) -> list[Run]:
        """Return what a lane's receipts say, in the order in which they were written."""
        numbers = self._receipts.get((lane, place), ())
        return [Run(*numbers[at : at + 6]) for at in range(0, len(numbers), 6)]

    def first_offset(self, place: Place, since_ms: int) -> int | None:
        """Return the lowest offset of which a receipt speaks that was written since then."""
        runs = (run for lane in DeliveryMode for run in self.runs(lane.value, place))
        return min((run.first for run in runs if run.written_at_ms >= since_ms), default=None)

    def has(self, lane: str) -> bool:
        """Tell whether this lane has left anything."""
        return any(name == lane for name, _ in self._receipts) or any(whose.lane == lane for whose in self._whose)

    def said(self, place: Place, first: int = 0, last: int = 2**62) -> Iterator[tuple[int, Whose, list[int]]]:
        """Yield each offset, whom it is due to, and all that is said of that delivery, by offsets."""
        chunks = self._words.get(place, {})
        for chunk in sorted(chunks):
            if not first >> _CHUNK_BITS <= chunk <= last >> _CHUNK_BITS:
                continue
            before, states = -1, list[int]()
            for word in sorted(chunks[chunk]):
                if word >> 16 != before:
                    if states and first <= (at := chunk << _CHUNK_BITS | before >> 32) <= last:
                        yield at, self._whose[before & 0xFFFF_FFFF], states
                    before, states = word >> 16, []
                states.append(word & 0xFFFF)
            if states and first <= (at := chunk << _CHUNK_BITS | before >> 32) <= last:
                yield at, self._whose[before & 0xFFFF_FFFF], states

    def type_at(self, place: Place, offset: int) -> str | None:
        """Return an event's type; "" where there is no event, None where Kafka holds it no more or it was not read."""
        held = self.events.get(place)
        kind = None if held is None else held.kind(offset)
        if kind == _OTHER_TYPE:
            return "(others)"
        return None if kind is None else self._types[kind]

    @staticmethod
    def expires_ms(state: int) -> int:
        """Return the end of the quarter of a day until which what was handed to the retry lane may wait."""
        return ((state & ~HANDED) + _FIRST_QUARTER + 1) * _QUARTER_MS

    def _skipped(self, reason: str) -> int:
        if reason not in self.reasons:  # of a newer version
            self.reasons.append(reason)
        return SKIPPED + self.reasons.index(reason)

    def _number(self, lane: str, endpoint_id: str, subscription_id: str) -> int:
        whose = Whose(lane, endpoint_id, subscription_id)
        number = self._whose_numbers.get(whose)
        if number is None:
            number = self._whose_numbers[whose] = len(self._whose)
            self._whose.append(whose)
        return number

    def _redrive(self, place: Place, offset: int, whose: int, until_ms: int) -> None:
        """Note that what was given up until then is no dead letter any more."""
        key = (place, offset, whose)
        self._redriven[key] = max(until_ms, self._redriven.get(key, 0))

    def _add(self, place: Place, offset: int, whose: int, state: int) -> None:
        chunks = self._words.setdefault(place, {})
        words = chunks.get(offset >> _CHUNK_BITS)
        if words is None:
            words = chunks[offset >> _CHUNK_BITS] = array("Q")
        words.append((offset & 0xFFFF) << 48 | whose << 16 | state)


@functools.lru_cache(maxsize=10_000)
def _place_of(topic: str, partition: int) -> Place:
    """Return the same object for each of thousands of deliveries: a place is the key of what is kept."""
    return Place(topic, partition)
