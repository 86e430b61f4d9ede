"""Decide what a redrive hands to the retry lane, and what it notes in the log. Pure.

Runs in the command and the tests. A redrive is idempotent: it notes each letter that it hands over, by the delivery and by when
the letter was written, and such a letter is not redriven again. When the delivery becomes a dead letter again, that is a later
one.

A note stands in the header of the very record that hands the letter over, so that there is none without the other, and in the
attempts topic, for as long as that is kept; it is written there when Kafka has the record. A command that dies in between has
repeated nothing and lost nothing. What can repeat is what two redrives at the same time both hand over, and what they hand over
comes with the same `webhook-id`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from delivery.model import DeliveryMode, LeaveReason, Retrying
from delivery.webhooks.batching import segment
from delivery.webhooks.policy import retry_decision
from delivery.webhooks.results import log_records, topic_rows
from delivery.webhooks.results.dead_letter_records import DeadLetter
from delivery.webhooks.results.log_entries import RedrivenEntry
from delivery.webhooks.results.log_records import AttemptsRecord, LogRecord
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.state import chunking
from fanout.kafka.places import Place
from fanout.redrive.selection import Selection

NOTE = "redriven"
"""The header of a record of the retries topic with the note of what it hands over."""
MAX_REQUEST_BYTES = 256 * 1024
"""Of letters of one batch that go in one request again."""
NOTE_BYTES, STORY_BYTES = 1024, 1024 + 256
"""About what a note takes, and an attempt in a story."""


class Delivery(NamedTuple):
    """What a letter is about."""

    topic: str
    partition: int
    offset: int
    endpoint_id: str
    subscription_id: str


class Standing(NamedTuple):
    """Where the newest letter of a delivery is, and from when."""

    dead_lettered_at_ms: int
    place: Place
    offset: int
    batch: str
    """The `webhook-id` of the batch in which it was sent; empty: alone, or in a batch that could not be made."""


class Redriven:
    """What was redriven before: of each delivery, up to which of its letters."""

    def __init__(self) -> None:
        self._until_ms: dict[Delivery, int] = {}

    def take(self, record: AttemptsRecord | None) -> None:
        """Take a record of the attempts topic, or the note that stands beside a retry entry."""
        if not isinstance(record, LogRecord):
            return
        for entry in record.entries:
            if isinstance(entry, RedrivenEntry):
                place = (entry.topic, entry.partition, entry.offset)
                delivery = Delivery(*place, record.endpoint_id, entry.subscription_id)
                self._until_ms[delivery] = max(entry.dead_lettered_at_ms, self._until_ms.get(delivery, -1))

    def has(self, letter: DeadLetter) -> bool:
        """Tell whether this letter was redriven."""
        return letter.dead_lettered_at_ms <= self._until_ms.get(of(letter), -1)


def of(letter: DeadLetter) -> Delivery:
    """Return what a letter is about."""
    return Delivery(letter.topic, letter.partition, letter.offset, letter.endpoint_id, letter.subscription_id)


class Plan:
    """Which letters are redriven: of each delivery the newest, if it is asked for and was not redriven."""

    def __init__(self, selection: Selection, redriven: Redriven) -> None:
        self._selection, self._redriven = selection, redriven
        self._standing: dict[Delivery, Standing] = {}
        self.redriven_before = 0

    def take(self, letter: DeadLetter, place: Place, offset: int) -> None:
        """Take a letter; those of one delivery in their order."""
        delivery = of(letter)
        if not self._selection.takes(letter):
            self._standing.pop(delivery, None)
        elif self._redriven.has(letter):
            self.redriven_before += 1
        else:
            self._standing[delivery] = Standing(letter.dead_lettered_at_ms, place, offset, letter.batch_webhook_id or "")

    def chosen(self, limit: int | None = None) -> dict[tuple[Place, int], Standing]:
        """Return the letters by where they are; of more than `limit` the oldest."""
        standing = sorted(self._standing.values(), key=lambda one: one.dead_lettered_at_ms)[:limit]
        return {(one.place, one.offset): one for one in standing}


def parcel_of(together: Sequence[DeadLetter], *, now_ms: int) -> retry_messages.RetryEntry:
    """Return letters that go in one request as a parcel: one of a single delivery, or some of one batch, in their order.

    What was sent in a batch goes in a batch again, because its endpoint takes nothing else; with those of the same batch that
    are redriven with it. All of them together make the same body, and so have the same `webhook-id`.
    """
    first = together[0]
    names = {name: number for number, name in enumerate(dict.fromkeys(letter.subscription_id for letter in together))}
    return retry_messages.RetryEntry(
        packed=[segment.item(letter.event(), now_ms).packed for letter in together],
        subscriptions=list(names),
        subscription_places=[names[letter.subscription_id] for letter in together] if len(names) > 1 else [],
        left_by=LeaveReason.REDRIVE if first.is_of_batch else None,
        again_at_ms=now_ms,
        since_ms=now_ms,
        expires_ms=now_ms + round(Retrying().max_age_s * 1000),
        reason=retry_decision.REDRIVEN,
        retries=0,
        attempts=max(letter.last_attempt for letter in together),
        history=first.history()[-retry_messages.MAX_HISTORY :],
        replay=first.replay or None,
    )


class Record(NamedTuple):
    """What is written of some letters of one endpoint."""

    key: bytes
    postponed: bytes
    """For the retries topic."""
    note: bytes
    """For its header NOTE, and for the attempts topic."""


def records(requests: Iterable[Sequence[DeadLetter]], *, now_ms: int) -> Iterator[Record]:
    """Yield what is written of letters of one endpoint; those that go in one request stand together."""
    for chunk in chunking.chunks(requests, _size, topic_rows.MAX_POSTPONED_BYTES):
        first = chunk[0][0]
        mode = DeliveryMode.BATCH if first.is_of_batch else DeliveryMode.DIRECT
        parcels = [parcel_of(together, now_ms=now_ms) for together in chunk]
        note = LogRecord(
            endpoint_id=first.endpoint_id,
            customer_id=first.customer_id,
            mode=mode.value,
            entries=[_note(letter, now_ms) for together in chunk for letter in together],
        )
        postponed = retry_messages.encoded(retry_messages.Postponed(first.endpoint_id, first.customer_id, parcels))
        yield Record(first.endpoint_id.encode(), postponed, log_records.encode(note))


def requests_of(batch: Iterable[DeadLetter]) -> Iterator[list[DeadLetter]]:
    """Yield letters of one batch as they go in requests: all in one, up to a bound that Kafka takes in one record."""
    return chunking.chunks(batch, lambda letter: _size([letter]), MAX_REQUEST_BYTES)


def _size(together: Sequence[DeadLetter]) -> int:
    """Return no fewer bytes than they take in a record, story and note included."""
    return sum(len(letter.payload_base64) + NOTE_BYTES for letter in together) + retry_messages.MAX_HISTORY * STORY_BYTES


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
