"""Split a sequence into lists of bounded size. Runs in the executors, in the archive and in the commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def chunks(items: Iterable[T], size_of: Callable[[T], int], max_bytes: int) -> Iterator[list[T]]:
    """Yield `items` in order, in lists of at most `max_bytes` by `size_of`. A larger item gets a list of its own."""
    chunk: list[T] = []
    size = 0
    for item in items:
        more = size_of(item)
        if chunk and size + more > max_bytes:
            yield chunk
            chunk, size = [], 0
        chunk.append(item)
        size += more
    if chunk:
        yield chunk
