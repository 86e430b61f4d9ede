"""Parse Kafka records, find the subscriptions that match, and deliver. The direct and the real-time lane use this code.

Runs in the event loop of a worker. Does not know Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from delivery.model import Delivery, Event, Outcome, OutcomeKind, Record
from delivery.payload_form import EndpointPayload
from delivery.registry_model import ContentMode, DeliveryMode
from delivery.webhooks.dispatching import dispatch
from delivery.webhooks.events import opaque, ordering_key, parsing
from delivery.webhooks.formats import decoder
from delivery.webhooks.results import completed_work
from delivery.webhooks.results.task_results import Results, final_results
from delivery.webhooks.routing import intake, matching, registries, seen_ids
from delivery.webhooks.scheduling import deferral
from delivery.webhooks.sending import payload

RECORDS_BETWEEN_IO = 32
"""Number of records after which the lane yields to the event loop. Parsing them takes about a millisecond, in which responses
wait to be read."""


class _DueDeliveries(NamedTuple):
    """One event's deliveries to attempt, and the outcomes of the event's deliveries that are skipped or deferred."""

    deliveries: list[Delivery]
    ended: list[Outcome[Delivery]]


class DirectLane:
    """Deliver the records of one Spark partition of a micro-batch, or of one slice (a second) of the real-time lane. Used once.

    Every record has one of four results:
    1. The record is rejected.
    2. The record is a JSON array of events, and is returned in `Results.batch_records`. The task writes each event of the array
       to Kafka as a record of its own.
    3. Each delivery of the record is skipped, delivered, dead-lettered or deferred to the retry lane.
    4. The record pauses its partition, because its schema cannot be read now. This record and later records of the partition
       are left out, and are read again later.

    `submit`, `drain` and `finish` return each result once. Deliveries in `ended` were completed by an earlier run of the
    micro-batch or query, and are left out.
    """

    def __init__(
        self,
        registry: registries.Registry,
        dispatcher: dispatch.Dispatcher[Delivery],
        deferrals: deferral.Deferrals,
        layout: parsing.Layout,
        ended: completed_work.CompletedKeys = frozenset(),
        *,
        seen: seen_ids.SeenIds | None = None,
        formats: decoder.Decoder | None = None,
    ) -> None:
        self._intake = intake.Intake(
            registry,
            layout,
            DeliveryMode.DIRECT,
            self._prepared,
            seen,
            formats=formats,
            pauses_partitions=True,
            keeps_batches=True,
        )
        self._dispatcher = dispatcher
        self._deferrals = deferrals
        self._ended_before = ended

    @property
    def paused(self) -> Mapping[tuple[str, int], int]:
        """Return, for each paused partition, the offset of its first record that is left out."""
        return self._intake.paused

    async def submit(self, records: Iterable[Record]) -> Results:
        """Begin to deliver `records`; return the results that exist now and that no earlier call has returned.

        Results of earlier records are included.
        """
        results = Results()
        for count, record in enumerate(records, start=1):
            due = await self._intake.accept(record, results.rejections)
            if due is not None:
                results.outcomes += due.ended
                for delivery in due.deliveries:
                    self._dispatcher.submit(delivery)
            if count % RECORDS_BETWEEN_IO == 0:
                await self._dispatcher.wait_for_room()
        results.outcomes += self._dispatcher.drain()
        results.batch_records = self._intake.drain_batches()
        return results

    def drain(self) -> Results:
        """Return the outcomes since the last call of `submit`, `drain` or `finish`."""
        return Results(outcomes=self._dispatcher.drain())

    async def finish(self) -> Results:
        """Wait until each delivery has its outcome; return the remaining results and the task's totals.

        The results include all offset receipts: records of the offsets that the task has handled.
        """
        await self._dispatcher.finish()
        return final_results(
            self._dispatcher,
            outcomes=self._dispatcher.drain(),
            receipts=self._intake.receipts(),
            reused_ids=self._intake.drain_reused_ids(),
            invalid_times=self._intake.drain_invalid_times(),
            paused=self._intake.paused,
        )

    def abandon(self) -> None:
        """Send nothing more, and cancel the attempts that the task awaits. Called when the results are no longer read."""
        self._dispatcher.abandon()

    def _prepared(self, event: Event, due: list[matching.Match]) -> _DueDeliveries:
        """Split the matches of an event: return the deliveries to attempt, and the outcomes of deliveries to skip or defer.

        Deliveries that an earlier run has completed are left out.
        """
        prepared = _DueDeliveries([], [])
        contents: dict[tuple[ContentMode, EndpointPayload], payload.Content] = {}
        decoded = event
        for match in due:
            endpoint = match.endpoint
            event = opaque.as_received(decoded, endpoint.payload)
            webhook_id = payload.webhook_id(event, match.subscription.subscription_id)
            if (
                self._ended_before
                and completed_work.key_of_event(event, match.subscription.subscription_id) in self._ended_before
            ):
                continue  # the delivery's rows are written; the receipt counts the delivery as due, as in the earlier run
            skip = matching.skip_reason(match.subscription)
            postponed = self._deferrals.reason_for(endpoint) if skip is None else None
            if skip is None and postponed is None:
                mode = endpoint.content_mode
                kind = (mode, endpoint.payload)
                content = contents.get(kind) or contents.setdefault(kind, payload.content(event, mode))
                prepared.deliveries.append(
                    Delivery(event, match.subscription, endpoint, webhook_id, content.body, content.headers)
                )
                continue
            key = None if endpoint.order_by is None else ordering_key.key_of(event.content, endpoint.order_by)
            unsent = Delivery(event, match.subscription, endpoint, webhook_id, b"", order_key=key)
            if postponed is None:
                prepared.ended.append(Outcome(unsent, OutcomeKind.SKIPPED, reason=skip))
            else:
                prepared.ended.append(self._deferrals.deferred_now(unsent, postponed))
        return prepared
