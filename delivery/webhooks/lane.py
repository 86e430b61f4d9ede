"""Take Kafka records to their results: parse, route, deliver. The straight line of the direct lane, without Spark.

Runs in the executors, inside the worker's event loop. Must not import pyspark or psycopg.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from delivery import errors
from delivery.model import ContentMode, Delivery, Event, Outcome, OutcomeKind, Record, Revision, SkipReason, TenantStatus
from delivery.webhooks import dispatch, envelope, matching, message, routing

log = logging.getLogger(__name__)

UNFORESEEN = "unforeseen"
"""The reason of a rejection that is a fault of ours."""
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
    """What came of some records."""

    outcomes: list[Outcome] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    most_in_flight: int = 0
    """Requests under way at once."""


class Lane:
    """Deliver the records of one micro-batch partition, as they are read. Used once.

    Every record is rejected, or each of its due deliveries is skipped, delivered or dead-lettered: what `take` has not returned
    yet, `finish` does.
    """

    def __init__(self, registry: routing.Registry, dispatcher: dispatch.Dispatcher, layout: envelope.Layout) -> None:
        self._registry = registry
        self._dispatcher = dispatcher
        self._layout = layout
        self._receipts: dict[tuple[str, int], Receipt] = {}

    async def take(self, records: Iterable[Record]) -> Results:
        """Begin to deliver `records`; return what has come meanwhile, of these and of those before."""
        results = Results()
        for count, record in enumerate(records, start=1):
            receipt = self._receipt(record)
            try:
                due = await self._due(record)
            except errors.EventRejected as exc:
                receipt.rejected += 1
                results.rejections.append(Rejection(record=record, reason=exc.reason, detail=exc.detail))
            except Exception:
                # A surprise in one record must hurt that record alone. Raised, it would fail everybody's micro-batch for ever.
                log.exception("a record failed in an unforeseen way", extra={"topic": record.topic, "offset": record.offset})
                receipt.rejected += 1
                results.rejections.append(Rejection(record=record, reason=UNFORESEEN, detail="see the worker's log"))
            else:
                receipt.due += len(due)
                self._begin(due, results)
            if count % RECORDS_BETWEEN_IO == 0:
                await self._dispatcher.room()
        results.outcomes += self._dispatcher.ended()
        return results

    async def finish(self) -> Results:
        """Wait for all that is under way; return what is left, with the receipts."""
        await self._dispatcher.finish()
        return Results(
            outcomes=self._dispatcher.ended(),
            receipts=list(self._receipts.values()),
            most_in_flight=self._dispatcher.most_in_flight,
        )

    def abandon(self) -> None:
        """Stop sending: nobody will take the results."""
        self._dispatcher.abandon()

    async def _due(self, record: Record) -> list[tuple[Delivery, SkipReason | None]]:
        """Return what is due of a record, with the reason to skip it if there is one; raise EventRejected for no event."""
        event = envelope.parse(record, self._layout)
        router = await self._registry.router_for(event)
        _require_active(event, router)
        contents: dict[ContentMode, message.Content] = {}
        due: list[tuple[Delivery, SkipReason | None]] = []
        for match in router.matches(event):
            mode = match.endpoint.content_mode
            content = contents.get(mode) or contents.setdefault(mode, message.content(event, mode))
            delivery = Delivery(
                event=event,
                subscription=match.subscription,
                endpoint=match.endpoint,
                webhook_id=message.webhook_id(event, match.subscription.subscription_id),
                body=content.body,
                content_headers=content.headers,
            )
            due.append((delivery, matching.skip_reason(match)))
        return due

    def _begin(self, due: list[tuple[Delivery, SkipReason | None]], results: Results) -> None:
        for delivery, skip in due:
            if skip is None:
                self._dispatcher.submit(delivery)
            else:
                results.outcomes.append(Outcome(delivery=delivery, kind=OutcomeKind.SKIPPED, reason=skip))

    def _receipt(self, record: Record) -> Receipt:
        key = (record.topic, record.partition)
        receipt = self._receipts.get(key)
        if receipt is None:
            receipt = self._receipts[key] = Receipt(
                topic=record.topic,
                partition=record.partition,
                revision=self._registry.revision,
                first_offset=record.offset,
                last_offset=record.offset,
            )
        receipt.last_offset = record.offset
        receipt.records += 1
        return receipt


def _require_active(event: Event, router: routing.Router) -> None:
    status = router.tenant_status(event.tenant_id)
    if status is None:
        raise errors.EventRejected("unknown_tenant", f"tenant {event.tenant_id} is not registered")
    if status is TenantStatus.SUSPENDED:
        raise errors.EventRejected("suspended_tenant", f"tenant {event.tenant_id} is suspended")
