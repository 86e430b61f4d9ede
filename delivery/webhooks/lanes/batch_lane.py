"""Deliver batches that have left their shards, by the current registry.

A shard is one key of the lane's state in Spark, with the waiting events of some endpoints. URL, secrets, authentication,
headers, content mode and compression come from the current registry, however long the events have waited. The current registry
also decides if the endpoint, its subscriptions and the events' tenants still exist, and if endpoint and subscriptions are
active.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from delivery.model import Outcome, OutcomeKind, SkipReason
from delivery.registry_model import DeliveryMode, Endpoint
from delivery.webhooks.batching import segment
from delivery.webhooks.dispatching import dispatch
from delivery.webhooks.results import completed_work
from delivery.webhooks.results.task_results import Results, final_results
from delivery.webhooks.routing import intake, registries, revalidation
from delivery.webhooks.scheduling import deferral
from delivery.webhooks.sending import batch_payload
from delivery.webhooks.sending.batch_payload import BatchDelivery, BatchOutcome

log = logging.getLogger(__name__)

MAX_UNSETTLED_BYTES = 64 * 1024 * 1024
"""Most bytes of bodies in one task that wait for a slot or a response. Beyond this bound, no further batch is begun."""
BYTES_BETWEEN_IO = 128 * 1024
"""Bytes of batches after which the lane yields to the event loop. Building the bodies of these batches takes about a
millisecond, in which responses wait to be read. Yielding after each batch of ten events took a fifth more CPU, because the loop
polls the kernel each time."""
REQUEST_COUNTS_BYTES = 4 * 1024
"""Bytes that each batch adds to the count for BYTES_BETWEEN_IO, besides the bytes of its events. So the lane yields to the
event loop also between many small batches."""


class BatchLane:
    """Deliver the batches of one Spark partition of a micro-batch, as they are read. Used once.

    Each event of a batch is skipped, delivered, dead-lettered or deferred to the retry lane. `submit`, `drain` and `finish`
    return each result once. Events in `ended` were completed by an earlier run of the micro-batch, and are left out.
    """

    def __init__(
        self,
        registry: registries.Registry,
        dispatcher: dispatch.Dispatcher[BatchDelivery],
        deferrals: deferral.Deferrals,
        ended: completed_work.CompletedKeys = frozenset(),
        *,
        max_unsettled_bytes: int = MAX_UNSETTLED_BYTES,
    ) -> None:
        self._registry = registry
        self._dispatcher = dispatcher
        self._deferrals = deferrals
        self._ended_before = ended
        self._max_unsettled_bytes = max_unsettled_bytes
        self._ended: list[BatchOutcome] = []
        self._begun = 0
        self._unsettled_bytes = 0

    async def submit(self, written: Iterable[bytes]) -> Results:
        """Begin to deliver batches, in the encoding of `segment.encoded_batch`; return the results since the last call.

        Wait while the request bodies of batches without a result have more than `max_unsettled_bytes` together, and while the
        dispatcher has no room (`Dispatcher.wait_for_room`).
        """
        since_io = 0
        for encoded in written:
            batch = segment.decoded_batch(encoded)
            endpoint, parts = await self._parts(batch)
            for reason, places in parts.items():
                self._begin(batch, endpoint, reason, places)
            since_io += len(encoded) + REQUEST_COUNTS_BYTES
            if since_io > BYTES_BETWEEN_IO:
                since_io = 0
                await self._dispatcher.wait_for_room()
                self._collect_outcomes()
            while self._unsettled_bytes > self._max_unsettled_bytes:
                await self._dispatcher.wait_for_unsettled(self._begun - 1)
                self._collect_outcomes()
        return self.drain()

    def drain(self) -> Results:
        """Return the outcomes since the last call of `submit`, `drain` or `finish`."""
        self._collect_outcomes()
        return Results(batches=self._drained())

    async def finish(self) -> Results:
        """Wait until each batch has its outcome; return the remaining results and the task's totals."""
        await self._dispatcher.finish()
        self._collect_outcomes()
        return final_results(self._dispatcher, batches=self._drained())

    def abandon(self) -> None:
        """Send nothing more, and cancel the attempts that the task awaits. Called at the end of each task."""
        self._dispatcher.abandon()

    async def _parts(self, batch: segment.Batch) -> tuple[Endpoint | None, dict[SkipReason | None, Sequence[int]]]:
        """Return the batch's endpoint, and the indexes of the batch's events by the reason to skip the events.

        The endpoint is None if the registry lacks it. The indexes under the key None are the events to send. If any event would
        be skipped, the registry's rows are first read again without the cache. A cached row may lack a newer change, such as
        the subscription by which the event is due.
        """
        tenants = revalidation.tenant_ids(batch.packed)
        for read_again in (False, True):
            found = await self._registry.destination(batch.endpoint_id, tenants, read_again=read_again)
            parts = revalidation.split_by_eligibility(batch, batch.endpoint_id, batch.customer_id, DeliveryMode.BATCH, found)
            if parts.keys() == {None}:
                break
        return found.endpoint, parts

    def _begin(self, batch: segment.Batch, endpoint: Endpoint | None, reason: SkipReason | None, places: Sequence[int]) -> None:
        """Send the events at `places` of a batch in one request, or defer them. If there is a `reason`, skip them instead.

        Events that an earlier run has completed are left out. An unreadable event raises msgspec.MsgspecError or
        UnicodeDecodeError. An unforeseen error while the request is built makes the events dead letters.
        """
        # Unreadable events cannot have a dead letter. The error fails the task, and the events stay in the lane's state.
        events = [segment.unpacked(batch.packed[place]) for place in places]
        subscription_ids = revalidation.subscription_ids(batch, places)
        if self._ended_before:
            due = [
                (event, subscription_id)
                for event, subscription_id in zip(events, subscription_ids, strict=True)
                if completed_work.key_of_packed(event, subscription_id) not in self._ended_before
            ]
            if not due:
                return
            events, subscription_ids = [event for event, _ in due], [subscription_id for _, subscription_id in due]
        to = revalidation.own_endpoint(endpoint, batch.endpoint_id, batch.customer_id, DeliveryMode.BATCH)
        delivery = BatchDelivery(to, "", b"", b"", b"", events, subscription_ids, batch.reason)
        try:
            delivery = delivery._replace(webhook_id=batch_payload.webhook_id(batch.endpoint_id, events, subscription_ids))
            if reason is not None:
                self._ended.append(BatchOutcome(Outcome(delivery, OutcomeKind.SKIPPED, reason=reason)))
                return
            postponed = self._deferrals.reason_for(to)
            if postponed is not None:
                self._ended.append(BatchOutcome(self._deferrals.deferred_now(delivery, postponed)))
                return
            delivery = batch_payload.with_content(delivery)
        except Exception:
            # An unforeseen error in one batch must not affect other batches. If raised, it would fail every micro-batch for
            # ever.
            log.exception(
                "an unforeseen error in one batch of endpoint %s: its events become dead letters with the reason %s. Send this "
                "traceback to the maintainers of the platform. When the cause is mended, redrive the dead letters: `fanout "
                "dead-letters redrive --endpoint %s --reason %s`",
                batch.endpoint_id,
                intake.UNFORESEEN,
                batch.endpoint_id,
                intake.UNFORESEEN,
                extra={"endpoint_id": batch.endpoint_id},
            )
            self._ended.append(BatchOutcome(Outcome(delivery, OutcomeKind.DEAD_LETTERED, reason=intake.UNFORESEEN)))
            return
        self._begun += 1
        self._unsettled_bytes += len(delivery.signed)
        self._dispatcher.submit(delivery)

    def _collect_outcomes(self) -> None:
        for outcome in self._dispatcher.drain():
            self._begun -= 1
            self._unsettled_bytes -= len(outcome.delivery.signed)
            self._ended.append(batch_payload.batch_outcome(outcome))

    def _drained(self) -> list[BatchOutcome]:
        drained, self._ended = self._ended, []
        return drained
