"""Make the records of the attempts topic from results. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import UNSET

from delivery.model import Delivery, Outcome, OutcomeKind
from delivery.webhooks.policy import response_headers
from delivery.webhooks.results import log_entries
from delivery.webhooks.results.log_entries import AttemptEntry, BatchAttemptEntry, Entry, Offsets
from delivery.webhooks.results.log_records import OffsetReceipt
from delivery.webhooks.routing.intake import Receipt
from delivery.webhooks.sending.batch_payload import BatchDelivery, BatchOutcome

_UNATTEMPTED: Mapping[OutcomeKind, Callable[..., Entry]] = {
    OutcomeKind.SKIPPED: log_entries.SkippedEntry,
    OutcomeKind.POSTPONED: log_entries.PostponedEntry,
    OutcomeKind.DEAD_LETTERED: log_entries.DeadLetteredEntry,
}
_UNATTEMPTED_BATCH: Mapping[OutcomeKind, Callable[..., Entry]] = {
    OutcomeKind.SKIPPED: log_entries.BatchSkippedEntry,
    OutcomeKind.POSTPONED: log_entries.BatchPostponedEntry,
    OutcomeKind.DEAD_LETTERED: log_entries.BatchDeadLetteredEntry,
}


def entries_of(outcome: Outcome[Delivery]) -> Iterator[Entry]:
    """Yield the entries of the attempts topic for a delivery: one for each of `outcome.attempts`.

    If there are none, yield one entry with `outcome.reason`. Attempts in `outcome.earlier` have their entries already.
    """
    delivery = outcome.delivery
    event, record = delivery.event, delivery.event.record
    replay = UNSET if outcome.replay is None else outcome.replay
    if not outcome.attempts:
        yield _UNATTEMPTED[outcome.kind](
            webhook_id=delivery.webhook_id,
            event_id=event.event_id,
            event_type=event.event_type,
            tenant_id=event.tenant_id,
            subscription_id=delivery.subscription.subscription_id,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            appended_at_ms=record.appended_at_ms,
            replay=replay,
            reason=outcome.reason,
        )
    for attempt in outcome.attempts:
        has_response = isinstance(attempt, response_headers.AttemptWithResponse)
        yield AttemptEntry(
            webhook_id=delivery.webhook_id,
            event_id=event.event_id,
            event_type=event.event_type,
            tenant_id=event.tenant_id,
            subscription_id=delivery.subscription.subscription_id,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            appended_at_ms=record.appended_at_ms,
            replay=replay,
            attempt=attempt.number,
            started_at_ms=attempt.started_at_ms,
            duration_ms=round(attempt.duration_ms, 1),
            status=attempt.status,
            error_class=attempt.error_class,
            detail=attempt.detail,
            retry_after_s=attempt.retry_after_s,
            response_headers=(response_headers.of(attempt) or UNSET) if has_response else UNSET,
            response=(response_headers.body_of(attempt) or UNSET) if has_response else UNSET,
        )


def entries_of_batch(batch: BatchOutcome) -> Iterator[Entry]:
    """Yield the entries of the attempts topic for a batch: one for each of `batch.outcome.attempts`.

    If there are none, yield one entry with `reason` of the outcome. Attempts in `earlier` have their entries already.
    """
    outcome, delivery = batch.outcome, batch.outcome.delivery
    offsets, rejected = _offsets(delivery, range(len(delivery.events))), _offsets(delivery, sorted(batch.rejected))
    oldest_ms = min(event.appended_at_ms for event in delivery.events)
    replay = UNSET if outcome.replay is None else outcome.replay
    if not outcome.attempts:
        yield _UNATTEMPTED_BATCH[outcome.kind](
            webhook_id=delivery.webhook_id,
            left_by=delivery.left_by.value,
            count=len(delivery.events),
            oldest_appended_at_ms=oldest_ms,
            offsets=offsets,
            rejected=rejected,
            replay=replay,
            reason=outcome.reason,
        )
    for attempt in outcome.attempts:
        has_response = isinstance(attempt, response_headers.AttemptWithResponse)
        yield BatchAttemptEntry(
            webhook_id=delivery.webhook_id,
            left_by=delivery.left_by.value,
            count=len(delivery.events),
            oldest_appended_at_ms=oldest_ms,
            offsets=offsets,
            rejected=rejected,
            replay=replay,
            attempt=attempt.number,
            started_at_ms=attempt.started_at_ms,
            duration_ms=round(attempt.duration_ms, 1),
            status=attempt.status,
            error_class=attempt.error_class,
            detail=attempt.detail,
            retry_after_s=attempt.retry_after_s,
            response_headers=(response_headers.of(attempt) or UNSET) if has_response else UNSET,
            response=(response_headers.body_of(attempt) or UNSET) if has_response else UNSET,
        )


def halves(batch: BatchOutcome) -> Iterator[BatchOutcome]:
    """Yield the outcome of a batch for the first half of its events, and for the second. Both have the batch's `webhook-id`."""
    delivery, count = batch.outcome.delivery, len(batch.outcome.delivery.events)
    for part in (slice(0, count // 2), slice(count // 2, count)):
        of_part = delivery._replace(events=delivery.events[part], subscription_ids=delivery.subscription_ids[part])
        rejected = {place - part.start: why for place, why in batch.rejected.items() if part.start <= place < part.stop}
        yield BatchOutcome(batch.outcome._replace(delivery=of_part), rejected)


def offset_receipt(receipt: Receipt) -> OffsetReceipt:
    """Return an offset receipt (a run of offsets that a lane has handled) as a record of the attempts topic."""
    return OffsetReceipt(
        lane=receipt.lane.value,
        topic=receipt.topic,
        partition=receipt.partition,
        revision=receipt.revision,
        first_offset=receipt.first_offset,
        last_offset=receipt.last_offset,
        records=receipt.records,
        rejected=receipt.rejected,
        due=receipt.due,
        unconfirmed=UNSET if receipt.is_confirmed else True,
    )


def _offsets(delivery: BatchDelivery, places: Iterable[int]) -> Offsets:
    """Return the offsets of events by subscription, topic and partition. `places` are indexes of events in the batch."""
    offsets: Offsets = {}
    for place in places:
        event = delivery.events[place]
        by_partition = offsets.setdefault(delivery.subscription_ids[place], {}).setdefault(event.topic, {})
        by_partition.setdefault(str(event.partition), []).append(event.offset)
    return offsets
