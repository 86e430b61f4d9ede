"""How much of a list goes into one answer: in bytes, whatever the number of its items. Pure.

Runs wherever lists are read. Forty dead letters of 1 MB each are nothing that a poller should have to hold, nor the API for all
of its askers.
"""

from __future__ import annotations

from collections.abc import Iterable

MAX_BYTES = 1024 * 1024
"""Of the items of one answer, less the commas between them."""


def count(sizes: Iterable[int], *, held: int = 0) -> int:
    """Return how many of the items of these sizes, in bytes, fit into an answer that holds `held` bytes already.

    At least one where it holds nothing yet, however large: who reads on must get on.
    """
    fitting = 0
    for size in sizes:
        held += size
        if held > MAX_BYTES and held != size:
            break
        fitting += 1
    return fitting
