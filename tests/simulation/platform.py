"""The delivery core of one application without Spark, Kafka or sockets: topics are lists, micro-batches are coroutines.

The code that decides and delivers is the real one: intake, matching, dispatcher, breakers, sender, shards, leases. The
simulated part is what Spark and Kafka do, with their faults. Offsets and state are committed after all rows were written. A
process may die at any moment, with only a part sent or written. Then the micro-batch runs again with its completed-work log.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any

import orjson

from delivery.model import Record
from delivery.registry_model import AttemptedEndpoint, Disable
from delivery.stages.lanes import unhealthy_endpoints
from delivery.webhooks.batching import segment
from delivery.webhooks.events import parsing
from delivery.webhooks.lanes import batch_collect, batch_lane, direct_lane
from delivery.webhooks.policy import error_classes
from delivery.webhooks.results import completed_work, topic_rows
from delivery.webhooks.results.task_results import Results
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.routing import registries
from delivery.webhooks.routing.registry_snapshot import Snapshot
from delivery.webhooks.scheduling import outage_detection, outage_history, unhealthy
from delivery.webhooks.state import backlog
from tests.simulation import shards, virtual, worker
from tests.simulation.world import World

SETTLE_S = 1.0
TRIGGER_S = 0.5
FAILING = "failing"
CONFIRMED_S = 0.01
"""Seconds until written rows are in their topics."""


class Platform:
    """One application with all lanes. `registry` returns the current registry.

    `disable` is called with endpoints to disable, and the reason. `max_retry_records` bounds the records that the retry lane
    reads in one micro-batch, so that the lane falls behind in its topic; None: no bound.
    """

    def __init__(
        self,
        world: World,
        registry: Callable[[], Snapshot],
        disable: Disable,
        rng: random.Random,
        *,
        deaths: float,
        max_retry_records: int | None = None,
    ) -> None:
        self._world = world
        self._registry = registry
        self._disable = disable
        self._rng = rng
        self.deaths = deaths
        """The share of the micro-batches in which a worker dies."""
        self.events: list[Record] = []
        self._max_retry_records = max_retry_records
        self.most_behind_ms = 0
        """Longest time by which the retry lane was behind in its topic."""
        self._published = {"direct": asyncio.Event(), "batch": asyncio.Event()}
        self._handed_over = asyncio.Event()
        self.topics: dict[str, list[bytes]] = {"attempts": [], "dead_letters": [], "rejected": [], "retries": []}
        self._retries_at_ms: list[int] = []
        """When each record of the retries topic was appended."""
        self.oldest_read_ms: dict[str, int] = {}
        """Endpoint → append time of the oldest record for it that the present micro-batch of the retry lane has read."""
        self._committed = {"direct": 0, "batch": 0, "retry": 0}
        self._unhealthy = unhealthy_endpoints.UnhealthyEndpoints(worker.ATTEMPT_S, asyncio.get_running_loop().time)
        self.network_health = outage_detection.NetworkHealth()
        self.outages = outage_history.Outages()
        self._mended = asyncio.Event()
        self.was_cut_off = False
        """True if the lanes have ever paused because our own network was broken."""
        self.shards = [shards.Shard() for _ in range(shards.COUNT)]
        self.batches = [shards.BatchShard() for _ in range(shards.COUNT)]
        self.died = 0
        self.ended_by_fast: set[completed_work.Key] = set()
        self.repeated: set[completed_work.Key] = set()
        """Deliveries that a fast lane has sent although it had written their outcome."""

    def publish(self, record: Record) -> None:
        self.events.append(record)
        for published in self._published.values():
            published.set()

    async def run_direct(self) -> None:
        process = worker.Worker(self._world, self._rng, self._append)
        while True:
            end = len(self.events)
            records = self.events[self._committed["direct"] : end]
            if not records:
                await self._published["direct"].wait()
                self._published["direct"].clear()
                continue
            begun, before = self._ends(), frozenset[completed_work.Key]()
            while True:
                await self._until_the_network_works()
                lane = process.direct(self._known(), self._unhealthy_now(), before)
                if await self._lives(self._delivered(process, lane, _some(records, 50)), is_fast=True):
                    break
                lane.abandon()
                process.is_dead, process = True, worker.Worker(self._world, self._rng, self._append)
                before = self._ended_since(begun, completed_work.FastLaneLog())
            self._committed["direct"] = end

    async def run_batch(self) -> None:
        process = worker.Worker(self._world, self._rng, self._append)
        while True:
            await asyncio.sleep(TRIGGER_S)
            await self._until_batches_are_due()
            end, at_ms = len(self.events), virtual.now_ms()
            records = self.events[self._committed["batch"] : end]
            begun, before = self._ends(), frozenset[completed_work.Key]()
            while True:
                await self._until_the_network_works()
                known = self._known()  # when it runs again, all is collected again by the registry of that moment
                collected = await self._collected(process, known, records, at_ms)
                decided = [shard.decide(came, at_ms) for shard, came in zip(self.batches, collected, strict=True)]
                leaving = [batch for decision in decided for batch in decision.batches]
                lane = process.batches(known, self._unhealthy_now(), before)
                if await self._lives(self._delivered(process, lane, _some(leaving, 5)), is_fast=True):
                    break
                lane.abandon()
                process.is_dead, process = True, worker.Worker(self._world, self._rng, self._append)
                before = self._ended_since(begun, completed_work.FastLaneLog())
            self._committed["batch"] = end
            for shard, decision in zip(self.batches, decided, strict=True):
                shard.commit(decision)

    async def run_retry(self) -> None:
        process = worker.Worker(self._world, self._rng, self._append)
        while True:
            await asyncio.sleep(TRIGGER_S)
            await self._until_retries_are_due()
            await self._until_the_network_works()
            begun = self._ends()
            arrived: list[list[bytes]] = [[] for _ in self.shards]
            first, end = self._committed["retry"], begun["retries"]
            end = end if self._max_retry_records is None else min(end, first + self._max_retry_records)
            self.oldest_read_ms = {}
            for written, appended_ms in zip(self.topics["retries"][first:end], self._retries_at_ms[first:end], strict=True):
                endpoint_id = retry_messages.message(written).endpoint_id
                self.oldest_read_ms.setdefault(endpoint_id, appended_ms)
                arrived[segment.shard_of(endpoint_id, shards.COUNT)].append(written)
            at_ms = virtual.now_ms()
            behind_ms = at_ms - self._retries_at_ms[end - 1] if end > first else 0
            self.most_behind_ms = max(self.most_behind_ms, behind_ms)
            decided = [shard.decide(came, at_ms, behind_ms) for shard, came in zip(self.shards, arrived, strict=True)]
            leases = [lease for decision in decided for lease in decision.leases]
            before = frozenset[completed_work.Key]()
            process.begin_task()
            while not await self._lives(self._retried(process, leases, before), is_fast=False):
                await process.retries.close()
                process = worker.Worker(self._world, self._rng, self._append)
                # The same records at the same time: the same leases leave again.
                before = self._ended_since(begun, completed_work.RetryLaneLog())
            self._committed["retry"] = end
            for shard, decision in zip(self.shards, decided, strict=True):
                shard.commit(decision, at_ms)
            total = sum((shard.backlog for shard in self.shards), backlog.ShardBacklog())
            self._unhealthy.set_reported(total.suppressed, total.watched)
            own = [
                AttemptedEndpoint(endpoint.endpoint_id)
                for endpoint in total.failing
                if self.outages.failing_s(endpoint.since_ms, endpoint.failed_ms) >= shards.POLICY.disable_after_s
            ]
            if own:
                self._disable(own, FAILING)

    @property
    def is_done(self) -> bool:
        """Return True if no event and no delivery waits anywhere."""
        came = len(self.events)
        handled = self._committed == {"direct": came, "batch": came, "retry": len(self.topics["retries"])}
        waits = any(shard.backlog.events for shard in self.shards) or any(shard.due_ms is not None for shard in self.batches)
        return handled and not waits

    def dead_letters(self) -> list[tuple[str, str, str]]:
        """Return the event id, the endpoint id and the reason of each dead letter."""
        letters = map(orjson.loads, self.topics["dead_letters"])
        return [(letter["event_id"], letter["endpoint_id"], letter["reason"]) for letter in letters]

    def skips(self) -> list[tuple[str, str, str]]:
        """Return the event id, the endpoint id and the reason of each skip."""
        return [
            (event_id, row["endpoint_id"], entry["reason"])
            for row in map(orjson.loads, self.topics["attempts"])
            for entry in row.get("entries", ())
            if entry["kind"] in {"skipped", "batch_skipped"}
            for event_id in _event_ids(entry)
        ]

    def rejected(self) -> set[int]:
        """Return the offsets of records that were rejected."""
        return {orjson.loads(row)["offset"] for row in self.topics["rejected"]}

    def _known(self) -> registries.WholeRegistry:
        return registries.WholeRegistry("simulated", self._registry())

    async def _until_retries_are_due(self) -> None:
        """Wait until records have arrived for the shards, or an entry is due."""
        if self._committed["retry"] < len(self.topics["retries"]):
            return
        self._handed_over.clear()
        due = min((shard.backlog.due_ms for shard in self.shards if shard.backlog.due_ms is not None), default=None)
        wait_s = None if due is None else max(0.0, (due - shards.LOOK_AHEAD_MS - virtual.now_ms()) / 1000)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._handed_over.wait(), wait_s)

    async def _until_batches_are_due(self) -> None:
        """Wait until events have arrived, or a batch is due."""
        if self._committed["batch"] < len(self.events):
            return
        self._published["batch"].clear()
        due = min((shard.due_ms for shard in self.batches if shard.due_ms is not None), default=None)
        wait_s = None if due is None else max(0.0, (due - virtual.now_ms()) / 1000 - shards.PASS_THROUGH_S)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._published["batch"].wait(), wait_s)

    async def _until_the_network_works(self) -> None:
        while (wait_s := self.network_health.paused_until - asyncio.get_running_loop().time()) > 0:
            with contextlib.suppress(TimeoutError):
                self._mended.clear()
                await asyncio.wait_for(self._mended.wait(), wait_s)

    def _unhealthy_now(self) -> unhealthy.Unhealthy:
        return self._unhealthy.current()

    def _ends(self) -> dict[str, int]:
        return {topic: len(written) for topic, written in self.topics.items()}

    async def _collected(
        self, process: worker.Worker, known: registries.Registry, records: list[Record], at_ms: int
    ) -> list[list[bytes]]:
        """Write skips, rejections and receipts for the records, and return the segments for each shard."""
        collector = batch_collect.Collector(
            known, parsing.Layout(), shards=shards.COUNT, now_ms=at_ms, immediate_flush_s=shards.PASS_THROUGH_S
        )
        for_shards: list[list[bytes]] = [[] for _ in range(shards.COUNT)]
        for collected in (await collector.add(records), collector.finish()):
            self._append(process.rows_of(collected.results))
            for row in collected.rows:
                for_shards[row.shard].append(row.segment)
        return for_shards

    async def _delivered(
        self, process: worker.Worker, lane: direct_lane.DirectLane | batch_lane.BatchLane, given: Iterable[list[Any]]
    ) -> AsyncIterator[list[topic_rows.TopicRow]]:
        for records in given:
            yield process.rows_of(await lane.submit(records))
        last = await lane.finish()
        last.accepting = process.acceptances.to_report(last.accepting, last.failed, asyncio.get_running_loop().time())
        yield process.rows_of(last)
        self._apply_reports(process, last)

    def _apply_reports(self, process: worker.Worker, last: Results) -> None:
        """Apply the reports of a micro-batch, as the driver and the worker do."""
        self.network_health = self.network_health.after(last.reach, asyncio.get_running_loop().time())
        self.outages = self.outages.after(
            is_broken=self.network_health.is_broken, is_healthy=last.reach.is_healthy, now_ms=virtual.now_ms()
        )
        if not self.network_health.is_broken:
            self._mended.set()
        self.was_cut_off |= self.network_health.is_broken
        if last.reach.is_broken():
            process.memory.breakers.clear()
        if not self.network_health.is_broken:
            self._unhealthy.add_late(last.late)
            self._unhealthy.add_unresponsive(last.unresponsive)
        if last.gone:
            self._disable(last.gone, error_classes.GONE)

    def _ended_since(self, begun: dict[str, int], found: completed_work.CompletedWorkLog) -> completed_work.CompletedKeys:
        """Return the completed-work log of a micro-batch."""
        for topic, reader in found.readers(worker.TOPICS).items():
            for written in self.topics[topic][begun[topic] :]:
                found.add(written, reader, (topic, 0, 0))
        return found.completed

    async def _retried(
        self, process: worker.Worker, leases: list[bytes], before: completed_work.CompletedKeys
    ) -> AsyncIterator[list[topic_rows.TopicRow]]:
        retries = process.retries
        for ended in (await retries.start(leases, self._known(), SETTLE_S, before), await retries.finish_task(SETTLE_S)):
            yield list(topic_rows.rows(ended.results, worker.TOPICS, now_ms=round(process.now_s() * 1000)))
            await asyncio.sleep(CONFIRMED_S)  # or dies: a report may make its shard forget only what was written
            yield list(topic_rows.report_rows(ended.reports, worker.TOPICS))
            if ended.results.gone:
                self._disable(ended.results.gone, error_classes.GONE)

    async def _lives(self, work: AsyncIterator[list[topic_rows.TopicRow]], *, is_fast: bool) -> bool:
        """Write what `work` yields; return True if the process lived to commit it."""
        if self._rng.random() >= self.deaths:
            await self._written(work, is_fast=is_fast)
            return True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._written(work, is_fast=is_fast), self._rng.choice([0.0, 0.01, 0.1, 1.0, 3.0]))
        self.died += 1
        return False

    async def _written(self, work: AsyncIterator[list[topic_rows.TopicRow]], *, is_fast: bool) -> None:
        async for rows in work:
            self._append(rows)
            if is_fast:
                self._note_ended(rows)

    def _note_ended(self, rows: list[topic_rows.TopicRow]) -> None:
        """Record the deliveries that a fast lane has ended. A fast lane must end each delivery only once."""
        found = completed_work.FastLaneLog()
        readers = found.readers(worker.TOPICS)
        for row in rows:
            if row.value is not None and row.topic in readers:
                found.add(row.value, readers[row.topic], (row.topic, 0, 0))
        self.repeated |= found.completed & self.ended_by_fast
        self.ended_by_fast |= found.completed

    def _append(self, rows: list[topic_rows.TopicRow]) -> None:
        for row in rows:
            if row.value is not None:
                self.topics[row.topic].append(row.value)
                if row.topic == worker.TOPICS.retries:
                    self._retries_at_ms.append(virtual.now_ms())
        self._handed_over.set()


def _some(given: list[Any], count: int) -> Iterable[list[Any]]:
    return (given[first : first + count] for first in range(0, len(given), count))


def _event_ids(entry: dict[str, Any]) -> list[str]:
    """Return the ids of an entry's events. The entry of a batch has offsets, which equal the numbers in the ids."""
    if entry["kind"] == "skipped":
        return [entry["event_id"]]
    return [
        f"e{offset}"
        for topics in entry["offsets"].values()
        for partitions in topics.values()
        for offsets in partitions.values()
        for offset in offsets
    ]


async def while_running(platform: Platform, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` while the lanes run; raise the error that ends one of them."""
    lanes = [asyncio.create_task(run()) for run in (platform.run_direct, platform.run_batch, platform.run_retry)]
    main = asyncio.create_task(work)
    done, _ = await asyncio.wait([main, *lanes], return_when=asyncio.FIRST_COMPLETED)
    for task in [main, *lanes]:
        task.cancel()
    await asyncio.gather(main, *lanes, return_exceptions=True)
    for task in done:
        if not task.cancelled() and (failure := task.exception()) is not None:
            raise failure
