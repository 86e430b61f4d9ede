"""What the archive's tests put into it: records as the job writes them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import orjson

from delivery.model import Attempt, CustomerId, Outcome, OutcomeKind, SubTenantId
from delivery.webhooks import rows
from delivery.webhooks.results import Results
from subscriptions_db.archive import rows as archive_rows
from subscriptions_db.archive import writer
from tests import builders

NOW = dt.datetime(2026, 5, 10, 12, tzinfo=dt.UTC)
KEPT = writer.Kept(letters=30, attempts=7)
TOPICS = rows.Topics(attempts="attempts", dead_letters="dead-letters", rejected="rejected", retries="retries")
PAYLOAD = b'{ "z": 1.0,\n "a": "\xc3\xa9\\u0000" }'


def outcome(
    *, customer: str = "c1", endpoint: str = "ep1", reason: str = "timeout", at: dt.datetime = NOW, **event: Any
) -> Outcome[Any]:
    """A delivery that failed once and was given up."""
    failed = Attempt(
        number=1, started_at_ms=round(at.timestamp() * 1000), duration_ms=20.0, status=500, error_class="server_error",
        detail="no\0thing", response=b"\0\xff",
    )  # fmt: skip
    made = builders.event(**{"data": PAYLOAD, "sub_tenant_id": SubTenantId("100"), **event})
    to = builders.endpoint(endpoint, customer_id=CustomerId(customer))
    return Outcome(builders.delivery(event=made, endpoint=to), OutcomeKind.DEAD_LETTERED, (failed,), reason)


def letter(*, dead_lettered_at: dt.datetime = NOW, **fields: Any) -> bytes:
    """A record of the dead-letter topic."""
    [written] = [row.value for row in rows.rows(Results(outcomes=[outcome(**fields)]), TOPICS) if row.topic == "dead-letters"]
    return orjson.dumps(orjson.loads(written) | {"dead_lettered_at_ms": round(dead_lettered_at.timestamp() * 1000)})


def attempts(*outcomes: Outcome[Any]) -> list[bytes]:
    """Records of the attempts topic."""
    return [row.value for row in rows.rows(Results(outcomes=list(outcomes)), TOPICS) if row.topic == "attempts"]


def taken_letter(offset: int, *, partition: int = 0, **fields: Any) -> archive_rows.Taken:
    row = archive_rows.letter_row(letter(**fields))
    return archive_rows.Taken(topic="dead-letters", partition=partition, offset=offset, letter=row)


def taken_attempts(offset: int, *outcomes: Outcome[Any]) -> archive_rows.Taken:
    found = [row for written in attempts(*outcomes) for row in archive_rows.attempt_rows(written)]
    return archive_rows.Taken(topic="attempts", partition=0, offset=offset, attempts=found)


def end_session_after(statements, dying, other):
    """Have the server end the session `dying`, by way of another one, before the statement after so many.

    Returns whether it has.
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
