"""Turn results into Kafka records for the attempts, dead-letter, retries and rejected topics.

Runs in the executors. A TopicRow is one such record. docs/delivery-contract.md describes the dead letter for customers. No row
has a secret of the platform's own. Request headers are left out. A URL is cut to its origin, because paths and queries carry
tokens.
"""

from __future__ import annotations

import base64
import collections
import itertools
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from delivery.model import Outcome, OutcomeKind
from delivery.registry_model import CustomerId, Endpoint, EndpointId, Revision
from delivery.webhooks.batching import segment
from delivery.webhooks.results import (
    dead_letter_records,
    dead_letter_rows,
    log_records,
    log_rows,
    rejected_records,
)
from delivery.webhooks.results.rejected_records import RejectedRecord
from delivery.webhooks.results.task_results import Results
from delivery.webhooks.retries import retry_messages, retry_records, window
from delivery.webhooks.routing.intake import Rejection
from delivery.webhooks.scheduling import background_attempts
from delivery.webhooks.sending.batch_payload import BatchOutcome
from delivery.webhooks.state import chunking

MAX_REJECTED_BYTES = 64 * 1024
"""Most bytes of a rejected record's headers, and most bytes of its value. A larger record is cut, because its source topic has
it whole. A record without another copy is not cut."""

MAX_DETAIL_CHARS = 1000
"""Most characters of a rejected record's detail. A longer detail is cut, because a record that Kafka refuses would stop the
lane."""

MAX_ROW_BYTES = 256 * 1024
"""Most bytes of log entries in one record; a larger entry has a record of its own. Far below Kafka's 1 MiB, and enough to share
the fixed costs of a record."""

MAX_ENTRY_BYTES = 900_000
"""Most bytes of a batch's log entry, which names the subscription and the place of each event. A larger entry is divided. By
default a topic of Kafka takes records of 1 MiB. A record that Kafka refuses would stop the lane, and the batch would be sent
again and again."""

MAX_POSTPONED_BYTES = 64 * 1024
"""Most bytes of retry entries in one record. A larger entry has a record of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """Names of the topics for results."""

    attempts: str
    dead_letters: str
    rejected: str
    retries: str


class TopicRow(NamedTuple):
    """A record to write to Kafka. The process that made the record writes it."""

    topic: str
    key: bytes
    value: bytes | None
    """None: padding of the retries topic (`retries.retry_records`)."""


def rows(results: Results, topics: Topics, *, now_ms: int) -> Iterator[TopicRow]:
    """Yield the Kafka records of `results` for the attempts, dead-letter and rejected topics.

    The caller writes these Kafka records before Spark commits the offsets of the records that were read. Entries of the
    attempts topic share a record, up to MAX_ROW_BYTES, if they have the same endpoint, customer and delivery mode. `now_ms` is
    the driver's time, in ms since the epoch: the time of the dead letters.
    """
    for (endpoint_id, customer_id, mode), entries in _log(results).items():
        for chunk in chunking.chunks(entries, len, MAX_ROW_BYTES):
            record = log_records.encode_log(endpoint_id, customer_id, mode, chunk)
            yield TopicRow(topics.attempts, endpoint_id.encode(), record)
    for outcome in results.outcomes:
        if outcome.kind is OutcomeKind.DEAD_LETTERED:
            key = outcome.delivery.endpoint.endpoint_id.encode()
            letter = dead_letter_rows.dead_letter(outcome, now_ms=now_ms)
            yield TopicRow(topics.dead_letters, key, dead_letter_records.bounded(letter))
    for batch in results.batches:
        key = batch.outcome.delivery.endpoint.endpoint_id.encode()
        for letter in dead_letter_rows.dead_letters_of_batch(batch, now_ms=now_ms):
            yield TopicRow(topics.dead_letters, key, dead_letter_records.bounded(letter))
    for rejection in results.rejections:
        rejected = rejected_records.encode(_rejected(rejection))
        yield TopicRow(topics.rejected, rejection.record.topic.encode(), rejected)
    for receipt in results.receipts:
        key = f"{receipt.topic}:{receipt.partition}".encode()
        yield TopicRow(topics.attempts, key, log_records.encode(log_rows.offset_receipt(receipt)))


def report_rows(reports: Iterable[retry_messages.Report], topics: Topics) -> Iterator[TopicRow]:
    """Yield Kafka records with the reports of ended leases, for the retries topic, where the shards read the reports."""
    for report in reports:
        yield from _retry_rows(report.endpoint_id, retry_messages.encoded(report), topics)


def deferral_rows(
    results: Results, topics: Topics, *, now_ms: int, revision: Revision = retry_messages.NO_REVISION
) -> Iterator[TopicRow]:
    """Yield the Kafka records of the retries topic with the retry entries of postponed deliveries and batches.

    Only for results of the direct, batch and real-time lane: the retry lane puts entries back by `report_rows`. The caller
    writes these records together with the records of `rows`. Entries of one endpoint share a record, up to
    MAX_POSTPONED_BYTES, in the order in which they were postponed. `revision` is the newest revision of the registry that may
    have made the deliveries due. NO_REVISION: unknown.
    """
    entries = collections.defaultdict[_EndpointKey, list[retry_messages.RetryEntry]](list)
    for outcome in results.outcomes:
        if outcome.kind is OutcomeKind.POSTPONED:
            entry = retry_messages.delivery_entry(outcome, now_ms=now_ms, revision=revision)
            entries[_key_of(outcome.delivery.endpoint)].append(entry)
    for batch, _ in results.batches:
        if batch.kind is OutcomeKind.POSTPONED:
            packed = list(map(segment.packed, batch.delivery.events))
            entry = retry_messages.batch_entry(batch, packed, now_ms=now_ms, revision=revision)
            entries[_key_of(batch.delivery.endpoint)].append(entry)
    for (endpoint_id, customer_id), of_endpoint in entries.items():
        for chunk in chunking.chunks(of_endpoint, lambda entry: entry.written_bytes, MAX_POSTPONED_BYTES):
            written = retry_messages.encoded(retry_messages.Postponed.deferral(endpoint_id, customer_id, chunk))
            yield from _retry_rows(endpoint_id, written, topics)


def completion_rows(ended: Collection[background_attempts.BackgroundResult], topics: Topics) -> Iterator[TopicRow]:
    """Yield the Kafka records that report completed background attempts to the shards of the retry lane.

    Each record also says whether the endpoint accepted at least one of these attempts. The caller must write the results of the
    attempts to Kafka before it writes these records: a shard forgets the retry entry of a completed attempt.
    """
    names = collections.defaultdict[_EndpointKey, list[bytes]](list)
    accepting = {_key_of(outcome.delivery.endpoint) for _, outcome in ended if outcome.kind is OutcomeKind.DELIVERED}
    for name, outcome in ended:
        names[_key_of(outcome.delivery.endpoint)].append(name)
    for (endpoint_id, customer_id), of_endpoint in names.items():
        completion = retry_messages.Postponed.completion(
            endpoint_id, customer_id, of_endpoint, accepted=(endpoint_id, customer_id) in accepting
        )
        yield from _retry_rows(endpoint_id, retry_messages.encoded(completion), topics)


def health_hint_rows(results: Results, topics: Topics, *, now_ms: int) -> Iterator[TopicRow]:
    """Yield the Kafka records that tell the retry lane which endpoints accepted a request, and which did not.

    For results of the direct, batch and real-time lane. The caller writes these records after those of `deferral_rows`. Two
    kinds of endpoints get a record:
    1. Endpoints in `results.accepting`: the record says that the endpoint accepted a request.
    2. Other endpoints with a delivery that was given up for a reason in `window.NOT_ACCEPTED`: the record says that the
       endpoint did not accept a request. This delivery leaves no retry entry, from which the retry lane would learn of the
       failure.
    """
    accepts: dict[_EndpointKey, bool] = {}
    for outcome in itertools.chain[Outcome[Any]](results.outcomes, (batch.outcome for batch in results.batches)):
        if outcome.kind is OutcomeKind.DEAD_LETTERED and outcome.reason in window.NOT_ACCEPTED:
            accepts[_key_of(outcome.delivery.endpoint)] = False
    accepts |= {_key_of(to): True for to in results.accepting}
    for (endpoint_id, customer_id), is_accepting in accepts.items():
        hint = retry_messages.Postponed.health_hint(endpoint_id, customer_id, accepts=is_accepting, at_ms=now_ms)
        yield from _retry_rows(endpoint_id, retry_messages.encoded(hint), topics)


def _retry_rows(endpoint_id: EndpointId, written: bytes, topics: Topics) -> Iterator[TopicRow]:
    for record in retry_records.records(endpoint_id.encode(), written):
        yield TopicRow(topics.retries, record.key, record.value)


_EndpointKey = tuple[EndpointId, CustomerId]
"""An endpoint: its id, and its customer. After a deletion another customer may register the id, and one task may have results
of both endpoints."""


def _key_of(endpoint: Endpoint) -> _EndpointKey:
    return endpoint.endpoint_id, endpoint.customer_id


_Log = collections.defaultdict[tuple[EndpointId, CustomerId, str], list[bytes]]
"""Endpoint id, customer and delivery mode → encoded log entries. A later endpoint with the same id may have another mode."""


def _log(results: Results) -> _Log:
    """Return the encoded log entries: one for each attempt in `Outcome.attempts`, or several for an attempt of a huge batch.

    A delivery or batch without an attempt in `Outcome.attempts` has one entry, with the reason of its outcome.
    """
    log: _Log = collections.defaultdict(list)
    for outcome in results.outcomes:
        entries = _entries_of(outcome.delivery.endpoint, log)
        entries.extend(map(log_records.encode_entry, log_rows.entries_of(outcome)))
    for batch in results.batches:
        entries = _entries_of(batch.outcome.delivery.endpoint, log)
        entries.extend(_encoded_entries(batch))
    return log


def _encoded_entries(batch: BatchOutcome) -> Iterator[bytes]:
    """Yield the encoded log entries of a batch.

    If an entry would exceed MAX_ENTRY_BYTES, divide the batch's events, and yield separate entries for each half.
    """
    encoded = list(map(log_records.encode_entry, log_rows.entries_of_batch(batch)))
    if len(batch.outcome.delivery.events) > 1 and max(map(len, encoded)) > MAX_ENTRY_BYTES:
        for half in log_rows.halves(batch):
            yield from _encoded_entries(half)
    else:
        yield from encoded


def _entries_of(endpoint: Endpoint, log: _Log) -> list[bytes]:
    return log[endpoint.endpoint_id, endpoint.customer_id, endpoint.mode.value]


def _rejected(rejection: Rejection) -> RejectedRecord:
    record, max_bytes = rejection.record, None if rejection.is_only_copy else MAX_REJECTED_BYTES
    value = record.value
    return RejectedRecord(
        reason=rejection.reason,
        detail=rejection.detail[:MAX_DETAIL_CHARS],
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        appended_at_ms=record.appended_at_ms,
        headers=dead_letter_rows.headers_of(record, max_bytes),
        value_bytes=None if value is None else len(value),
        value_base64=None if value is None else base64.b64encode(value[:max_bytes]).decode(),
    )
