"""Deliver batches that have left their shards, each by what the registry says of its endpoint now.

Runs in the executors, inside the worker's event loop. Must not import pyspark or psycopg. URL, secrets, authentication,
headers, content mode and compression are those of this moment, however long the events have waited, and so is whether the
endpoint and its subscriptions are there, and active.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from delivery.model import DeliveryMode, Endpoint, Outcome, OutcomeKind, SkipReason
from delivery.webhooks.batching import segment
from delivery.webhooks.results import completed_work
from delivery.webhooks.results.results import Results, final_results
from delivery.webhooks.routing import intake, registries, revalidation
from delivery.webhooks.scheduling import deferral, dispatch
from delivery.webhooks.sending import batch_payload
from delivery.webhooks.sending.batch_payload import BatchDelivery, BatchOutcome

log = logging.getLogger(__name__)

MAX_UNSETTLED_BYTES = 64 * 1024 * 1024
"""Of bodies that wait for their turn or their answer in one worker. A batch beyond that is not made yet."""
BYTES_BETWEEN_IO = 128 * 1024
"""After batches of so many bytes the event loop gets its turn: about a millisecond of making bodies, while answers wait to be
read. After each one, those of ten events took a fifth more CPU: the loop asks the kernel what has come at every turn."""
REQUEST_COUNTS_BYTES = 4 * 1024
"""What a request takes beside its events, as if it were so many bytes of them."""


class BatchLane:
    """Deliver the batches of one micro-batch partition, as they are read. Used once.

    Each event of a batch is skipped, delivered, dead-lettered or postponed: what `take` has not returned yet, `finish` does.
    The exception is what has `ended` in an earlier run, which is in no results again.
    """

    def __init__(
        self,
        registry: registries.Registry,
        dispatcher: dispatch.Dispatcher[BatchDelivery],
        hand_over: deferral.Handover,
        ended: completed_work.CompletedKeys = frozenset(),
    ) -> None:
        self._registry = registry
        self._dispatcher = dispatcher
        self._hand_over = hand_over
        self._ended_before = ended
        self._ended: list[BatchOutcome] = []
        self._begun = 0
        self._unsettled_bytes = 0

    async def take(self, written: Iterable[bytes]) -> Results:
        """Begin to deliver batches, as the shards wrote them; return what has come meanwhile."""
        since_io = 0
        for one in written:
            batch = segment.decoded_batch(one)
            destination = await self._registry.destination(batch.endpoint_id, revalidation.tenant_ids(batch.packed))
            parts = revalidation.split_by_eligibility(
                batch, batch.endpoint_id, batch.customer_id, DeliveryMode.BATCH, destination
            )
            for reason, places in parts.items():
                self._begin(batch, destination.endpoint, reason, places)
            since_io += len(one) + REQUEST_COUNTS_BYTES
            if since_io > BYTES_BETWEEN_IO:
                since_io = 0
                await self._dispatcher.room()
                self._settle()
            while self._unsettled_bytes > MAX_UNSETTLED_BYTES:
                await self._dispatcher.down_to(self._begun - 1)
                self._settle()
        self._settle()
        return Results(batches=self._told())

    async def finish(self) -> Results:
        """Wait for all that is under way; return what is left."""
        await self._dispatcher.finish()
        self._settle()
        return final_results(self._dispatcher, batches=self._told())

    def abandon(self) -> None:
        """Stop sending: nobody will take the results."""
        self._dispatcher.abandon()

    def _begin(self, batch: segment.Batch, endpoint: Endpoint | None, reason: SkipReason | None, places: Sequence[int]) -> None:
        """Send the events of a batch at `places`, or skip or postpone them."""
        # Events that cannot be read have no dead letter. Raised, it fails the task, and they stay in the lane's state.
        events = [segment.unpacked(batch.packed[place]) for place in places]
        through = revalidation.subscription_ids(batch, places)
        if self._ended_before:
            due = [
                one for one in zip(events, through, strict=True) if completed_work.key_of_packed(*one) not in self._ended_before
            ]
            if not due:
                return
            events, through = [event for event, _ in due], [name for _, name in due]
        # Of an endpoint that is gone, what the log names is left.
        to = endpoint or Endpoint(endpoint_id=batch.endpoint_id, customer_id=batch.customer_id, url="")
        delivery = BatchDelivery(to, "", b"", b"", b"", events, through, batch.reason)
        try:
            delivery = delivery._replace(webhook_id=batch_payload.webhook_id(batch.endpoint_id, events, through))
            if reason is not None:
                self._ended.append(BatchOutcome(Outcome(delivery, OutcomeKind.SKIPPED, reason=reason)))
                return
            postponed = self._hand_over.reason(to)
            if postponed is not None:
                self._ended.append(BatchOutcome(self._hand_over.unattempted(delivery, postponed)))
                return
            delivery = batch_payload.with_content(delivery)
        except Exception:
            # A surprise in one batch must hurt that batch alone. Raised, it would fail everybody's micro-batch for ever.
            log.exception("a batch failed in an unforeseen way", extra={"endpoint_id": batch.endpoint_id})
            self._ended.append(BatchOutcome(Outcome(delivery, OutcomeKind.DEAD_LETTERED, reason=intake.UNFORESEEN)))
            return
        self._begun += 1
        self._unsettled_bytes += len(delivery.signed)
        self._dispatcher.submit(delivery)

    def _settle(self) -> None:
        for outcome in self._dispatcher.ended():
            self._begun -= 1
            self._unsettled_bytes -= len(outcome.delivery.signed)
            self._ended.append(batch_payload.settled(outcome))

    def _told(self) -> list[BatchOutcome]:
        told, self._ended = self._ended, []
        return told
