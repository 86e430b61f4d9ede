"""Keep the partitions that wait for a schema in a long task, and find out when their records can be read.

Runs in the event loop of a worker, for the real-time lane. In the other lanes a task ends soon, and the driver keeps the paused
topics (delivery.stages.checkpoint.paused_topics).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from delivery.model import Record

ASK_S = 3.0
"""Seconds between two checks whether a record can be read. After a failure, a decoder does not ask the schema registry sooner
either (decoder.AWAY_S)."""
Place = tuple[str, int]
"""A topic and a partition."""


class PausedPartitions:
    """The partitions whose records wait for a schema. A partition stays paused until the task ends.

    `can_read` returns False if the schema of a record cannot be read now.
    """

    def __init__(self, can_read: Callable[[Record], Awaitable[bool]], *, ask_s: float = ASK_S) -> None:
        self._can_read, self._ask_s = can_read, ask_s
        self._first: dict[Place, Record] = {}
        self._asking: asyncio.Task[None] | None = None
        self.are_readable = False
        """True if the first record of at least one paused partition can be read now."""

    @property
    def places(self) -> frozenset[Place]:
        """The paused partitions. Read in any thread."""
        return frozenset(self._first.copy())

    def add(self, records: Iterable[Record], offsets: Mapping[Place, int]) -> None:
        """Pause the partitions in `offsets`, which has the offset of each partition's first waiting record.

        `records` must contain these first records.
        """
        for record in records:
            place = (record.topic, record.partition)
            if offsets.get(place) == record.offset:
                self._first.setdefault(place, record)
        if offsets and self._asking is None:
            self._asking = asyncio.ensure_future(self._ask())

    def without(self, records: Sequence[Record]) -> Sequence[Record]:
        """Return those of `records` whose partition is not paused, in their order. Called in any thread."""
        if not self._first:
            return records
        return [record for record in records if (record.topic, record.partition) not in self._first]

    def close(self) -> None:
        """Stop checking whether records can be read. Called at the end of the task."""
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self) -> None:
        while not self.are_readable:
            await asyncio.sleep(self._ask_s)
            for record in list(self._first.values()):
                self.are_readable = self.are_readable or await self._can_read(record)
