"""Take Kafka records to their results: parse, route, deliver. The straight line of the direct lane, without Spark.

Runs in the executors, inside the worker's event loop. Must not import pyspark or psycopg.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from delivery.model import ContentMode, Delivery, DeliveryMode, Event, Outcome, OutcomeKind, Record, SkipReason
from delivery.webhooks import batch_message, dispatch, envelope, intake, journal, matching, message, routing

RECORDS_BETWEEN_IO = 32
"""After so many records the event loop gets its turn: about a millisecond of parsing, while answers wait to be read."""


@dataclass(slots=True, kw_only=True)
class Results:
    """What came of some records."""

    outcomes: list[Outcome[Delivery]] = field(default_factory=list)
    batches: list[batch_message.BatchOutcome] = field(default_factory=list)
    rejections: list[intake.Rejection] = field(default_factory=list)
    receipts: list[intake.Receipt] = field(default_factory=list)
    most_in_flight: int = 0
    """Requests under way at once."""


class Lane:
    """Deliver the records of one micro-batch partition, as they are read. Used once.

    Every record is rejected, or each of its due deliveries is skipped, delivered or dead-lettered: what `take` has not returned
    yet, `finish` does. The exception is what has `ended` in an earlier run, which is in no results again.
    """

    def __init__(
        self,
        registry: routing.Registry,
        dispatcher: dispatch.Dispatcher[Delivery],
        layout: envelope.Layout,
        ended: journal.Ended = frozenset(),
    ) -> None:
        self._intake = intake.Intake(registry, layout, DeliveryMode.DIRECT, _deliveries)
        self._dispatcher = dispatcher
        self._ended_before = ended

    async def take(self, records: Iterable[Record]) -> Results:
        """Begin to deliver `records`; return what has come meanwhile, of these and of those before."""
        results = Results()
        for count, record in enumerate(records, start=1):
            due = await self._intake.take(record, results.rejections)
            if due is not None:
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
            receipts=self._intake.receipts(),
            most_in_flight=self._dispatcher.most_in_flight,
        )

    def abandon(self) -> None:
        """Stop sending: nobody will take the results."""
        self._dispatcher.abandon()

    def _begin(self, due: list[tuple[Delivery, SkipReason | None]], results: Results) -> None:
        for delivery, skip in due:
            if self._ended_before and journal.of(delivery) in self._ended_before:
                continue  # its rows are written; the receipt counts it as due, as in the run that ended it
            if skip is None:
                self._dispatcher.submit(delivery)
            else:
                results.outcomes.append(Outcome(delivery=delivery, kind=OutcomeKind.SKIPPED, reason=skip))


def _deliveries(event: Event, due: list[matching.Match]) -> list[tuple[Delivery, SkipReason | None]]:
    """Return what is due of an event, with the reason to skip it if there is one."""
    contents: dict[ContentMode, message.Content] = {}
    deliveries: list[tuple[Delivery, SkipReason | None]] = []
    for match in due:
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
        deliveries.append((delivery, matching.skip_reason(match)))
    return deliveries
