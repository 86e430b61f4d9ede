"""Take Kafka records to their results: parse, route, deliver. The straight line of the direct lane, without Spark.

Runs in the executors, inside the worker's event loop. Must not import pyspark or psycopg.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from delivery import errors
from delivery.model import Delivery, Event, Outcome, OutcomeKind, Record, Revision, SkipReason, TenantStatus
from delivery.webhooks import dispatch, envelope, matching, message, routing

RECORDS_BETWEEN_IO = 32
"""After so many records the event loop gets its turn: about a millisecond of parsing, while answers wait to be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A record that is not an event of a known tenant."""

    record: Record
    reason: str
    detail: str


@dataclass(slots=True, kw_only=True)
class Receipt:
    """What was done with one run of offsets, and by which revision of the registry: reconciling starts from these."""

    topic: str
    partition: int
    revision: Revision
    first_offset: int
    last_offset: int
    records: int = 0
    rejected: int = 0
    due: int = 0


@dataclass(slots=True, kw_only=True)
class Results:
    """Everything that came of some records."""

    outcomes: list[Outcome] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)
    receipts: dict[tuple[str, int], Receipt] = field(default_factory=dict)


async def deliver(
    records: Iterable[Record], registry: routing.Registry, dispatcher: dispatch.Dispatcher, layout: envelope.Layout
) -> Results:
    """Return what came of each record: it is rejected, or each of its due deliveries is skipped, delivered or dead-lettered."""
    results = Results()
    for count, record in enumerate(records, start=1):
        receipt = _receipt(results, record, registry.revision)
        try:
            event = envelope.parse(record, layout)
            router = await registry.router_for(event)
            _require_active(event, router)
        except errors.EventRejected as exc:
            receipt.rejected += 1
            results.rejections.append(Rejection(record=record, reason=exc.reason, detail=exc.detail))
        else:
            for delivery, skip in _due(event, router):
                receipt.due += 1
                if skip is None:
                    dispatcher.submit(delivery)
                else:
                    results.outcomes.append(Outcome(delivery=delivery, kind=OutcomeKind.SKIPPED, reason=skip))
        if count % RECORDS_BETWEEN_IO == 0:
            await asyncio.sleep(0)
    results.outcomes += await dispatcher.finish()
    return results


def _require_active(event: Event, router: routing.Router) -> None:
    status = router.tenant_status(event.tenant_id)
    if status is None:
        raise errors.EventRejected("unknown_tenant", f"tenant {event.tenant_id} is not registered")
    if status is TenantStatus.SUSPENDED:
        raise errors.EventRejected("suspended_tenant", f"tenant {event.tenant_id} is suspended")


def _due(event: Event, router: routing.Router) -> list[tuple[Delivery, SkipReason | None]]:
    matches = router.matches(event)
    body = message.body(event) if matches else b""
    return [
        (
            Delivery(
                event=event,
                subscription=match.subscription,
                endpoint=match.endpoint,
                webhook_id=message.webhook_id(event, match.subscription.subscription_id),
                body=body,
            ),
            matching.skip_reason(match),
        )
        for match in matches
    ]


def _receipt(results: Results, record: Record, revision: Revision) -> Receipt:
    key = (record.topic, record.partition)
    receipt = results.receipts.get(key)
    if receipt is None:
        receipt = results.receipts[key] = Receipt(
            topic=record.topic,
            partition=record.partition,
            revision=revision,
            first_offset=record.offset,
            last_offset=record.offset,
        )
    receipt.last_offset = record.offset
    receipt.records += 1
    return receipt
