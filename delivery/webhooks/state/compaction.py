"""Decide which segments of a state are merged.

Runs in the executors. Pure.

A segment is immutable. Many segments, or segments of which most has been removed, are merged into new ones. So an item that
waits long is rewritten a few times, by the logarithm of its wait. The state takes about twice the size of its backlog at most.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

MAX_RUNS = 4
"""Runs of one compaction level before they are merged. Merging costs one rewrite of the backlog whenever its wait quadruples.
It saves two thirds of the reads when items are removed."""
MIN_MERGED_SIZE = 64 * 1024
"""Bytes. Fewer are not merged only because most of their items were removed."""
MAX_MERGED_SIZE = 64 * 1024 * 1024
"""Bytes. More are not read at once for a merge. A larger backlog stays in more segments. The space of a removed item is then
freed when the rest of its segment was removed too."""


class StoredSegment(msgspec.Struct, array_like=True, gc=False):
    """The index entry of one segment of the state."""

    run: int
    """Lowest number of the segments that were written together with this one."""
    level: int
    """Compaction level: the number of merges of the content. No older segment has a lower one: the shard merges the newest."""
    size: int
    live: int
    """Bytes of `size` that were not removed."""


def pick_compaction(segments: Mapping[int, StoredSegment]) -> tuple[list[int], int]:
    """Return the segments to merge, always the newest ones up to some level, and the level of the result.

    1. A level has MAX_RUNS runs: it and the levels below it become one run of the next level.
    2. Most of a level and the levels below it was removed: the rest becomes one run of the same level.

    A merge of more than MAX_MERGED_SIZE is not made. Then the levels below are examined.
    """
    for level in sorted({segment.level for segment in segments.values()}, reverse=True):
        newest = [number for number, segment in segments.items() if segment.level <= level]
        size, live = sum(segments[number].size for number in newest), sum(segments[number].live for number in newest)
        if live > MAX_MERGED_SIZE:
            continue
        if len({segment.run for segment in segments.values() if segment.level == level}) >= MAX_RUNS:
            return newest, level + 1
        if size >= MIN_MERGED_SIZE and 2 * live < size:
            return newest, level
    return [], 0
