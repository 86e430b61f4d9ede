"""Records as the job writes them, for tests of the archive."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Collection, Iterable
from typing import Any

from delivery.model import Attempt, LeaveReason, Outcome, OutcomeKind
from delivery.registry_model import CustomerId, SubscriptionId, SubTenantId
from delivery.webhooks.batching import segment
from delivery.webhooks.results import dead_letter_records, log_records, topic_rows
from delivery.webhooks.results.task_results import Results
from delivery.webhooks.sending import batch_payload
from subscriptions_db.archive.ingest import archived_rows as archive_rows
from subscriptions_db.archive.ingest import hourly_statistics, writer
from tests.support import builders

NOW = dt.datetime(2026, 5, 10, 12, tzinfo=dt.UTC)
NOW_MS = round(NOW.timestamp() * 1000)
KEPT = writer.Retention(letters=30, attempts=7, statistics=90)
TOPICS = topic_rows.Topics(attempts="attempts", dead_letters="dead-letters", rejected="rejected", retries="retries")
PAYLOAD = b'{ "z": 1.0,\n "a": "\xc3\xa9\\u0000" }'


def outcome(
    *, customer: str = "c1", endpoint: str = "ep1", reason: str = "timeout", at: dt.datetime = NOW, **event: Any
) -> Outcome[Any]:
    """Return the outcome of a delivery that failed once and was given up."""
    failed = Attempt(
        number=1, started_at_ms=round(at.timestamp() * 1000), duration_ms=20.0, status=500, error_class="server_error",
        detail="no\0thing", response=b"\0\xff",
    )  # fmt: skip
    made = builders.event(**{"data": PAYLOAD, "sub_tenant_id": SubTenantId("100"), **event})
    to = builders.endpoint(endpoint, customer_id=CustomerId(customer))
    return Outcome(builders.delivery(event=made, endpoint=to), OutcomeKind.DEAD_LETTERED, (failed,), reason)


def without_attempt(kind: OutcomeKind, reason: str, **fields: Any) -> Outcome[Any]:
    """Return the outcome of a delivery that has ended, or waits, without an attempt."""
    return outcome(**fields)._replace(kind=kind, attempts=(), reason=reason)


def batch_outcome(
    *, customer: str = "c1", endpoint: str = "ep1", count: int = 3, rejected: Collection[int] = (), at: dt.datetime = NOW
) -> batch_payload.BatchOutcome:
    """Return the outcome of a batch that failed once and was given up. With `rejected`: accepted, except these events."""
    failed = outcome(customer=customer, endpoint=endpoint, at=at)
    to = failed.delivery.endpoint
    events = [segment.unpacked(segment.item(builders.event(), 0).packed) for _ in range(count)]
    through = [SubscriptionId("s1")] * count
    webhook_id = batch_payload.webhook_id(to.endpoint_id, events, through)
    delivery = batch_payload.BatchDelivery(to, webhook_id, b"", b"", b"", events, through, LeaveReason.COUNT)
    made = failed._replace(delivery=delivery)
    if rejected:
        taken = failed.attempts[0]._replace(status=200, error_class=None)
        made = made._replace(kind=OutcomeKind.DELIVERED, attempts=(taken,), reason=None)
    return batch_payload.BatchOutcome(made, dict.fromkeys(rejected, "no"))


def letter(*, dead_lettered_at: dt.datetime = NOW, **fields: Any) -> bytes:
    """Return a record of the dead-letter topic."""
    now_ms = round(dead_lettered_at.timestamp() * 1000)
    rows = topic_rows.rows(Results(outcomes=[outcome(**fields)]), TOPICS, now_ms=now_ms)
    [written] = [row.value or b"" for row in rows if row.topic == "dead-letters"]
    return written


def results(outcomes: Iterable[Outcome[Any] | batch_payload.BatchOutcome]) -> Results:
    """Return the results of a lane with these outcomes of deliveries and batches."""
    made = Results()
    for ended in outcomes:
        if isinstance(ended, batch_payload.BatchOutcome):
            made.batches.append(ended)
        else:
            made.outcomes.append(ended)
    return made


def attempts(*outcomes: Outcome[Any] | batch_payload.BatchOutcome) -> list[bytes]:
    """Return the records of the attempts topic for these outcomes."""
    return [row.value or b"" for row in topic_rows.rows(results(outcomes), TOPICS, now_ms=NOW_MS) if row.topic == "attempts"]


def letter_row(written: bytes) -> archive_rows.DeadLetterRow:
    """Return the row of the archive for a record of the dead-letter topic."""
    return archive_rows.dead_letter_row(*dead_letter_records.decode_with_document(written))


def attempt_rows(written: bytes, at: dt.datetime = NOW) -> list[archive_rows.AttemptRow]:
    """Return the rows of the archive for a record of the attempts topic that was written `at`."""
    record = log_records.decode(written)
    return archive_rows.attempt_rows(record, at) if isinstance(record, log_records.LogRecord) else []


def taken_letter(offset: int, *, partition: int = 0, **fields: Any) -> archive_rows.ArchivedRecord:
    row = letter_row(letter(**fields))
    counted = hourly_statistics.of_dead_letter(row)
    return archive_rows.ArchivedRecord(topic="dead-letters", partition=partition, offset=offset, letter=row, statistics=counted)


def taken_attempts(
    offset: int, *outcomes: Outcome[Any] | batch_payload.BatchOutcome, at: dt.datetime = NOW
) -> archive_rows.ArchivedRecord:
    """Return the archived record of the attempts topic for these outcomes, written `at`."""
    found = [row for written in attempts(*outcomes) for row in attempt_rows(written, at)]
    return archive_rows.ArchivedRecord(topic="attempts", partition=0, offset=offset, attempts=found)


def taken_letters(
    offset: int, *outcomes: Outcome[Any] | batch_payload.BatchOutcome, at: dt.datetime = NOW
) -> list[archive_rows.ArchivedRecord]:
    """Return the archived records of the dead letters of these outcomes, given up `at`."""
    written = [
        row.value or b"" for row in topic_rows.rows(results(outcomes), TOPICS, now_ms=NOW_MS) if row.topic == "dead-letters"
    ]
    rows = [dataclasses.replace(letter_row(value), dead_lettered_at=at) for value in written]
    return [
        archive_rows.ArchivedRecord(topic="dead-letters", partition=0, offset=offset + number, letter=row)
        for number, row in enumerate(rows)
    ]


def end_session_after(statements, dying, other):
    """Let `dying` execute `statements` statements. Before the next statement of `dying`, `other` ends the session of `dying`.

    `dying` and `other` are connections. Return a function that returns True once the session was ended.
    """
    left, execute = statements, dying.execute

    def dies(*arguments, **options):
        nonlocal left
        left -= 1
        if left < 0:
            other.execute("select pg_terminate_backend(%s)", [dying.info.backend_pid])
        return execute(*arguments, **options)

    dying.execute = dies
    return lambda: left < 0
