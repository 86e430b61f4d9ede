"""Part what is written into pieces of bounded size.

Runs in the executors. Must not import pyspark or psycopg.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def of(these: Iterable[T], size_of: Callable[[T], int], max_bytes: int) -> Iterator[list[T]]:
    """Yield them in order, in lists of at most `max_bytes`, or of one that is larger alone."""
    chunk: list[T] = []
    size = 0
    for one in these:
        more = size_of(one)
        if chunk and size + more > max_bytes:
            yield chunk
            chunk, size = [], 0
        chunk.append(one)
        size += more
    if chunk:
        yield chunk
