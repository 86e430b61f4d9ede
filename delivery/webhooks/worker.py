"""What one Python worker process keeps from micro-batch to micro-batch: event loop, connections, routing index.

Runs in the executors. Must not import pyspark or psycopg. Made lazily in the process that uses it: nothing here can be
pickled or survives a fork. Spark starts one worker per core, forks it once and reuses it (`spark.python.worker.reuse`).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import uvloop

from delivery.model import Record
from delivery.webhooks import dispatch, envelope, guard, lane, retry, routing, rows, sender, transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything a worker is told, as plain values."""

    topics: rows.Topics
    guard: guard.Guard = field(default_factory=guard.Guard)
    layout: envelope.Layout = field(default_factory=envelope.Layout)
    limits: dispatch.Limits = field(default_factory=dispatch.Limits)
    quick_retry: retry.QuickRetry = field(default_factory=retry.QuickRetry)
    attempt_timeout_s: float = 2.0


class Worker:
    """One event loop on a thread of its own, and what lives in it."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._registry: routing.Registry | None = None
        # A thread, so that idle connections are closed and kept alive between micro-batches. Nothing competes for the
        # interpreter: while the loop works, the task's thread only waits.
        self._loop = uvloop.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="deliveries", daemon=True).start()
        self._sender = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()

    async def _open(self) -> sender.Sender:
        return sender.Sender(
            transport.Transport(self._plan.guard),
            self._plan.guard,
            timeout_s=self._plan.attempt_timeout_s,
            clock=time.time,
        )

    def deliver(self, records: Iterable[Record], source: routing.Source) -> lane.Results:
        """Deliver `records` by the registry in `source`; return when each has its outcome.

        Called from the task's thread, by one task at a time.
        """
        return asyncio.run_coroutine_threadsafe(self._deliver(records, source), self._loop).result()

    async def _deliver(self, records: Iterable[Record], source: routing.Source) -> lane.Results:
        dispatcher = dispatch.Dispatcher(
            self._sender, self._plan.limits, self._plan.quick_retry, clock=asyncio.get_running_loop().time
        )
        self._registry = source.registry(self._registry)
        return await lane.deliver(records, self._registry, dispatcher, self._plan.layout)


_workers: dict[Plan, Worker] = {}


def of(plan: Plan) -> Worker:
    """Return this process's worker for `plan`, made on first use."""
    worker = _workers.get(plan)
    if worker is None:
        worker = _workers[plan] = Worker(plan)
    return worker
