"""Collect the events that are due in batches: records in, segments by shard out. The batch lane's part before the shuffle.

A shard is one key of the lane's state in Spark, with the waiting events of some endpoints. A segment is a value with events for
one shard.

One endpoint may have most of the load. If the records of a task fill a whole batch of an endpoint, the shard that gets this
full batch sends it at once. The endpoint and the number of the full batch decide that shard, so no single task has all the work
of one endpoint. Other events wait in the shard that owns the endpoint. In a batch, the events of one Kafka partition keep their
order. A full batch does not wait for earlier events.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from delivery.model import Delivery, Event, Outcome, OutcomeKind, Record
from delivery.payload_form import EndpointPayload
from delivery.registry_model import CustomerId, DeliveryMode, Endpoint, EndpointId
from delivery.webhooks.batching import segment
from delivery.webhooks.events import opaque, parsing
from delivery.webhooks.formats import decoder
from delivery.webhooks.results.task_results import Results
from delivery.webhooks.routing import intake, matching, registries, seen_ids
from delivery.webhooks.sending import payload

_owner_shard = functools.lru_cache(maxsize=50_000)(segment.shard_of)


class SegmentRow(NamedTuple):
    """A row of the shuffle: one encoded segment, and the number of the shard that gets the segment."""

    shard: int
    segment: bytes


class _DueBatches(NamedTuple):
    """One event's items to collect in batches, each with its match, and the outcomes of the event's skipped deliveries."""

    collected: list[tuple[segment.SegmentItem, matching.Match]]
    skipped: list[Outcome[Delivery]]


@dataclass(slots=True, kw_only=True)
class Collected:
    """The result of one call of `Collector.add` or `Collector.finish`.

    `rows` has segments to shuffle. `add` returns only segments of full batches, which may have events of earlier calls. The
    rows of `finish` can be iterated only once, because each segment is encoded when the iterator reaches it.

    `results` depends on the method:
    1. `add`: the skips and rejections of the records of this call.
    2. `finish`: the offset receipts, the paused partitions, and the numbers of reused ids and invalid times of the whole task.
    """

    rows: Iterable[SegmentRow] = field(default_factory=list)
    results: Results = field(default_factory=Results)


class Collector:
    """Collect the due events of one Spark partition of a micro-batch into segments. Used once.

    Every record has one of three results:
    1. The record is rejected.
    2. Each delivery of the record in batch mode is skipped, or is in exactly one segment.
    3. The record pauses its partition, because its schema cannot be read now. This record and later records of the partition
       are left out, and are read again later.

    An event whose record has a timestamp after `now_ms` counts as arrived at `now_ms`. `shards` is the number of the lane's
    shards. If an endpoint's `max_wait_s` is at most `immediate_flush_s`, the shard sends the endpoint's events without a wait
    (Mark.IMMEDIATE). `seen` remembers ids of earlier events, to find ids that were used for another payload. `formats` decodes
    values by the schema registry. If `formats` is None, the job has no schema registry.
    """

    def __init__(
        self,
        registry: registries.Registry,
        layout: parsing.Layout,
        *,
        shards: int,
        now_ms: int,
        immediate_flush_s: float = 0.0,
        seen: seen_ids.SeenIds | None = None,
        formats: decoder.Decoder | None = None,
        max_segment_bytes: int = segment.MAX_BYTES,
    ) -> None:
        prepare = functools.partial(_match_event, now_ms)
        self._intake = intake.Intake(
            registry, layout, DeliveryMode.BATCH, prepare, seen, formats=formats, pauses_partitions=True
        )
        self._shards = shards
        self._immediate_flush_ms = immediate_flush_s * 1000
        self._open: dict[tuple[EndpointId, CustomerId], segment.PendingBatch] = {}
        """Pending batches that are not full, by endpoint and customer. With cached look-ups, events of one task may be due to a
        deleted endpoint, and to a new endpoint of another customer with the same id."""
        self._batch_counts: collections.Counter[EndpointId] = collections.Counter()
        """Number of full batches so far, by endpoint."""
        self._closed: dict[int, list[segment.PendingBatch]] = {}
        self._closed_size = 0
        self._max_segment_bytes = max_segment_bytes

    async def add(self, records: Iterable[Record]) -> Collected:
        """Collect `records`; return their skips and rejections.

        Also return the segments of full batches, once the full batches of this and earlier calls exceed `max_segment_bytes`
        together.
        """
        collected = Collected()
        for record in records:
            due = await self._intake.accept(record, collected.results.rejections)
            if due is not None:
                collected.results.outcomes += due.skipped
                for item, match in due.collected:
                    self._add(item, match)
        if self._closed_size > self._max_segment_bytes:
            collected.rows = list(self._rows(self._closed))
            self._closed, self._closed_size = {}, 0
        return collected

    def finish(self) -> Collected:
        """Return the segments of all events that `add` has not returned, and the results of the whole task.

        The results: offset receipts, paused partitions, and the numbers of reused ids and of invalid times. The collector
        forgets the events, so that an event is freed when its segments are read. Otherwise the task would have all events in
        memory twice: in batches and in segments.
        """
        batches = self._closed
        for (endpoint_id, _), batch in self._open.items():
            if batch.items:
                batches.setdefault(_owner_shard(endpoint_id, self._shards), []).append(batch)
        self._closed, self._open = {}, {}
        results = Results(
            receipts=self._intake.receipts(),
            reused_ids=self._intake.drain_reused_ids(),
            invalid_times=self._intake.drain_invalid_times(),
            paused=self._intake.paused,
        )
        return Collected(rows=self._rows(batches), results=results)

    def _add(self, item: segment.SegmentItem, match: matching.Match) -> None:
        endpoint = match.endpoint
        batch = self._open.get((endpoint.endpoint_id, endpoint.customer_id)) or self._new_batch(endpoint)
        bounds = batch.bounds
        if batch.items and batch.size + item.size > bounds.max_bytes:
            batch = self._close_batch(batch, endpoint)
        batch.add(item, match.subscription.subscription_id)
        if len(batch.items) >= bounds.max_events or batch.size >= bounds.max_bytes:
            self._close_batch(batch, endpoint)

    def _close_batch(self, batch: segment.PendingBatch, endpoint: Endpoint) -> segment.PendingBatch:
        """Mark a batch as full, and keep it for the next SegmentRows. Return the endpoint's next, empty batch.

        The endpoint's id and the number of the full batch decide which shard gets the batch.
        """
        endpoint_id = endpoint.endpoint_id
        batch.mark = segment.Mark.FULL
        shard = segment.shard_of(endpoint_id, self._shards, self._batch_counts[endpoint_id])
        self._closed.setdefault(shard, []).append(batch)
        self._closed_size += batch.size
        self._batch_counts[endpoint_id] += 1
        return self._new_batch(endpoint)

    def _new_batch(self, endpoint: Endpoint) -> segment.PendingBatch:
        assert endpoint.batching is not None, "the registry sets it for each endpoint in batch mode"  # noqa: S101
        is_immediate = endpoint.batching.max_wait_s * 1000 <= self._immediate_flush_ms
        batch = self._open[endpoint.endpoint_id, endpoint.customer_id] = segment.PendingBatch(
            endpoint_id=endpoint.endpoint_id,
            customer_id=endpoint.customer_id,
            bounds=segment.bounds_of(endpoint.endpoint_id, endpoint.batching),
            mark=segment.Mark.IMMEDIATE if is_immediate else segment.Mark.WAITS,
        )
        return batch

    def _rows(self, batches: dict[int, list[segment.PendingBatch]]) -> Iterator[SegmentRow]:
        """Yield the segments of pending batches, and remove each batch from its list in `batches` when its segment is made."""
        for shard, pending in batches.items():
            for written, _ in segment.encoded(_removed(pending), self._max_segment_bytes):
                yield SegmentRow(shard, written)


def _removed(batches: list[segment.PendingBatch]) -> Iterator[segment.PendingBatch]:
    """Remove the pending batches from a list one by one, in order, and yield them."""
    batches.reverse()
    while batches:
        yield batches.pop()


def _match_event(now_ms: int, event: Event, due: list[matching.Match]) -> _DueBatches:
    collected, skipped = [], []
    # Endpoints with the same form of the payload share an item. Only a framed value has two forms.
    item = segment.item(event, now_ms)
    original = None
    for match in due:
        skip = matching.skip_reason(match.subscription)
        if skip is not None:
            skipped.append(Outcome(delivery=_unsent(event, match), kind=OutcomeKind.SKIPPED, reason=skip))
        elif event.framed is None or match.endpoint.payload is EndpointPayload.JSON:
            collected.append((item, match))
        else:
            original = original or segment.item(opaque.as_received(event, EndpointPayload.ORIGINAL), now_ms)
            collected.append((original, match))
    return _DueBatches(collected, skipped)


def _unsent(event: Event, match: matching.Match) -> Delivery:
    webhook_id = payload.webhook_id(event, match.subscription.subscription_id)
    return Delivery(event=event, subscription=match.subscription, endpoint=match.endpoint, webhook_id=webhook_id, body=b"")
