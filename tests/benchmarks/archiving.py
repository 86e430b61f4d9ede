"""Measure what `fanout archive` takes to read records of its topics, Kafka and Postgres aside: CPU time of a million entries.

Run: `python -m tests.benchmarks.archiving [entries]`. Records as the job writes them: a hundred entries in each record of the
log, of 200 endpoints, of which two in a hundred failed; one dead letter for every hundred entries, with three attempts.
`Archiver._taken` makes of each record the rows that are written to Postgres.
"""

from __future__ import annotations

import datetime as dt
import statistics
import sys
import threading
import time

from delivery.config import settings
from delivery.model import Attempt, Outcome, OutcomeKind
from delivery.webhooks.results import topic_rows
from fanout.archiver import main_loop
from tests.support import archive, builders

ENDPOINTS, IN_A_RECORD, ROUNDS, DISTINCT = 200, 100, 5, 200


class Message:
    """A record as confluent_kafka gives it."""

    def __init__(self, topic: str, offset: int, value: bytes) -> None:
        self._topic, self._offset, self._value = topic, offset, value

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return self._value

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_800_000_000_000


def outcome(number: int, endpoint: str) -> Outcome:
    """A delivery of which every fiftieth failed at first."""
    done = Attempt(1, 1_800_000_000_100, 12.3, 200, None)
    failed = Attempt(1, 1_800_000_000_000, 20.0, 500, "server_error", detail="HTTP 500", response=b"no")
    event = builders.event(record=builders.record(offset=number))
    delivery = builders.delivery(event=event, endpoint=builders.endpoint(endpoint))
    if number % IN_A_RECORD == 0:
        return Outcome(delivery, OutcomeKind.DEAD_LETTERED, (failed, failed, failed), "server_error")
    attempts = (failed, done) if number % 50 == 1 else (done,)
    return Outcome(delivery, OutcomeKind.DELIVERED, attempts)


def messages(lane: settings.DeliverySettings) -> list[Message]:
    topics = topic_rows.Topics(
        attempts=lane.attempts_topic, dead_letters=lane.dead_letter_topic, rejected="rejected", retries="retries"
    )
    written = [
        row
        for number in range(DISTINCT)
        for row in topic_rows.rows(
            archive.results([outcome(number * IN_A_RECORD + n, f"ep{number % ENDPOINTS}") for n in range(IN_A_RECORD)]),
            topics,
            now_ms=0,
        )
    ]
    return [Message(row.topic, offset, row.value or b"") for offset, row in enumerate(written)]


def main(entries: int) -> None:
    archiver = main_loop.Archiver(settings.Settings(), threading.Event())
    read, now = messages(settings.DeliverySettings()), dt.datetime.now(dt.UTC)
    times = max(1, entries // (DISTINCT * IN_A_RECORD) // ROUNDS)
    mib = sum(len(message.value()) for message in read) * times / 2**20
    taken_s, attempts = [], 0
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(times):
            for message in read:
                attempts += len(archiver._archived_record(message, now).attempts)
        taken_s.append(time.process_time() - began)
    per_round = attempts / ROUNDS
    took_s = statistics.median(taken_s)
    spread = f"{min(taken_s):.2f} to {max(taken_s):.2f}"
    print(f"{per_round:.0f} attempts, {mib:.1f} MiB: CPU s {took_s:.2f} ({spread} in {ROUNDS} rounds)")
    print(f"{per_round / took_s:,.0f} attempts a CPU second, {mib / took_s:.0f} MiB a CPU second")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
