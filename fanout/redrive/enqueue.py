"""Hand dead letters over to the retry lane, and tell the log of it: the one way to redrive, wherever the letters come from.

Runs in the command. What is written is decided in fanout/redrive/redrive_plan.py, which says what can repeat.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from delivery.config import settings
from delivery.webhooks.results import topic_rows
from delivery.webhooks.results.dead_letter_records import DeadLetter
from fanout.kafka import publishing
from fanout.redrive import redrive_plan

NOTED_TOGETHER = 1000
"""After so many letters Kafka is asked to have them all, and the log is told."""
HELD_LETTERS, HELD_BYTES = 10_000, 64 * 1024 * 1024
"""So much waits at most, to share records with others of its endpoint."""


@dataclass(slots=True)
class Summary:
    """What a redrive has done, or would do."""

    letters: int = 0
    requests: int = 0
    redriven_before: int = 0
    endpoints: collections.Counter[str] = field(default_factory=collections.Counter)

    def document(self) -> dict[str, Any]:
        """Return it for machines."""
        return {
            "letters": self.letters,
            "requests": self.requests,
            "redriven_before": self.redriven_before,
            "endpoints": dict(self.endpoints.most_common()),
        }


class Handing:
    """Gather letters by endpoint, those of one batch until all of them are there, and write what becomes of them."""

    def __init__(
        self, config: settings.Settings, chosen: Iterable[redrive_plan.Standing], *, now_ms: int, dry_run: bool
    ) -> None:
        self.summary = Summary()
        self._topics = config.delivery
        self._publisher = None if dry_run else publishing.Publisher(config.kafka)
        self._now_ms = now_ms
        self._left = collections.Counter(one.batch for one in chosen if one.batch)
        self._batches: dict[str, list[DeadLetter]] = {}
        self._requests: dict[str, list[list[DeadLetter]]] = {}
        self._held = self._held_bytes = 0
        self._notes: list[publishing.Message] = []

    def take(self, letter: DeadLetter) -> None:
        """Take one of the chosen letters."""
        batch = letter.batch_webhook_id
        self._held += 1
        self._held_bytes += len(letter.payload_base64)
        if not batch:
            self._requests.setdefault(letter.endpoint_id, []).append([letter])
        else:
            of_batch = self._batches.setdefault(batch, [])
            of_batch.append(letter)
            if len(of_batch) == self._left[batch]:
                self._requests.setdefault(letter.endpoint_id, []).extend(redrive_plan.requests_of(self._batches.pop(batch)))
        if self._held >= HELD_LETTERS or self._held_bytes >= HELD_BYTES:
            self._write()

    def finish(self) -> None:
        """Write what is left."""
        self._write()
        self._settle()

    def _write(self) -> None:
        for endpoint_id, requests in self._requests.items():
            count = sum(map(len, requests))
            self.summary.letters += count
            self.summary.requests += len(requests)
            self.summary.endpoints[endpoint_id] += count
            for record in redrive_plan.records(requests, now_ms=self._now_ms):
                self._publish(record)
        self._requests = {}
        self._held = sum(map(len, self._batches.values()))
        self._held_bytes = sum(len(letter.payload_base64) for batch in self._batches.values() for letter in batch)

    def _publish(self, record: redrive_plan.Record) -> None:
        if self._publisher is None:
            return
        for topic, key, value in topic_rows.for_retries(self._topics.retries_topic, record.key, record.postponed):
            noted = () if value is None else ((redrive_plan.NOTE, record.note),)
            self._publisher.publish(publishing.Message(topic=topic, key=key, value=value, headers=noted))
        self._notes.append(publishing.Message(topic=self._topics.attempts_topic, key=record.key, value=record.note))
        if len(self._notes) >= NOTED_TOGETHER:
            self._settle()

    def _settle(self) -> None:
        """Wait until Kafka has what was handed over, and tell the log."""
        if self._publisher is None:
            return
        self._publisher.flush()
        for note in self._notes:
            self._publisher.publish(note)
        self._publisher.flush()
        self._notes = []
