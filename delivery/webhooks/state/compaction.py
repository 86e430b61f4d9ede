"""Decide which segments of a shard's state are merged (compaction, as in an LSM tree).

Runs in the executors. Pure.

A shard is one key of Spark's state. A segment is immutable: one value of the state, with some of the shard's items. Many
segments, or segments from which most items were removed, are merged into new segments. An item is rewritten once more each time
its wait quadruples. The state of a shard takes at most about twice the bytes of its waiting items, or `min_merged_size` if that
is more. The state may take more if the waiting items have more than `max_merged_size`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeBounds:
    """The bounds of a merge."""

    max_runs: int = 4
    """Number of runs of one compaction level at which these runs are merged. A run: the segments that a shard wrote in one
    micro-batch. Merging rewrites a waiting item whenever its wait quadruples, and saves two thirds of the reads when items are
    removed."""
    min_merged_size: int = 64 * 1024
    """Minimum of bytes of segments that are merged because most of their items were removed."""
    max_merged_size: int = 64 * 1024 * 1024
    """Maximum of bytes of items that one merge writes again and has in memory. A larger backlog stays in more segments. The
    space of a removed item is then freed when all other items of its segment were removed too."""


BOUNDS = MergeBounds()
"""The bounds of both lanes with state."""


class StoredSegment(msgspec.Struct, array_like=True, gc=False):
    """A segment in the index of the state, without its content."""

    run: int
    """The segment's run: the segments that the shard wrote in one micro-batch. The number is the lowest segment number of the
    run."""
    level: int
    """Compaction level. When `max_runs` runs of a level are merged, the new segments get the next level. Merges take the newest
    segments, so no older segment has a lower level."""
    size: int
    """Bytes of the segment's items when they were written."""
    live: int
    """Bytes of the items that were not removed since."""


def pick_compaction(segments: Mapping[int, StoredSegment], bounds: MergeBounds = BOUNDS) -> tuple[list[int], int]:
    """Return the numbers of the segments to merge, and the level of the new segments. No numbers: nothing is to be merged.

    The levels are examined from the highest to the lowest. The segments of a level and of all lower levels, which are the
    newest segments, are merged in two cases:
    1. The level has `max_runs` runs or more. The segments become one run of the next level.
    2. The segments had `min_merged_size` bytes or more when they were written, and more than half of these bytes were removed.
       The remaining items become one run of the same level.

    A merge that would write more than `max_merged_size` is not made.
    """
    for level in sorted({segment.level for segment in segments.values()}, reverse=True):
        newest = [number for number, segment in segments.items() if segment.level <= level]
        size, live = sum(segments[number].size for number in newest), sum(segments[number].live for number in newest)
        if live > bounds.max_merged_size:
            continue
        if len({segment.run for segment in segments.values() if segment.level == level}) >= bounds.max_runs:
            return newest, level + 1
        if size >= bounds.min_merged_size and 2 * live < size:
            return newest, level
    return [], 0
