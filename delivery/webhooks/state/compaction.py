"""Decide which segments of a state are written together anew.

Runs in the executors. Must not import pyspark or psycopg. Pure.

A segment is written once. Those that are many, or mostly empty, are written together: what waits long is written again a few
times, by the logarithm of its wait, and what is kept is at most about twice what waits.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

MAX_RUNS = 4
"""So many times segments are written before they are written together: three times fewer to read when something leaves, for one
more writing of what waits whenever its wait quadruples."""
MIN_MERGED_SIZE = 64 * 1024
"""Less is not worth merging only because most of it has left."""
MAX_MERGED_SIZE = 64 * 1024 * 1024
"""More is not read at once to be merged. What waits beyond this stands in more segments, and what has left of it takes room
until the rest has left too."""


class Stored(msgspec.Struct, array_like=True, gc=False):
    """One segment of the state."""

    run: int
    """The first number of those that were written together with it."""
    generation: int
    """How often its content has been merged. Never more than that of an older segment: what is merged is always the newest."""
    size: int
    live: int
    """How much of `size` still waits."""


def to_merge(segments: Mapping[int, Stored]) -> tuple[list[int], int]:
    """Return the segments that are written together anew, the newest ones up to some generation, and the generation to come.

    1. A generation has been written MAX_RUNS times: it and the younger ones become one run of the next generation.
    2. Of a generation and the younger ones most has left: what has not becomes one run of the same generation.

    Neither where that is more than MAX_MERGED_SIZE; then the younger ones are looked at.
    """
    for generation in sorted({one.generation for one in segments.values()}, reverse=True):
        newest = [number for number, one in segments.items() if one.generation <= generation]
        size, live = sum(segments[number].size for number in newest), sum(segments[number].live for number in newest)
        if live > MAX_MERGED_SIZE:
            continue
        if len({one.run for one in segments.values() if one.generation == generation}) >= MAX_RUNS:
            return newest, generation + 1
        if size >= MIN_MERGED_SIZE and 2 * live < size:
            return newest, generation
    return [], 0
