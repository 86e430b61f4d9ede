"""Collect what is due in batches: records in, segments by shard out. The batch lane's part before the shuffle, without Spark.

Runs in the executors, inside the worker's event loop. Must not import pyspark or psycopg.

One endpoint may have most of the load. What fills a whole batch within one task's micro-batch leaves as one: it needs no state,
and goes to a shard of its own, so that one endpoint is not all the work of one task. The rest goes to the endpoint's home
shard. In a batch the events of one Kafka partition stand in their order; a full batch does not wait for what came before it.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from delivery.model import Delivery, DeliveryMode, Endpoint, EndpointId, Event, Outcome, OutcomeKind, Record
from delivery.webhooks.batching import segment
from delivery.webhooks.events import parsing
from delivery.webhooks.results.results import Results
from delivery.webhooks.routing import intake, matching, registries
from delivery.webhooks.sending import payload

_home_of = functools.lru_cache(maxsize=50_000)(segment.shard_of)


class Row(NamedTuple):
    """What crosses the shuffle."""

    shard: int
    segment: bytes


class _Due(NamedTuple):
    """What is due of one event."""

    item: segment.Item
    collected: list[matching.Match]
    skipped: list[Outcome[Delivery]]


@dataclass(slots=True, kw_only=True)
class Collected:
    """What came of some records."""

    rows: list[Row] = field(default_factory=list)
    results: Results = field(default_factory=Results)


class Collector:
    """Collect the records of one micro-batch partition. Used once.

    Every record is rejected, or each of its deliveries that are due in batches is skipped or stands in one segment. The records
    have arrived by `now_ms`. An endpoint that waits no longer than `pass_through_s` is marked to leave in this micro-batch.
    """

    def __init__(
        self,
        registry: registries.Registry,
        layout: parsing.Layout,
        *,
        shards: int,
        now_ms: int,
        pass_through_s: float = 0.0,
    ) -> None:
        self._intake = intake.Intake(registry, layout, DeliveryMode.BATCH, functools.partial(_packed, now_ms))
        self._shards = shards
        self._pass_through_ms = pass_through_s * 1000
        self._open: dict[EndpointId, segment.PendingBatch] = {}
        self._filled: collections.Counter[EndpointId] = collections.Counter()
        """How many batches of each endpoint are full."""
        self._full: dict[int, list[segment.PendingBatch]] = {}
        self._full_size = 0

    async def take(self, records: Iterable[Record]) -> Collected:
        """Collect `records`; return what need not wait for more."""
        collected = Collected()
        for record in records:
            due = await self._intake.accept(record, collected.results.rejections)
            if due is not None:
                collected.results.outcomes += due.skipped
                for match in due.collected:
                    self._add(due.item, match)
        if self._full_size > segment.MAX_BYTES:
            collected.rows += self._rows(self._full)
            self._full, self._full_size = {}, 0
        return collected

    def finish(self) -> Collected:
        """Return what is left, with the receipts."""
        lots = self._full
        for endpoint_id, lot in self._open.items():
            if lot.items:
                lots.setdefault(_home_of(endpoint_id, self._shards), []).append(lot)
        return Collected(rows=list(self._rows(lots)), results=Results(receipts=self._intake.receipts()))

    def _add(self, item: segment.Item, match: matching.Match) -> None:
        endpoint = match.endpoint
        lot = self._open.get(endpoint.endpoint_id) or self._lot(endpoint)
        bounds = lot.bounds
        if lot.items and lot.size + item.size > bounds.max_bytes:
            lot = self._left(lot, endpoint)
        lot.add(item, match.subscription.subscription_id)
        if len(lot.items) >= bounds.max_events or lot.size >= bounds.max_bytes:
            self._left(lot, endpoint)

    def _left(self, lot: segment.PendingBatch, endpoint: Endpoint) -> segment.PendingBatch:
        """Let a full batch leave; return the next one."""
        endpoint_id = endpoint.endpoint_id
        lot.mark = segment.Mark.FULL
        shard = segment.shard_of(endpoint_id, self._shards, self._filled[endpoint_id])
        self._full.setdefault(shard, []).append(lot)
        self._full_size += lot.size
        self._filled[endpoint_id] += 1
        return self._lot(endpoint)

    def _lot(self, endpoint: Endpoint) -> segment.PendingBatch:
        assert endpoint.batching is not None, "the registry gives it to each endpoint in batch mode"  # noqa: S101
        passes = endpoint.batching.max_wait_s * 1000 <= self._pass_through_ms
        lot = self._open[endpoint.endpoint_id] = segment.PendingBatch(
            endpoint_id=endpoint.endpoint_id,
            customer_id=endpoint.customer_id,
            bounds=segment.bounds_of(endpoint.endpoint_id, endpoint.batching),
            mark=segment.Mark.IMMEDIATE if passes else segment.Mark.WAITS,
        )
        return lot

    @staticmethod
    def _rows(lots: dict[int, list[segment.PendingBatch]]) -> Iterator[Row]:
        for shard, of_shard in lots.items():
            for written, _ in segment.encoded(of_shard):
                yield Row(shard, written)


def _packed(now_ms: int, event: Event, due: list[matching.Match]) -> _Due:
    prepared = _Due(segment.item(event, now_ms), [], [])
    for match in due:
        skip = matching.skip_reason(match.subscription)
        if skip is None:
            prepared.collected.append(match)
        else:
            prepared.skipped.append(Outcome(delivery=_unsent(event, match), kind=OutcomeKind.SKIPPED, reason=skip))
    return prepared


def _unsent(event: Event, match: matching.Match) -> Delivery:
    webhook_id = payload.webhook_id(event, match.subscription.subscription_id)
    return Delivery(event=event, subscription=match.subscription, endpoint=match.endpoint, webhook_id=webhook_id, body=b"")
