"""Count due events that have the source and id of an earlier event, and another payload.

Runs in the executors, and in the archive for replays. Unless `source.reused_ids` is `told_apart`, both events have the same
`webhook-id`, or within batches the same source and id. So a receiver ignores the second as a repeat. The count is an estimate:

1. The count misses events: each lane of a worker has a memory of its own, which is bounded and ends with the worker.
2. The count has an event twice when a micro-batch runs again in the same worker, or when the producer repeats the event.

`source.reused_ids` decides what happens to the second event:

1. `passed`: it is delivered and counted.
2. `rejected`: it is rejected, and not counted, if this module remembers the earlier event and both are of one tenant. Otherwise
   it is delivered and counted.
3. `told_apart`: it is delivered with a `webhook-id` that depends on the payload, and counted.
"""

from __future__ import annotations

import logging

from delivery.model import Event

log = logging.getLogger(__name__)

MAX_IDS = 16_384
"""Most ids in one generation. A lane of a worker remembers the newest generation and the one before, at most 6 MB together.
With `source.reused_ids = "rejected"` the memory takes twice as much. Older ids are forgotten."""
WITH_SAME_WEBHOOK_ID = "with the same webhook-id, in a batch with the same source and id, and receivers ignore it as a repeat"
WITH_OWN_WEBHOOK_ID = "with another webhook-id, and only receivers that compare source and id ignore it as a repeat"
"""WITH_SAME_WEBHOOK_ID and WITH_OWN_WEBHOOK_ID are the two variants in the log line about a reused id. WITH_OWN_WEBHOOK_ID is
for the setting `source.reused_ids = "told_apart"`."""


class _Memory:
    """Remember, for each of the last keys, a digest of the first payload. A key is the hash of an event's identity.

    Keys and digests are Python's own hashes, which are used in this process only. Two hashes of 64 bits are hardly ever equal
    by chance. A digest covers the whole payload, because two payloads may differ in the middle only.

    No faster digest is installed. For a payload of 4 KiB, Python's hash took 1.0 µs, CRC-32 1.3 µs and BLAKE2b 7.3 µs. Python's
    hash took 0.2 µs for 300 bytes, and 69 µs for 256 KiB. All times were measured on 2026-11-26, on a machine 2.8 times slower
    than the machine of the performance budgets.
    """

    __slots__ = ("_max_ids", "_newer", "_older")

    def __init__(self, max_ids: int) -> None:
        self._max_ids = max_ids
        self._newer: dict[int, int] = {}
        self._older: dict[int, int] = {}

    def first_digest(self, key: int, digest: int) -> int:
        """Return the digest of the first payload under a key. A new key is remembered with `digest`, which is returned.

        The digest of the first payload stays. So a micro-batch that runs again decides the same about each event.
        """
        newer = self._newer
        first = newer.setdefault(key, self._older.get(key, digest))
        if len(newer) >= self._max_ids:
            self._older, self._newer = newer, {}
        return first

    def __len__(self) -> int:
        return len(self._newer) + len(self._older)


class SeenIds:
    """Remember the ids of the last events of one lane in a worker, each with a digest of the first payload. Not thread-safe.

    There are two memories: `add` remembers by source and id, `is_reused_by_its_tenant` also by tenant. Each memory has two
    generations of at most `max_ids` ids. When the newer generation is full, the older one is forgotten.
    """

    __slots__ = ("_all", "_by_tenant", "_reused")

    def __init__(self, *, max_ids: int = MAX_IDS) -> None:
        self._all = _Memory(max_ids)
        self._by_tenant = _Memory(max_ids)
        self._reused = 0

    def add(self, event: Event) -> None:
        """Remember an event; count it if an earlier event has its source and id, and another payload."""
        digest = hash(event.data)
        if self._all.first_digest(hash((event.source, event.event_id)), digest) != digest:
            self._count(event)

    def is_reused_by_its_tenant(self, event: Event) -> bool:
        """Remember an event; return True if an earlier event of its tenant has its source and id, and another payload.

        Other tenants do not matter: a tenant must not be able to have the events of another tenant rejected.
        """
        digest = hash(event.data)
        return self._by_tenant.first_digest(hash((event.tenant_id, event.source, event.event_id)), digest) != digest

    def drain(self) -> int:
        """Return the number of counted events since the last call."""
        reused, self._reused = self._reused, 0
        return reused

    def _count(self, event: Event) -> None:
        if not self._reused:  # at most one line for each task: a producer may repeat an id in every event
            log.warning(
                "an event has the source and id of an earlier event, and another payload: it is delivered %s. Tell the "
                "producer to give each event its own id",
                WITH_OWN_WEBHOOK_ID if event.payload_digest else WITH_SAME_WEBHOOK_ID,
                extra={"topic": event.record.topic, "partition": event.record.partition, "offset": event.record.offset},
            )
        self._reused += 1
