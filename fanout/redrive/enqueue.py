"""Enqueue dead letters in the retry lane, and write notes that say which dead letters were redriven.

Runs in `fanout dead-letters redrive` and in `fanout archive`. Every redrive uses this module. A note is in a header of the
record with the retry entries, and in a record of the attempts topic. The module redrive_plan makes the retry entries and the
notes, and says when a dead letter can be enqueued twice.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from delivery.config import settings
from delivery.registry_model import DeliveryMode, Retrying, Revision
from delivery.webhooks.results.dead_letter_records import DeadLetter
from delivery.webhooks.retries import retry_records
from fanout.kafka import publishing
from fanout.redrive import redrive_plan

NOTES_PER_FLUSH = 1000
"""Number of notes that the enqueuer collects before it writes them to the attempts topic. A note says which dead letters were
redriven. Before the write, the enqueuer waits until Kafka has the retry entries of all dead letters in the notes."""
MAX_BUFFERED_LETTERS, MAX_BUFFERED_BYTES = 10_000, 64 * 1024 * 1024
"""Number of dead letters, or bytes of payload in base64, at which the enqueuer writes its buffer. Dead letters of one endpoint
and one delivery mode that are written together share records. A batch stays in the buffer until all its chosen dead letters
were added, or until `finish`."""


@dataclass(slots=True)
class Summary:
    """Numbers of a redrive, or of a dry run."""

    letters: int = 0
    """Dead letters that were enqueued, or that would be enqueued without the dry run."""
    requests: int = 0
    """Retry entries for these dead letters. Each retry entry makes one request. The dead letters of a batch share requests."""
    redriven_before: int = 0
    """Selected dead letters that were left out, because they were redriven before. 0 in a redrive by `fanout archive`."""
    endpoints: collections.Counter[str] = field(default_factory=collections.Counter)
    """Endpoint id → number of its dead letters in `letters`."""

    def document(self) -> dict[str, Any]:
        """Return the numbers as a dictionary for JSON output."""
        return {
            "letters": self.letters,
            "requests": self.requests,
            "redriven_before": self.redriven_before,
            "endpoints": dict(self.endpoints.most_common()),
        }


_EndpointKey = tuple[str, str, DeliveryMode]
"""An endpoint's id, its customer, and the delivery mode. Another customer may have registered the id of a deleted endpoint."""


def _key_of(letter: DeadLetter) -> _EndpointKey:
    return letter.endpoint_id, letter.customer_id, letter.mode


class Enqueuer:
    """Write chosen dead letters to the retries topic as retry entries, with notes that name these dead letters.

    Dead letters that were sent as one batch wait for each other, and share a request again, or several if one would be too
    large. `chosen` are all dead letters that the caller will add. From `chosen` the enqueuer knows when a batch is complete.
    With `dry_run`, the enqueuer only counts. `max_ages_s` has the `retry.max_age_s` of endpoints with a value of their own, by
    endpoint and customer. Other endpoints have the default. None: all endpoints have the default. `revision` is the registry's
    present revision. If a worker's registry is older and lacks a subscription, deliveries to it wait for a newer registry.

    The methods raise KafkaUnavailable if Kafka refuses a record or does not answer. Kafka may have earlier records then.
    """

    def __init__(
        self,
        config: settings.Settings,
        chosen: Iterable[redrive_plan.Newest],
        *,
        now_ms: int,
        dry_run: bool,
        max_ages_s: Mapping[tuple[str, str], float] | None = None,
        revision: Revision = redrive_plan.ANY_REVISION,
    ) -> None:
        self.summary = Summary()
        self._max_ages_s = max_ages_s or {}
        self._revision = revision
        self._topics = config.delivery
        self._publisher = None if dry_run else publishing.Publisher(config.kafka)
        self._now_ms = now_ms
        self._batch_sizes = collections.Counter(newest.batch for newest in chosen if newest.batch)
        self._batches: dict[str, list[DeadLetter]] = {}
        self._requests = collections.defaultdict[_EndpointKey, list[list[DeadLetter]]](list)
        self._buffered = self._buffered_bytes = 0
        self._notes: list[publishing.Message] = []

    def add(self, letter: DeadLetter) -> None:
        """Add one of the chosen dead letters, and write the buffer if it is full.

        The chosen dead letters of one batch go in one request again, or in several of at most redrive_plan.MAX_REQUEST_BYTES. A
        larger dead letter goes alone.
        """
        batch = redrive_plan.batch_of(letter)
        self._buffered += 1
        self._buffered_bytes += len(letter.payload_base64)
        if not batch:
            self._requests[_key_of(letter)].append([letter])
        else:
            of_batch = self._batches.setdefault(batch, [])
            of_batch.append(letter)
            if len(of_batch) == self._batch_sizes[batch]:
                self._complete(batch)
        if self._buffered >= MAX_BUFFERED_LETTERS or self._buffered_bytes >= MAX_BUFFERED_BYTES:
            self._write()

    def finish(self) -> None:
        """Write the buffered dead letters, then their notes, and wait until Kafka has all of them.

        A batch whose chosen dead letters were not all added is written without the missing ones: they expired meanwhile.
        """
        for batch in list(self._batches):
            self._complete(batch)
        self._write()
        self._flush()

    def _complete(self, batch: str) -> None:
        letters = self._batches.pop(batch)
        self._requests[_key_of(letters[0])] += redrive_plan.requests_of(letters)

    def _write(self) -> None:
        for (endpoint_id, customer_id, _), requests in self._requests.items():
            count = sum(map(len, requests))
            self.summary.letters += count
            self.summary.requests += len(requests)
            self.summary.endpoints[endpoint_id] += count
            max_age_s = self._max_ages_s.get((endpoint_id, customer_id), Retrying().max_age_s)
            made = redrive_plan.records(requests, now_ms=self._now_ms, max_age_s=max_age_s, revision=self._revision)
            for record in made:
                self._publish(record)
        self._requests.clear()
        self._buffered = sum(map(len, self._batches.values()))
        self._buffered_bytes = sum(len(letter.payload_base64) for batch in self._batches.values() for letter in batch)

    def _publish(self, record: redrive_plan.Record) -> None:
        if self._publisher is None:
            return
        topic, note = self._topics.retries_topic, (redrive_plan.NOTE, record.note)
        for key, value, headers in retry_records.records(record.key, record.postponed, (note,)):
            self._publisher.publish(publishing.Message(topic=topic, key=key, value=value, headers=headers))
        self._notes.append(publishing.Message(topic=self._topics.attempts_topic, key=record.key, value=record.note))
        if len(self._notes) >= NOTES_PER_FLUSH:
            self._flush()

    def _flush(self) -> None:
        """Wait until Kafka has the retry entries, then write their notes to the attempts topic."""
        if self._publisher is None:
            return
        self._publisher.flush()
        for note in self._notes:
            self._publisher.publish(note)
        self._publisher.flush()
        self._notes = []
