"""Make the records of the dead-letter topic from results. Pure."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import yarl
from msgspec import UNSET, UnsetType

from delivery.model import KEPT_RESPONSE_BYTES, Attempt, Delivery, Event, Outcome, OutcomeKind, Record
from delivery.registry_model import Endpoint, SubscriptionId
from delivery.webhooks.events import parsing
from delivery.webhooks.policy import response_headers
from delivery.webhooks.results.dead_letter_records import DeadLetter, Header, LetterAttempt
from delivery.webhooks.sending import payload
from delivery.webhooks.sending.batch_payload import REJECTED, BatchOutcome


def dead_letter(outcome: Outcome[Delivery], *, now_ms: int) -> DeadLetter:
    """Return the dead letter of a delivery that was given up. `now_ms` is the driver's time, in ms since the epoch."""
    delivery, attempts = outcome.delivery, (*outcome.earlier, *outcome.attempts)
    subscription_id = delivery.subscription.subscription_id
    return _letter(
        outcome,
        delivery.event,
        subscription_id,
        webhook_id=delivery.webhook_id,
        reason=outcome.reason,
        attempts=attempts,
        now_ms=now_ms,
    )


def dead_letters_of_batch(batch: BatchOutcome, *, now_ms: int) -> Iterator[DeadLetter]:
    """Yield the dead letters of a batch.

    1. The batch was given up: one for each event.
    2. The batch was accepted: one for each event that the response rejected.
    3. The batch was skipped or postponed: none.

    A dead letter has the `webhook-id` that its event has when it is sent alone. `now_ms` is the driver's time, in ms since the
    epoch.
    """
    outcome, delivery = batch.outcome, batch.outcome.delivery
    if outcome.kind in {OutcomeKind.SKIPPED, OutcomeKind.POSTPONED}:
        return
    for place in sorted(batch.rejected) if outcome.kind is OutcomeKind.DELIVERED else range(len(delivery.events)):
        event, subscription_id = delivery.events[place].event(), delivery.subscription_ids[place]
        reason, attempts = outcome.reason, (*outcome.earlier, *outcome.attempts)
        if place in batch.rejected:
            last = attempts[-1]._replace(error_class=REJECTED, detail=batch.rejected[place], response=b"")
            reason, attempts = REJECTED, (*attempts[:-1], last)
        yield _letter(
            outcome,
            event,
            subscription_id,
            webhook_id=payload.webhook_id(event, subscription_id),
            reason=reason,
            attempts=attempts,
            now_ms=now_ms,
            batch_webhook_id=delivery.webhook_id,
        )


def _letter(
    outcome: Outcome[Any],
    event: Event,
    subscription_id: SubscriptionId,
    *,
    webhook_id: str,
    reason: str | None,
    attempts: tuple[Attempt, ...],
    now_ms: int,
    batch_webhook_id: str | UnsetType = UNSET,
) -> DeadLetter:
    endpoint: Endpoint = outcome.delivery.endpoint
    record = event.record
    return DeadLetter(
        webhook_id=webhook_id,
        event_id=event.event_id,
        event_type=event.event_type,
        tenant_id=event.tenant_id,
        subscription_id=subscription_id,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        appended_at_ms=record.appended_at_ms,
        replay=UNSET if outcome.replay is None else outcome.replay,
        endpoint_id=endpoint.endpoint_id,
        customer_id=endpoint.customer_id,
        reason=reason,
        dead_lettered_at_ms=now_ms,
        url_origin=_url_origin(endpoint.url),
        source=event.source,
        sub_tenant_id=event.sub_tenant_id,
        time=event.time,
        headers=headers_of(record),
        payload_base64=base64.b64encode(event.data).decode(),
        attempts_omitted=attempts[0].number - 1 if attempts else 0,
        attempts=list(map(_letter_attempt, attempts)),
        attributes=dict(event.attributes) if event.attributes else UNSET,
        batch_webhook_id=batch_webhook_id,
        payload_form=UNSET if event.opaque is None else event.opaque.form,
        datacontenttype=(event.json_type if event.opaque is None else event.opaque.media_type) or UNSET,
        payload_digest=event.payload_digest or UNSET,
    )


def _url_origin(url: str) -> str:
    """Return the scheme, host and port of a URL. Return an empty text if `url` is empty, or if yarl cannot read it.

    1. `url` is empty if the worker's registry has no endpoint with this id, customer and delivery mode.
    2. Plain SQL may register a URL that yarl cannot read. The endpoint is then quarantined, so its retry entries wait until
       they expire.
    """
    try:
        return str(yarl.URL(url).origin())
    except (ValueError, IndexError):  # yarl raises IndexError for some brackets in front of `@`
        return ""


def _letter_attempt(attempt: Attempt) -> LetterAttempt:
    return LetterAttempt(
        attempt=attempt.number,
        started_at_ms=attempt.started_at_ms,
        duration_ms=round(attempt.duration_ms, 1),
        status=attempt.status,
        error_class=attempt.error_class,
        detail=attempt.detail,
        retry_after_s=attempt.retry_after_s,
        response=attempt.response[:KEPT_RESPONSE_BYTES].decode(errors="replace"),
        response_headers=response_headers.of(attempt) or UNSET,
    )


def headers_of(record: Record, max_bytes: int | None = None) -> list[Header]:
    """Return the first headers of a record that fit into `max_bytes`, with values in base64.

    If `max_bytes` is None, return all headers.
    """
    kept, size = [], 0
    for name, value in record.headers:
        size += parsing.header_bytes(name, value)
        if max_bytes is not None and size > max_bytes:
            break
        kept.append(Header(name=name, value_base64=base64.b64encode(value).decode()))
    return kept
