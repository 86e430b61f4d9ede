"""Broadcast the registry to the executors, once for the direct, batch and retry lanes.

Runs on the driver; delivery.webhooks.routing.registries.BroadcastSource travels to the executors. The driver broadcasts each
full snapshot once. Later changes travel with each micro-batch as a small delta, until there is a new full snapshot. The workers
of the real-time lane get the registry from the lane's TaskServer instead (base_packer.py).
"""

from __future__ import annotations

import threading

from pyspark import Broadcast, SparkContext

from delivery.observability import metrics
from delivery.stages.registry.job_registry import FollowedRegistry
from delivery.webhooks.routing import registries
from delivery.webhooks.routing.published_registry import Published
from delivery.webhooks.state import pickling


class Broadcaster:
    """Broadcast each full snapshot once for all lanes that call `source`. Release the broadcasts that no lane uses any more."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._broadcasts: dict[str, Broadcast[bytes]] = {}
        self._used: dict[str, str] = {}

    def source(self, published: Published, lane: str) -> registries.BroadcastSource:
        """Return the registry `published` as the source for the tasks of the lane's next micro-batch.

        Destroy the broadcasts that no lane uses any more. Micro-batches of one lane do not overlap, so no task of this lane
        still reads the lane's earlier broadcast.
        """
        base_id = published.base_id
        with self._lock:
            if base_id not in self._broadcasts:
                packed = pickling.packed(published.base)
                metrics.REGISTRY_BROADCAST_BYTES.set(len(packed))
                self._broadcasts[base_id] = self._context.broadcast(packed)
            self._used[lane] = base_id
            for unused in self._broadcasts.keys() - set(self._used.values()):
                self._broadcasts.pop(unused).destroy()
            return registries.BroadcastSource(base_id=base_id, broadcast=self._broadcasts[base_id], delta=published.changes)


class Broadcasts:
    """Give the newest registry to the micro-batches of the direct, batch and retry lanes, as a broadcast and a delta.

    For jobs with `snapshot.source` = "broadcast".
    """

    def __init__(self, follower: FollowedRegistry) -> None:
        self.follower = follower
        self.pause_reason = follower.pause_reason
        self._broadcaster: Broadcaster | None = None

    def source(self, context: SparkContext, lane: str) -> registries.BroadcastSource | None:
        """Return the source of the registry for the lane's next micro-batch. None: the job is asked to stop.

        Wait without limit until Postgres has confirmed the registry in the last `snapshot.max_age_s` seconds. Raise
        SettingsError if `database.url` is no URL, or the key ring does not fit the registry.
        """
        published = self.follower.current()
        if published is None:
            return None
        self._broadcaster = self._broadcaster or Broadcaster(context)
        return self._broadcaster.source(published, lane)
