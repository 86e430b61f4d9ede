"""Bound the answers to list requests in bytes, whatever the number of items. Pure.

Runs wherever lists are read. Neither a poller nor the API should have to hold forty dead letters of 1 MB each.
"""

from __future__ import annotations

from collections.abc import Iterable

MAX_BYTES = 1024 * 1024
"""Bytes of the items of one answer, without the commas between them."""


def count(sizes: Iterable[int], *, held: int = 0) -> int:
    """Return how many of the items of these sizes, in bytes, fit into an answer that has `held` bytes already.

    An empty answer takes at least one item, however large, so that paging always advances.
    """
    fitting = 0
    for size in sizes:
        held += size
        if held > MAX_BYTES and held != size:
            break
        fitting += 1
    return fitting
