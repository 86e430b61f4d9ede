"""Bound the answers to list requests in bytes, whatever the number of items. Pure.

Runs in the API. The bound keeps pollers and the API from holding forty dead letters of 1 MB each in memory.
"""

from __future__ import annotations

from collections.abc import Iterable

MAX_BYTES = 1024 * 1024
"""Maximum bytes of the items of one answer, without the commas between them. A single larger item is an answer of its own."""


def count(sizes: Iterable[int], *, held: int = 0) -> int:
    """Return the number of leading items that fit into an answer which has `held` bytes already. `sizes` are their bytes.

    An empty answer takes at least one item, however large, so that paging always advances.
    """
    fitting = 0
    for size in sizes:
        held += size
        if held > MAX_BYTES and held != size:
            break
        fitting += 1
    return fitting
