"""Parse records, check their tenants, match them, and count them in offset receipts. The first step of every fast lane.

Runs in the executors, in the worker's event loop, and in the archive for replays. The fast lanes are the direct, the batch and
the real-time lane. Each lane reads every record of its topics, and serves the endpoints of one delivery mode. The offset
receipts of a lane count all records that it has handled, but only the deliveries to these endpoints.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from delivery import errors
from delivery.model import Event, Record
from delivery.registry_model import PLATFORM, DeliveryMode, Revision, TenantStatus
from delivery.webhooks.events import batch_records, parsing
from delivery.webhooks.formats import decoder
from delivery.webhooks.policy import error_classes
from delivery.webhooks.routing import matching, registries, seen_ids

log = logging.getLogger(__name__)

Prepared = TypeVar("Prepared")
UNFORESEEN = "unforeseen"
"""Reason of a rejection, a dead letter or a requeue because of an unforeseen error in our own code."""
UNREADABLE = "unreadable"
"""Reason when an unreadable retry entry is given up. The events of the entry are rejected, and no dead letter is written for
them."""
NOT_WRITTEN = "not_written"
"""Reason of the rejection of a batch record that was not split, or only in part. The new records would be too large, the batch
record could not be split, or Kafka refused some of the new records for good."""
LANE_SPECIFIC = frozenset({"unknown_tenant", "suspended_tenant", "unknown_schema", "reused_id", NOT_WRITTEN, UNFORESEEN})
"""Reasons for which one lane may reject a record that another lane accepts. These reasons depend on the lane's registry, memory
or code, or on when the lane asks the schema registry. `fanout reconcile` expects a rejection for any other reason in every lane
that read the record."""

MAX_TURN_S = 0.02
"""Seconds after which an intake yields to the event loop, between two records. Most records take about 0.05 ms. A large record
with many filters takes 100 ms and more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A rejected record, and why it is rejected. A lane writes the record to the rejected topic, which the operator reads."""

    record: Record
    reason: str
    """The reason why the record is rejected: a word of a closed set (RejectedRecord.reason)."""
    detail: str
    """Details of the reason, for a person."""
    is_only_copy: bool = False
    """True if no other copy of the record exists. Then the rejected topic gets the whole record. False: headers and value are
    each cut at 64 KiB."""


@dataclass(slots=True, kw_only=True)
class Receipt:
    """An offset receipt: a run of offsets of one partition that a lane has handled.

    Each record of the run was routed by `revision` of the registry, or by a later revision.
    A task writes its receipts to the attempts topic, and `fanout reconcile` starts from them.
    """

    lane: DeliveryMode
    topic: str
    partition: int
    revision: Revision
    first_offset: int
    last_offset: int
    records: int = 0
    rejected: int = 0
    due: int = 0
    """Number of deliveries in the mode of `lane` that were due by the records of the run, whatever their outcome."""
    is_confirmed: bool = False
    """True if Kafka has confirmed all results of the run."""


class Intake(Generic[Prepared]):
    """Turn records into prepared deliveries, for one lane in one task, and count the records in offset receipts.

    `prepare` gets an event and its matches at endpoints of `mode`, and returns the prepared deliveries without side effects.
    `prepare` is called only if there is a match. `seen` remembers the ids of due events across tasks. None: the ids are
    remembered by this Intake only. `formats` decodes values by the schema registry. None: the job has no schema registry.

    With `pauses_partitions`, a record whose schema cannot be read now pauses its partition. This record and all later records
    of the partition are not accepted, and no receipt counts them. The lane reads them later (docs/adr/0043). Without
    `pauses_partitions`, `accept` raises SchemaRegistryUnavailable.

    With `keeps_batches`, `drain_batches` returns the batch records, which this lane splits into their events. In every lane a
    batch record counts as an event that is due to nobody.
    """

    def __init__(
        self,
        registry: registries.Registry,
        layout: parsing.Layout,
        mode: DeliveryMode,
        prepare: Callable[[Event, list[matching.Match]], Prepared],
        seen: seen_ids.SeenIds | None = None,
        *,
        formats: decoder.Decoder | None = None,
        pauses_partitions: bool = False,
        keeps_batches: bool = False,
    ) -> None:
        self._registry = registry
        self._layout = layout
        self._formats = formats
        self._mode = mode
        self._prepare = prepare
        self._seen = seen_ids.SeenIds() if seen is None else seen
        self._receipts: dict[tuple[str, int], Receipt] = {}
        self._invalid_times = 0
        self._pauses_partitions = pauses_partitions
        self._keeps_batches = keeps_batches
        self._batches: list[batch_records.BatchRecord] = []
        self._turn_began: float | None = None
        self.paused: dict[tuple[str, int], int] = {}
        """The offset of the first record that was not accepted, for each paused partition."""

    async def accept(self, record: Record, rejections: list[Rejection]) -> Prepared | None:
        """Return the prepared deliveries of a record, and count the record in its offset receipt.

        Yield to the event loop first, if MAX_TURN_S have passed since the last time.

        Return None in four cases:
        1. The record matches no subscription of an endpoint of the lane's mode.
        2. The record is rejected, and was added to `rejections`.
        3. The record's partition is paused. The record is not counted.
        4. The record is a batch record, and the job splits batch records into events (`source.batch_records`).

        Raise SchemaRegistryUnavailable if the record's schema cannot be read now, and the intake pauses no partitions. The
        record is not counted, and must be read again.
        """
        await self._yield_after_a_turn()
        if self.paused and (record.topic, record.partition) in self.paused:
            return None
        receipt = self._receipts.get((record.topic, record.partition)) or self._new_receipt(record)
        try:
            event = parsing.parse(record, self._layout) if self._formats is None else await self._formats.event(record)
            router = await self._registry.router_for(event)
            _require_active(event, router)
            due = [match for match in router.matches(event) if match.endpoint.mode is self._mode]
            if due and self._layout.rejects_reused_ids:
                self._require_new_id(event)
            prepared = self._prepare(event, due) if due else None
        except errors.BatchFound as batch:
            self._count(record, receipt)
            if self._keeps_batches:
                self._batches.append(batch_records.BatchRecord(record, batch.events, batch.written_bytes))
            return None
        except errors.EventRejected as exc:
            self._count(record, receipt)
            receipt.rejected += 1
            rejections.append(Rejection(record=record, reason=exc.reason, detail=exc.detail))
            return None
        except errors.SchemaRegistryUnavailable as away:
            if not self._pauses_partitions:
                raise
            log.warning("partition %d of topic %s waits at offset %d: %s", record.partition, record.topic, record.offset, away)
            self.paused[record.topic, record.partition] = record.offset
            return None
        except Exception:
            # The error must affect this record only. If raised, it would fail everybody's micro-batch for ever.
            log.exception(
                "an unforeseen error in one record: this process delivers it to nobody. A lane writes it to the rejected "
                "topic, and a replay leaves it out. Send this traceback to the maintainers of the platform. When the cause is "
                "mended, replay the event (docs/operations.md#rejected-records)",
                extra={"topic": record.topic, "partition": record.partition, "offset": record.offset},
            )
            self._count(record, receipt)
            receipt.rejected += 1
            rejections.append(Rejection(record=record, reason=UNFORESEEN, detail=error_classes.UNFORESEEN_DETAIL))
            return None
        self._invalid_times += event.has_invalid_time
        self._count(record, receipt)
        if due:
            receipt.due += len(due)
            self._seen.add(event)
        return prepared

    def drain_reused_ids(self) -> int:
        """Return how many events since the last call had the source and id of an earlier event, but another payload.

        Only events with a delivery in this lane count. A call through another Intake with the same `seen` counts as a call too.
        The number is an estimate, because the memory of ids is bounded (`seen_ids`).
        """
        return self._seen.drain()

    def drain_invalid_times(self) -> int:
        """Return the number of accepted events whose time was no RFC 3339 time and was replaced, since the last call."""
        count, self._invalid_times = self._invalid_times, 0
        return count

    def drain_batches(self) -> list[batch_records.BatchRecord]:
        """Return the batch records since the last call, in the order in which they were read."""
        drained, self._batches = self._batches, []
        return drained

    def receipts(self) -> list[Receipt]:
        """Return the offset receipts of all records that were counted so far, one receipt for each partition."""
        return list(self._receipts.values())

    async def _yield_after_a_turn(self) -> None:
        loop = asyncio.get_running_loop()
        if self._turn_began is None:
            self._turn_began = loop.time()
        elif loop.time() - self._turn_began >= MAX_TURN_S:
            await asyncio.sleep(0)
            self._turn_began = loop.time()

    def _require_new_id(self, event: Event) -> None:
        if self._seen.is_reused_by_its_tenant(event):
            raise errors.EventRejected(
                "reused_id",
                "an earlier event has this source and id, and another payload: publish the event again with an id of its own",
            )

    def _new_receipt(self, record: Record) -> Receipt:
        """Return a new receipt for the record's partition. The receipt counts no record yet.

        The receipt gets the registry's revision before the record's look-ups. After the look-ups, the revision could be newer
        than the first look-up's answer. The receipt would then claim a revision by which the record was not routed.
        """
        return Receipt(
            lane=self._mode,
            topic=record.topic,
            partition=record.partition,
            revision=self._registry.revision,
            first_offset=record.offset,
            last_offset=record.offset,
        )

    def _count(self, record: Record, receipt: Receipt) -> None:
        """Count a record in the receipt of its partition, and keep the receipt."""
        if not receipt.records:
            self._receipts[record.topic, record.partition] = receipt
        receipt.last_offset = record.offset
        receipt.records += 1


def _require_active(event: Event, router: registries.EventRouter) -> None:
    if event.tenant_id == PLATFORM:
        return
    status = router.tenant_status(event.tenant_id)
    if status is None:
        detail = f"tenant {event.tenant_id} is not registered: register it and replay the event, or publish a corrected event"
        raise errors.EventRejected("unknown_tenant", detail)
    if status is TenantStatus.SUSPENDED:
        detail = f"tenant {event.tenant_id} is suspended: make it active, then replay the event"
        raise errors.EventRejected("suspended_tenant", detail)
