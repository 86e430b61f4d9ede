"""The delivery core of one application without Spark, Kafka or sockets: topics are lists, and a micro-batch is a coroutine.

What decides and what delivers is the real code: intake, matching, dispatcher, circuits, sender, shards, turns. What is
simulated is what the guarantees lean on, with its faults: offsets and state are committed after everything was written; a
process may die at any moment, with what it had sent, had written, and had not written.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import orjson

from delivery.model import Record
from delivery.stages import held
from delivery.webhooks import (
    direct_lane,
    dispatch,
    envelope,
    guard,
    handover,
    journal,
    late,
    limits,
    parcel,
    pending,
    retry,
    retry_lane,
    retrying,
    routing,
    rows,
    segment,
    sender,
)
from delivery.webhooks.results import Results, of_late
from delivery.webhooks.snapshot import Snapshot
from tests.simulation.world import World

EPOCH_S = 1_700_000_000
TOPICS = rows.Topics(attempts="attempts", dead_letters="dead_letters", rejected="rejected", retries="retries")
LIMITS = limits.Limits(max_in_flight=32, max_in_flight_per_endpoint=4)
POLICY = retrying.Policy(max_pending=100_000)
ATTEMPT_S = 2.0
SETTLE_S = 1.0
HORIZON_MS = 500
SHARDS = 2
TRIGGER_S = 0.5
CONFIRMED_S = 0.01
"""So long after they were written rows are in their topics."""


class Worker:
    """What a Python worker process keeps from micro-batch to micro-batch, and loses when it dies."""

    def __init__(self, world: World, rng: random.Random, write: Callable[[list[rows.Row]], None]) -> None:
        loop = asyncio.get_running_loop()
        self.sender = sender.Sender(world, guard.Guard(), timeout_s=ATTEMPT_S, clock=now_s)
        self.paces: limits.Paces = {}
        self.circuits: dict[Any, Any] = {}
        self.answer_times: dict[Any, Any] = {}
        self.rng = rng
        self.clock = loop.time
        self.late = late.Late(ATTEMPT_S, LIMITS.max_in_flight, self._told)
        self.is_dead = False
        self._write = write
        self.retries = retry_lane.RetryLane(self.sender, LIMITS, paces=self.paces, clock=loop.time, now_s=now_s, rng=rng)

    def _told(self, ended: late.Ended) -> None:
        """Write what had gone on alone, as the worker does: also while it has no task."""
        if not self.is_dead:
            self._write([*_rows(of_late([ended])), *rows.settled([ended], TOPICS)])

    def lane(self, registry: routing.Registry, held: handover.Held) -> direct_lane.DirectLane:
        hand_over = handover.Handover(held, self.circuits, self.late, clock=self.clock, now_s=now_s, rng=self.rng)
        dispatcher: dispatch.Dispatcher[Any] = dispatch.Dispatcher(
            self.sender,
            LIMITS,
            retry.QuickRetry(),
            hand_over,
            self.late,
            paces=self.paces,
            circuits=self.circuits,
            answer_times=self.answer_times,
            clock=self.clock,
        )
        return direct_lane.DirectLane(registry, dispatcher, hand_over, envelope.Layout())


class Shard:
    """The state of one shard, as bytes."""

    def __init__(self) -> None:
        self.index: bytes | None = None
        self.segments: dict[int, bytes] = {}
        self.told = pending.Pending()

    def commit(self, decided: retrying.Decision, now_ms: int) -> None:
        self.segments |= decided.append
        for number in decided.drop:
            del self.segments[number]
        self.index = retrying.encoded(decided.index)
        self.told = retrying.told(decided, now_ms)


class Platform:
    """One application with a direct lane and a retry lane. `registry` gives the registry as it is at the moment."""

    def __init__(self, world: World, registry: Callable[[], Snapshot], rng: random.Random, *, deaths: float) -> None:
        self._world = world
        self._registry = registry
        self._rng = rng
        self.deaths = deaths
        """The share of the micro-batches in which a worker dies."""
        self.events: list[Record] = []
        self._published = asyncio.Event()
        self._handed_over = asyncio.Event()
        self.topics: dict[str, list[bytes]] = {"attempts": [], "dead_letters": [], "rejected": [], "retries": []}
        self._committed = {"direct": 0, "retry": 0}
        self._held = held.Held(ATTEMPT_S, asyncio.get_running_loop().time)
        self.shards = [Shard() for _ in range(SHARDS)]
        self.died = 0

    def publish(self, record: Record) -> None:
        self.events.append(record)
        self._published.set()

    async def run_direct(self) -> None:
        worker = Worker(self._world, self._rng, self._append)
        while True:
            end = len(self.events)
            records = self.events[self._committed["direct"] : end]
            if not records:
                await self._published.wait()
                self._published.clear()
                continue
            self._held.told(frozenset().union(*(shard.told.held for shard in self.shards)))
            begun = worker.lane(self._known(), self._held.now())
            if await self._lives(self._delivered(begun, records)):
                self._committed["direct"] = end
            else:
                begun.abandon()
                worker.is_dead = True
                worker = Worker(self._world, self._rng, self._append)

    async def run_retry(self) -> None:
        worker = Worker(self._world, self._rng, self._append)
        while True:
            await asyncio.sleep(TRIGGER_S)
            await self._until_retries_are_due()
            begun = {topic: len(written) for topic, written in self.topics.items()}
            arrived: list[list[bytes]] = [[] for _ in self.shards]
            for written in self.topics["retries"][self._committed["retry"] : begun["retries"]]:
                arrived[segment.shard_of(parcel.message(written).endpoint_id, SHARDS)].append(written)
            decided = [self._decide(shard, came) for shard, came in zip(self.shards, arrived, strict=True)]
            turns = [turn for one in decided for turn in one.turns]
            before: journal.Ended = frozenset()
            while not await self._lives(self._retried(worker.retries, turns, before)):
                await worker.retries.close()
                worker = Worker(self._world, self._rng, self._append)
                before = self._ended_since(begun)  # the same records, at the same time: the same turns leave again
            self._committed["retry"] = begun["retries"]
            for shard, one in zip(self.shards, decided, strict=True):
                shard.commit(one, now_ms())

    @property
    def is_done(self) -> bool:
        """Whether nothing waits anywhere."""
        handled = self._committed == {"direct": len(self.events), "retry": len(self.topics["retries"])}
        return handled and not any(shard.told.events for shard in self.shards)

    def dead_letters(self) -> list[tuple[str, str, str]]:
        """Event id, endpoint id and reason of each."""
        letters = map(orjson.loads, self.topics["dead_letters"])
        return [(letter["event_id"], letter["endpoint_id"], letter["reason"]) for letter in letters]

    def skips(self) -> list[tuple[str, str, str]]:
        """Event id, endpoint id and reason of each."""
        return [
            (entry["event_id"], row["endpoint_id"], entry["reason"])
            for row in map(orjson.loads, self.topics["attempts"])
            for entry in row.get("entries", ())
            if entry["kind"] == "skipped"
        ]

    def _known(self) -> routing.WholeRegistry:
        return routing.WholeRegistry("simulated", self._registry())

    def _decide(self, shard: Shard, arrived: list[bytes]) -> retrying.Decision:
        return retrying.decide(
            retrying.decoded(shard.index),
            arrived,
            shard.segments.__getitem__,
            POLICY,
            now_ms=now_ms(),
            horizon_ms=HORIZON_MS,
        )

    async def _until_retries_are_due(self) -> None:
        """Wait until something came for the shards, or one of them is due."""
        if self._committed["retry"] < len(self.topics["retries"]):
            return
        self._handed_over.clear()
        due = min((shard.told.due_ms for shard in self.shards if shard.told.due_ms is not None), default=None)
        wait_s = None if due is None else max(0.0, (due - HORIZON_MS - now_ms()) / 1000)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._handed_over.wait(), wait_s)

    async def _delivered(self, begun: direct_lane.DirectLane, records: list[Record]) -> AsyncIterator[list[rows.Row]]:
        for first in range(0, len(records), 50):
            yield _rows(await begun.take(records[first : first + 50]))
        last = await begun.finish()
        self._held.silent(last.silent)
        yield _rows(last)

    def _ended_since(self, begun: dict[str, int]) -> journal.Ended:
        """Read back what a micro-batch of the retry lane has written."""
        found = journal.OfRetryLane()
        for topic, reader in found.readers(TOPICS).items():
            for written in self.topics[topic][begun[topic] :]:
                found.take(written, reader)
        return found.ended

    async def _retried(
        self, retries: retry_lane.RetryLane, turns: list[bytes], before: journal.Ended
    ) -> AsyncIterator[list[rows.Row]]:
        for ended in (await retries.take(turns, self._known(), SETTLE_S, before), await retries.settle(SETTLE_S)):
            yield list(rows.rows(ended.results, TOPICS))
            await asyncio.sleep(CONFIRMED_S)  # or dies: what a report lets its shard forget must be written
            yield list(rows.reports(ended.reports, TOPICS))

    async def _lives(self, work: AsyncIterator[list[rows.Row]]) -> bool:
        """Write what `work` yields; return whether the process that did it lived to commit it."""
        if self._rng.random() >= self.deaths:
            await self._written(work)
            return True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._written(work), self._rng.choice([0.0, 0.01, 0.1, 1.0, 3.0]))
        self.died += 1
        return False

    async def _written(self, work: AsyncIterator[list[rows.Row]]) -> None:
        async for some in work:
            self._append(some)

    def _append(self, some: list[rows.Row]) -> None:
        for row in some:
            if row.value is not None:
                self.topics[row.topic].append(row.value)
        self._handed_over.set()


def _rows(results: Results) -> list[rows.Row]:
    return [*rows.rows(results, TOPICS), *rows.postponed(results, TOPICS, now_ms=now_ms())]


def now_s() -> float:
    return EPOCH_S + asyncio.get_running_loop().time()


def now_ms() -> int:
    return round(now_s() * 1000)


async def while_running(platform: Platform, work: Coroutine[Any, Any, None]) -> None:
    """Do `work` while the lanes run; raise what ends one of them."""
    lanes = [asyncio.create_task(platform.run_direct()), asyncio.create_task(platform.run_retry())]
    main = asyncio.create_task(work)
    done, _ = await asyncio.wait([main, *lanes], return_when=asyncio.FIRST_COMPLETED)
    for task in [main, *lanes]:
        task.cancel()
    await asyncio.gather(main, *lanes, return_exceptions=True)
    for task in done:
        if not task.cancelled() and (failure := task.exception()) is not None:
            raise failure
