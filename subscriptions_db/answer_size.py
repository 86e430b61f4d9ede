"""Bound the bytes of answers with several items, such as pages and leased dead letters. Pure.

Runs in the API. Each operation bounds the number of items too. Without the bound of bytes, a page of 100 dead letters of 1 MB
each would take 100 MB of memory at both ends.
"""

from __future__ import annotations

from collections.abc import Iterable

MAX_BYTES = 1024 * 1024
"""Maximum bytes of the items of one answer, without the commas between them. A single larger item is an answer of its own."""


def count(sizes: Iterable[int], *, held: int = 0) -> int:
    """Return how many of the first items fit into an answer that has `held` bytes already. `sizes` has the bytes of each item.

    An answer that has no bytes yet takes at least one item, of any size, so that paging always advances.
    """
    fitting = 0
    for size in sizes:
        held += size
        if held > MAX_BYTES and held != size:
            break
        fitting += 1
    return fitting
