"""Write results as rows for Kafka: the attempts topic, the dead-letter topic, the retry lane's, the operator's rejected topic.

Runs in the executors. Must not import pyspark or psycopg. docs/delivery-contract.md describes the dead letter for customers.
No row holds a secret: request headers are left out, and a URL is cut to its origin, since paths and queries carry tokens.
"""

from __future__ import annotations

import base64
import itertools
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import orjson
import yarl

from delivery.model import (
    KEPT_RESPONSE_BYTES,
    Attempt,
    CustomerId,
    Delivery,
    Endpoint,
    EndpointId,
    Event,
    Outcome,
    OutcomeKind,
    Record,
    Revision,
    SubscriptionId,
)
from delivery.webhooks import batch_message, chunks, envelope, late, message, parcel, segment, window
from delivery.webhooks.intake import Receipt, Rejection
from delivery.webhooks.results import Results

MAX_REJECTED_BYTES = 64 * 1024
"""How much of a rejected record is kept; a larger one is cut, and found whole at its offset."""

MAX_ROW_BYTES = 256 * 1024
"""How much of the log shares a row: far below Kafka's 1 MiB, and more than enough to share the costs of one."""

MAX_POSTPONED_BYTES = 64 * 1024
"""How many parcels share a row; one that is larger has a row alone."""

COUNTED_BYTES = 4 * 1024
"""A record of the retries topic counts as one for each so many bytes: see `for_retries`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """Where the results go."""

    attempts: str
    dead_letters: str
    rejected: str
    retries: str


class Row(NamedTuple):
    """One record for Kafka."""

    topic: str
    key: bytes
    value: bytes | None
    """None: it only counts; see `for_retries`."""


def rows(results: Results, topics: Topics) -> Iterator[Row]:
    """Yield every row that records `results`. Written in one commit with the offsets that they came from.

    The log's entries of one endpoint share rows: a row costs the JVM about 15 µs, whatever is in it (docs/benchmarks/).
    """
    for endpoint_id, (endpoint, entries) in _log(results).items():
        # The mode says whose account they are on: of which lane's receipts.
        whose = {"endpoint_id": endpoint_id, "customer_id": endpoint.customer_id, "mode": endpoint.mode}
        head = orjson.dumps({"kind": "outcomes", **whose})[:-1]
        for chunk in chunks.of(entries, len, MAX_ROW_BYTES):
            yield Row(topics.attempts, endpoint_id.encode(), b'%s,"entries":[%s]}' % (head, b",".join(chunk)))
    for outcome in results.outcomes:
        if outcome.kind is OutcomeKind.DEAD_LETTERED:
            key = outcome.delivery.endpoint.endpoint_id.encode()
            yield Row(topics.dead_letters, key, orjson.dumps(_dead_letter(outcome)))
    for batch in results.batches:
        key = batch.outcome.delivery.endpoint.endpoint_id.encode()
        for letter in _dead_letters(batch):
            yield Row(topics.dead_letters, key, orjson.dumps(letter))
    for rejection in results.rejections:
        yield Row(topics.rejected, rejection.record.topic.encode(), orjson.dumps(_rejected(rejection)))
    for receipt in results.receipts:
        yield Row(topics.attempts, f"{receipt.topic}:{receipt.partition}".encode(), orjson.dumps(_receipt_entry(receipt)))


def reports(told: Iterable[parcel.Report], topics: Topics) -> Iterator[Row]:
    """Yield a row for each turn that has ended, for the shard that let it leave."""
    for report in told:
        yield from for_retries(topics.retries, report.endpoint_id.encode(), parcel.encoded(report))


def postponed(results: Results, topics: Topics, *, now_ms: int, revision: Revision = parcel.NO_REVISION) -> Iterator[Row]:
    """Yield what a fast lane hands over to the retry lane, which itself tells by reports of what waits again.

    Written in the same commit as `rows`. Parcels of one endpoint share rows, in the order in which they were postponed.
    `revision`: no later one of the registry has a part in it.
    """
    parcels: dict[EndpointId, tuple[CustomerId, list[parcel.Parcel]]] = {}
    for outcome in results.outcomes:
        if outcome.kind is OutcomeKind.POSTPONED:
            to, made = outcome.delivery.endpoint, parcel.of(outcome, now_ms=now_ms, revision=revision)
            parcels.setdefault(to.endpoint_id, (to.customer_id, []))[1].append(made)
    for batch, _ in results.batches:
        if batch.kind is OutcomeKind.POSTPONED:
            to, packed = batch.delivery.endpoint, list(map(segment.packed, batch.delivery.events))
            made = parcel.of_batch(batch, packed, now_ms=now_ms, revision=revision)
            parcels.setdefault(to.endpoint_id, (to.customer_id, []))[1].append(made)
    for endpoint_id, (customer_id, of_endpoint) in parcels.items():
        for chunk in chunks.of(of_endpoint, lambda one: one.written_bytes, MAX_POSTPONED_BYTES):
            written = parcel.encoded(parcel.Postponed(endpoint_id, customer_id, chunk))
            yield from for_retries(topics.retries, endpoint_id.encode(), written)


def settled(ended: Collection[late.Ended], topics: Topics) -> Iterator[Row]:
    """Yield what tells the shards that these attempts have ended. Written when all that came of them is in its topics."""
    names: dict[EndpointId, tuple[CustomerId, list[bytes]]] = {}
    accepting = {one.delivery.endpoint.endpoint_id for _, one in ended if one.kind is OutcomeKind.DELIVERED}
    for name, outcome in ended:
        to = outcome.delivery.endpoint
        names.setdefault(to.endpoint_id, (to.customer_id, []))[1].append(name)
    for endpoint_id, (customer_id, of_endpoint) in names.items():
        accepts = True if endpoint_id in accepting else None
        written = parcel.encoded(parcel.Postponed(endpoint_id, customer_id, [], of_endpoint, accepts))
        yield from for_retries(topics.retries, endpoint_id.encode(), written)


def health(results: Results, topics: Topics, *, now_ms: int) -> Iterator[Row]:
    """Yield what else a fast lane tells the retry lane: who accepts something, as far as that is news, and who does not.

    Of what an endpoint has not accepted and has no schedule for, no parcel tells. Written behind what is handed over.
    """
    accepts: dict[EndpointId, tuple[CustomerId, bool]] = {}
    for outcome in itertools.chain[Outcome[Any]](results.outcomes, (batch.outcome for batch in results.batches)):
        if outcome.kind is OutcomeKind.DEAD_LETTERED and outcome.reason in window.COUNTED:
            to = outcome.delivery.endpoint
            accepts[to.endpoint_id] = (to.customer_id, False)
    accepts |= {to.endpoint_id: (to.customer_id, True) for to in results.accepting}
    for endpoint_id, (customer_id, does) in accepts.items():
        written = parcel.encoded(parcel.Postponed(endpoint_id, customer_id, [], accepts=does, at_ms=now_ms))
        yield from for_retries(topics.retries, endpoint_id.encode(), written)


def for_retries(topic: str, key: bytes, written: bytes) -> Iterator[Row]:
    """Yield a record of the retries topic, and behind it an empty one for each COUNTED_BYTES of it.

    Spark bounds a micro-batch in records, of which one may be a report of 100 bytes and another a batch of 10 MiB. So a large
    one counts as many, and as many bytes come in a micro-batch whatever they are of. Who reads the topic leaves out the rest.
    """
    yield Row(topic, key, written)
    yield from itertools.repeat(Row(topic, key, None), len(written) // COUNTED_BYTES)


def _log(results: Results) -> dict[EndpointId, tuple[Endpoint, list[bytes]]]:
    """Return the entries of each endpoint: one an attempt, and one that says why for what was never attempted."""
    log: dict[EndpointId, tuple[Endpoint, list[bytes]]] = {}
    for outcome in results.outcomes:
        entries = _entries_of(outcome.delivery.endpoint, log)
        identity = _identity(outcome.delivery) | _of_replay(outcome)
        if not outcome.attempts:
            entries.append(orjson.dumps({"kind": outcome.kind, **identity, "reason": outcome.reason}))
        for attempt in outcome.attempts:
            entries.append(orjson.dumps({"kind": "attempt", **identity, **_attempt(attempt)}))
    for batch in results.batches:
        entries = _entries_of(batch.outcome.delivery.endpoint, log)
        identity = _batch_identity(batch) | _of_replay(batch.outcome)
        if not batch.outcome.attempts:
            kind = f"batch_{batch.outcome.kind.value}"
            entries.append(orjson.dumps({"kind": kind, **identity, "reason": batch.outcome.reason}))
        for attempt in batch.outcome.attempts:
            entries.append(orjson.dumps({"kind": "batch_attempt", **identity, **_attempt(attempt)}))
    return log


def _entries_of(endpoint: Endpoint, log: dict[EndpointId, tuple[Endpoint, list[bytes]]]) -> list[bytes]:
    found = log.get(endpoint.endpoint_id)
    if found is None:
        found = log[endpoint.endpoint_id] = (endpoint, [])
    return found[1]


def _batch_identity(batch: batch_message.BatchOutcome) -> dict[str, Any]:
    """Return what an entry of the log says of a batch and its events: of each subscription the places in Kafka.

    Those that the answer rejected have the same form: a place in the body says nothing once offsets are grouped.
    A thousand events are a thousand numbers here, because an entry for each would cost more than to send them.
    """
    delivery = batch.outcome.delivery
    return {
        "webhook_id": delivery.webhook_id,
        "left_by": delivery.left_by,
        "count": len(delivery.events),
        "oldest_appended_at_ms": min(event.appended_at_ms for event in delivery.events),
        "offsets": _offsets(delivery, range(len(delivery.events))),
        "rejected": _offsets(delivery, sorted(batch.rejected)),
    }


def _offsets(
    delivery: batch_message.BatchDelivery, places: Iterable[int]
) -> dict[SubscriptionId, dict[str, dict[str, list[int]]]]:
    """Return the offsets of the events at these places in the body, by subscription, topic and partition."""
    offsets: dict[SubscriptionId, dict[str, dict[str, list[int]]]] = {}
    for place in places:
        event = delivery.events[place]
        by_partition = offsets.setdefault(delivery.through[place], {}).setdefault(event.topic, {})
        by_partition.setdefault(str(event.partition), []).append(event.offset)
    return offsets


def _identity(delivery: Delivery) -> dict[str, Any]:
    return _identity_of(delivery.webhook_id, delivery.event, delivery.subscription.subscription_id)


def _identity_of(webhook_id: str, event: Event, subscription_id: SubscriptionId) -> dict[str, Any]:
    record = event.record
    return {
        "webhook_id": webhook_id,
        "event_id": event.event_id,
        "event_type": event.event_type,
        "tenant_id": event.tenant_id,
        "subscription_id": subscription_id,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "appended_at_ms": record.appended_at_ms,
    }


def _of_replay(outcome: Outcome[Any]) -> dict[str, str]:
    """Return the mark of what was asked for again: whoever takes account of what was due leaves it out."""
    return {} if outcome.replay is None else {"replay": outcome.replay}


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "attempt": attempt.number,
        "started_at_ms": attempt.started_at_ms,
        "duration_ms": round(attempt.duration_ms, 1),
        "status": attempt.status,
        "error_class": attempt.error_class,
        "detail": attempt.detail,
        "retry_after_s": attempt.retry_after_s,
    }


def _dead_letter(outcome: Outcome[Delivery]) -> dict[str, Any]:
    delivery = outcome.delivery
    story = (*outcome.earlier, *outcome.attempts)
    identity = _identity(delivery) | _of_replay(outcome)
    return _letter(delivery.event, identity, delivery.endpoint, outcome.reason, story)


def _dead_letters(batch: batch_message.BatchOutcome) -> Iterator[dict[str, Any]]:
    """Yield a dead letter for each event that the endpoint did not take, as if it had been sent alone."""
    outcome, delivery = batch.outcome, batch.outcome.delivery
    if outcome.kind in {OutcomeKind.SKIPPED, OutcomeKind.POSTPONED}:
        return
    for place in sorted(batch.rejected) if outcome.kind is OutcomeKind.DELIVERED else range(len(delivery.events)):
        event, subscription_id = delivery.events[place].event(), delivery.through[place]
        identity = _identity_of(message.webhook_id(event, subscription_id), event, subscription_id) | _of_replay(outcome)
        reason, attempts = outcome.reason, (*outcome.earlier, *outcome.attempts)
        if place in batch.rejected:
            last = attempts[-1]._replace(error_class=batch_message.REJECTED, detail=batch.rejected[place], response=b"")
            reason, attempts = batch_message.REJECTED, (*attempts[:-1], last)
        yield _letter(event, identity, delivery.endpoint, reason, attempts) | {"batch_webhook_id": delivery.webhook_id}


def _letter(
    event: Event, identity: dict[str, Any], endpoint: Endpoint, reason: str | None, attempts: tuple[Attempt, ...]
) -> dict[str, Any]:
    letter = {
        **identity,
        "endpoint_id": endpoint.endpoint_id,
        "customer_id": endpoint.customer_id,
        "reason": reason,
        "dead_lettered_at_ms": int(time.time() * 1000),
        "url_origin": str(yarl.URL(endpoint.url).origin()),
        "source": event.source,
        "sub_tenant_id": event.sub_tenant_id,
        "time": event.time,
        "headers": _headers(event.record),
        "payload_base64": base64.b64encode(event.data).decode(),
        "attempts_omitted": attempts[0].number - 1 if attempts else 0,
        "attempts": [
            _attempt(attempt) | {"response": attempt.response[:KEPT_RESPONSE_BYTES].decode(errors="replace")}
            for attempt in attempts
        ],
    }
    return letter | {"attributes": dict(event.attributes)} if event.attributes else letter


def _rejected(rejection: Rejection) -> dict[str, Any]:
    record, max_bytes = rejection.record, None if rejection.is_only_copy else MAX_REJECTED_BYTES
    value = record.value
    return {
        "reason": rejection.reason,
        "detail": rejection.detail,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "appended_at_ms": record.appended_at_ms,
        "headers": _headers(record, max_bytes),
        "value_bytes": None if value is None else len(value),
        "value_base64": None if value is None else base64.b64encode(value[:max_bytes]).decode(),
    }


def _receipt_entry(receipt: Receipt) -> dict[str, Any]:
    return {"kind": "receipt", **asdict(receipt)}


def _headers(record: Record, max_bytes: int | None = None) -> list[dict[str, str]]:
    """Return the record's headers, as many as fit into `max_bytes`. A value is any bytes, so it is kept in base64."""
    kept, size = [], 0
    for name, value in record.headers:
        size += envelope.header_bytes(name, value)
        if max_bytes is not None and size > max_bytes:
            break
        kept.append({"name": name, "value_base64": base64.b64encode(value).decode()})
    return kept
