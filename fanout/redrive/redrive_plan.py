"""Decide which retry entries a redrive writes, and the notes beside them. Pure.

Runs in `fanout` commands, in `fanout archive` and in the tests. A redrive writes a note about each redriven dead letter,
with the delivery and the time of the dead letter. `fanout dead-letters redrive` leaves out a dead letter with a note, and older
dead letters of the same delivery. A redelivery that is given up again makes a later dead letter, which has no note.

The note is in a header of the record with the retry entry, so that neither exists without the other. The note is also written
to the attempts topic after Kafka has confirmed the record. So a command that dies in between has lost nothing, and its
repetition repeats nothing. A dead letter can be enqueued twice, with the same `webhook-id` in both requests, in these cases:

1. Two redrives run at the same time.
2. `fanout archive` redrives a dead letter that Postgres does not mark as redriven yet. Either the archive has not read the
   command's note, or it died between Kafka's confirmation of the record and the mark in Postgres.
3. The note is gone from Kafka. The command refuses to redrive if notes may be gone, unless `--may-repeat` permits it. The
   command does not notice two cases: a topic was recreated; or the redrive was killed before it wrote the note to the attempts
   topic, and the records of the retries topic were deleted later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from delivery.model import LeaveReason, NextAttempt
from delivery.registry_model import Retrying, Revision
from delivery.webhooks.batching import segment
from delivery.webhooks.policy import retry_reasons
from delivery.webhooks.results import log_records, topic_rows
from delivery.webhooks.results.dead_letter_records import DeadLetter
from delivery.webhooks.results.log_entries import RedrivenEntry
from delivery.webhooks.results.log_records import AttemptsRecord, LogRecord
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.state import chunking
from fanout.kafka import publishing
from fanout.kafka.places import Place
from fanout.redrive.selection import Selection

NOTE = "redriven"
"""Name of the header with the note, in records of the retries topic."""
MAX_REQUEST_BYTES = 256 * 1024
"""Maximum bytes of a request that redrives dead letters of a batch: the sum of their payloads, headers and attributes."""
ATTEMPT_BYTES = 1024 + 256
"""Estimated bytes of one attempt in an attempt history."""
HISTORY_BYTES = retry_messages.MAX_HISTORY * ATTEMPT_BYTES
"""Estimated bytes of the attempt history of one request."""
MAX_RECORD_BYTES = publishing.MAX_RECORD_BYTES - 2 * HISTORY_BYTES
"""Maximum bytes that the events of one request, with their notes, take in a record. The bound keeps the whole record below
publishing.MAX_RECORD_BYTES. A larger dead letter gets a request of its own."""
OVERHEAD_BYTES = 1024
"""Upper bound of the bytes that a record has in addition to its key, its value and its note."""
ANY_REVISION = Revision(2**62)
"""Revision above every revision of a registry. A command without Postgres does not know the registry's revision. So a delivery
whose subscription a worker does not know waits for `snapshot.max_age_s`, or with look-ups for `snapshot.lookup_ttl_s`. Only
then does the subscription count as deleted."""
LetterPlace = tuple[Place, int] | int
"""The location of a dead letter: partition and offset in the dead-letter topic, or its position in the archive. In the archive,
two dead letters may have one offset, because the dead-letter topic was recreated."""


class Delivery(NamedTuple):
    """The identity of a dead letter's delivery."""

    webhook_id: str
    """The event's own `webhook-id`, also if the event was sent in a batch. In a topic that was recreated, two events may have
    the same offset, and their `webhook-id`s differ."""
    topic: str
    partition: int
    offset: int
    """Offset of the event. `topic` and `partition` are the event's too, not those of the dead letter."""
    endpoint_id: str
    subscription_id: str


class Newest(NamedTuple):
    """The newest dead letter of a delivery: its time, place and batch, and why it cannot be redriven."""

    dead_lettered_at_ms: int
    place: LetterPlace
    batch: str
    """The batch with the event (`batch_of`). Empty: the event was sent alone, or the batch could not be built."""
    fault: str
    """The reason why the dead letter cannot be redriven; empty: it can."""


class Redriven:
    """Remember which dead letters were redriven: for each delivery, the time of its newest redriven dead letter.

    A redrive leaves a note about each dead letter (NOTE, RedrivenEntry).
    """

    def __init__(self) -> None:
        self._until_ms: dict[Delivery, int] = {}

    def add(self, record: AttemptsRecord | None) -> None:
        """Remember the dead letters that `record` calls redriven (RedrivenEntry). Other entries and records are ignored.

        `record` is a record of the attempts topic, or the value of the header NOTE of a record of the retries topic.
        """
        if not isinstance(record, LogRecord):
            return
        for entry in record.entries:
            if isinstance(entry, RedrivenEntry):
                place = (entry.topic, entry.partition, entry.offset)
                delivery = Delivery(entry.webhook_id, *place, record.endpoint_id, entry.subscription_id)
                self._until_ms[delivery] = max(entry.dead_lettered_at_ms, self._until_ms.get(delivery, -1))

    def has(self, letter: DeadLetter) -> bool:
        """Return True if this dead letter, or a later dead letter of its delivery, was redriven."""
        return letter.dead_lettered_at_ms <= self._until_ms.get(delivery_of(letter), -1)


def delivery_of(letter: DeadLetter) -> Delivery:
    """Return the identity of the delivery of a dead letter."""
    place = (letter.topic, letter.partition, letter.offset)
    return Delivery(letter.webhook_id, *place, letter.endpoint_id, letter.subscription_id)


class Plan:
    """Choose the dead letters to redrive: the newest of each delivery, if it is selected and was not redriven.

    `fault_of` returns the value of `Newest.fault` for a dead letter.
    """

    def __init__(
        self, selection: Selection, redriven: Redriven, *, fault_of: Callable[[DeadLetter], str] = lambda _: ""
    ) -> None:
        self._selection, self._redriven, self._fault_of = selection, redriven, fault_of
        self._newest: dict[Delivery, Newest] = {}
        self.redriven_before = 0

    def add(self, letter: DeadLetter, place: LetterPlace) -> None:
        """Choose a dead letter in place of an older dead letter of its delivery.

        If the dead letter is not selected, no dead letter of its delivery is chosen. If the dead letter was redriven, it is
        only counted. The caller adds the dead letters of one delivery in the order in which they were written.
        """
        delivery = delivery_of(letter)
        if not self._selection.matches(letter):
            self._newest.pop(delivery, None)
        elif self._redriven.has(letter):
            self.redriven_before += 1
        else:
            self._newest[delivery] = Newest(letter.dead_lettered_at_ms, place, batch_of(letter), self._fault_of(letter))

    def chosen(self, limit: int | None = None) -> dict[LetterPlace, Newest]:
        """Return the chosen dead letters by place: the `limit` oldest, or all without a limit.

        Dead letters with a `fault` are included.
        """
        newest = sorted(self._newest.values(), key=lambda letter: letter.dead_lettered_at_ms)[:limit]
        return {letter.place: letter for letter in newest}


def batch_of(letter: DeadLetter) -> str:
    """Return `customer/webhook-id/replay` of the batch in which a dead letter's event was sent; empty if there is none.

    Empty: the event was sent alone, or its batch has no `webhook-id`. The part `replay` is empty for a batch that no replay
    sent. A replayed batch may have the `webhook-id` of the original batch. Dead letters of the two batches must not share a
    request, because a retry entry names one replay for all of its events.
    """
    return f"{letter.customer_id}/{letter.batch_webhook_id}/{letter.replay or ''}" if letter.batch_webhook_id else ""


def fault_of(letter: DeadLetter) -> str:
    """Return why a dead letter cannot be redriven, for example because another program wrote it; empty: it can."""
    try:
        letter.payload()
        key, postponed, note = next(records([[letter]], now_ms=letter.dead_lettered_at_ms))
    except (ArithmeticError, TypeError, ValueError) as exc:
        return f"{type(exc).__name__}: {exc}"
    size = len(key) + len(postponed) + len(note) + OVERHEAD_BYTES
    if size > publishing.MAX_RECORD_BYTES:
        return f"its record in the retries topic would have {size} bytes, and may have {publishing.MAX_RECORD_BYTES}"
    return ""


def entry_of(
    together: Sequence[DeadLetter],
    *,
    now_ms: int,
    max_age_s: float = Retrying().max_age_s,
    revision: Revision = ANY_REVISION,
) -> retry_messages.RetryEntry:
    """Return the retry entry of dead letters that go in one request: one delivery, or events of one batch in order.

    If a worker's registry is older than `revision` and lacks the subscription, the delivery waits for a newer registry.

    A delivery that still fails becomes a dead letter again when its endpoint's retry schedule ends. At the latest, it does so
    after `max_age_s` seconds in the retry lane. Events that were sent in a batch go in a batch again, because their endpoint
    accepts nothing else. If one request has all events of the earlier batch, the request has the same `webhook-id`.
    """
    first = together[0]
    return retry_messages.new_entry(
        [segment.item(letter.event(), now_ms).packed for letter in together],
        [letter.subscription_id for letter in together],
        left_by=LeaveReason.REDRIVE if first.is_of_batch else None,
        next_attempt=NextAttempt(at_ms=now_ms, retries=0),
        max_age_s=max_age_s,
        reason=retry_reasons.REDRIVEN,
        now_ms=now_ms,
        attempts=max(letter.last_attempt for letter in together),
        history=first.history(),
        replay=first.replay or None,
        revision=revision,
    )


class Record(NamedTuple):
    """A record of the retries topic that enqueues dead letters of one endpoint, customer and delivery mode again.

    The record carries a note in a header, which says that these dead letters were redriven. The attempts topic gets the same
    note.
    """

    key: bytes
    postponed: bytes
    """Value for the retries topic: the retry entries of the dead letters."""
    note: bytes
    """The note about all these dead letters. It is the value of the header NOTE of this record, and also the whole value of a
    record of the attempts topic."""


def records(
    requests: Iterable[Sequence[DeadLetter]],
    *,
    now_ms: int,
    max_age_s: float = Retrying().max_age_s,
    revision: Revision = ANY_REVISION,
) -> Iterator[Record]:
    """Yield records for the retries topic that enqueue dead letters again, each with the note about its dead letters.

    The dead letters of each sequence in `requests` go to the endpoint in one request. All dead letters must have the same
    endpoint, customer and delivery mode, because a note names these only once. `entry_of` uses `max_age_s` and `revision`.
    """
    for chunk in chunking.chunks(requests, _size, topic_rows.MAX_POSTPONED_BYTES):
        first = chunk[0][0]
        entries = [entry_of(together, now_ms=now_ms, max_age_s=max_age_s, revision=revision) for together in chunk]
        note = LogRecord(
            endpoint_id=first.endpoint_id,
            customer_id=first.customer_id,
            mode=first.mode.value,
            entries=[_note(letter, now_ms) for together in chunk for letter in together],
        )
        postponed = retry_messages.encoded(retry_messages.Postponed.deferral(first.endpoint_id, first.customer_id, entries))
        yield Record(first.endpoint_id.encode(), postponed, log_records.encode(note))


def requests_of(batch: Iterable[DeadLetter]) -> Iterator[list[DeadLetter]]:
    """Split the dead letters of one batch into requests of at most MAX_REQUEST_BYTES, and at most MAX_RECORD_BYTES in a record.

    A larger dead letter has a request of its own.
    """
    for request in chunking.chunks(batch, _event_bytes, MAX_REQUEST_BYTES):
        yield from chunking.chunks(request, _record_bytes, MAX_RECORD_BYTES)


def _size(together: Sequence[DeadLetter]) -> int:
    """Return an estimate of the bytes of a request in a record, including attempt history and note."""
    return sum(map(_record_bytes, together)) + HISTORY_BYTES


def _event_bytes(letter: DeadLetter) -> int:
    """Return an upper bound of the bytes of the event's payload, headers and attributes."""
    return len(letter.payload_base64) * 3 // 4 + len(msgspec.json.encode((letter.headers, letter.attributes or None)))


def _record_bytes(letter: DeadLetter) -> int:
    """Return the bytes of a dead letter in a record: the event with its subscription, and its part of the note."""
    event = segment.item(letter.event(), letter.dead_lettered_at_ms).packed
    return len(event) + len(letter.subscription_id) + len(msgspec.json.encode(_note(letter, letter.dead_lettered_at_ms)))


def _note(letter: DeadLetter, now_ms: int) -> RedrivenEntry:
    return RedrivenEntry(
        webhook_id=letter.webhook_id,
        event_id=letter.event_id,
        event_type=letter.event_type,
        tenant_id=letter.tenant_id,
        subscription_id=letter.subscription_id,
        topic=letter.topic,
        partition=letter.partition,
        offset=letter.offset,
        appended_at_ms=letter.appended_at_ms,
        dead_lettered_at_ms=letter.dead_lettered_at_ms,
        redriven_at_ms=now_ms,
        replay=letter.replay or None,
    )
