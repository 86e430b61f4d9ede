"""Take Kafka records to their results: parse, route, deliver. The straight line of the direct lane, without Spark.

Runs in the executors, inside the worker's event loop. Must not import pyspark or psycopg.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from delivery.model import ContentMode, Delivery, DeliveryMode, EndpointId, Event, Outcome, OutcomeKind, Record
from delivery.webhooks import (
    batch_message,
    dispatch,
    envelope,
    handover,
    intake,
    journal,
    matching,
    message,
    ordering,
    routing,
)

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
    asked: int = 0
    """Endpoints to which requests were made."""
    unreachable: int = 0
    """Those of them to which there was no way at all."""
    gone: frozenset[EndpointId] = frozenset()
    """Endpoints that have said that they are gone for good."""


class _Due(NamedTuple):
    """What is due of one event."""

    deliveries: list[Delivery]
    ended: list[Outcome[Delivery]]


def ended(dispatcher: dispatch.Dispatcher[Any], **fields: Any) -> Results:
    """Return the last results of a task, with what its dispatcher tells of the whole of it."""
    reached = dispatcher.reached()
    return Results(
        most_in_flight=dispatcher.most_in_flight,
        asked=reached.asked,
        unreachable=reached.unreachable,
        gone=dispatcher.gone(),
        **fields,
    )


class Lane:
    """Deliver the records of one micro-batch partition, as they are read. Used once.

    Every record is rejected, or each of its due deliveries is skipped, delivered, dead-lettered or postponed: what `take` has
    not returned yet, `finish` does. The exception is what has `ended` in an earlier run, which is in no results again.
    """

    def __init__(
        self,
        registry: routing.Registry,
        dispatcher: dispatch.Dispatcher[Delivery],
        hand_over: handover.Handover,
        layout: envelope.Layout,
        ended: journal.Ended = frozenset(),
    ) -> None:
        self._intake = intake.Intake(registry, layout, DeliveryMode.DIRECT, self._prepared)
        self._dispatcher = dispatcher
        self._hand_over = hand_over
        self._ended_before = ended

    async def take(self, records: Iterable[Record]) -> Results:
        """Begin to deliver `records`; return what has come meanwhile, of these and of those before."""
        results = Results()
        for count, record in enumerate(records, start=1):
            due = await self._intake.take(record, results.rejections)
            if due is not None:
                results.outcomes += due.ended
                for delivery in due.deliveries:
                    self._dispatcher.submit(delivery)
            if count % RECORDS_BETWEEN_IO == 0:
                await self._dispatcher.room()
        results.outcomes += self._dispatcher.ended()
        return results

    async def finish(self) -> Results:
        """Wait for all that is under way; return what is left, with the receipts."""
        await self._dispatcher.finish()
        return ended(self._dispatcher, outcomes=self._dispatcher.ended(), receipts=self._intake.receipts())

    def abandon(self) -> None:
        """Stop sending: nobody will take the results."""
        self._dispatcher.abandon()

    def _prepared(self, event: Event, due: list[matching.Match]) -> _Due:
        """Return what is due of an event: what is attempted, and how the rest has ended here."""
        prepared = _Due([], [])
        contents: dict[ContentMode, message.Content] = {}
        for match in due:
            endpoint = match.endpoint
            webhook_id = message.webhook_id(event, match.subscription.subscription_id)
            if self._ended_before and journal.of(event, match.subscription.subscription_id) in self._ended_before:
                continue  # its rows are written; the receipt counts it as due, as in the run that ended it
            skip = matching.skip_reason(match)
            postponed = self._hand_over.reason(endpoint) if skip is None else None
            if skip is None and postponed is None:
                mode = endpoint.content_mode
                content = contents.get(mode) or contents.setdefault(mode, message.content(event, mode))
                prepared.deliveries.append(
                    Delivery(event, match.subscription, endpoint, webhook_id, content.body, content.headers)
                )
                continue
            key = None if endpoint.order_by is None else ordering.key_of(event.content, endpoint.order_by)
            unsent = Delivery(event, match.subscription, endpoint, webhook_id, b"", order_key=key)
            if postponed is None:
                prepared.ended.append(Outcome(unsent, OutcomeKind.SKIPPED, reason=skip))
            else:
                prepared.ended.append(self._hand_over.unattempted(unsent, postponed))
        return prepared
