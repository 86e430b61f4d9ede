"""Select the offset receipts that count, and find offsets without a receipt. Pure.

Runs in `fanout` commands, the tests and the load tests. An offset receipt is a record of the attempts topic that says which
offsets a lane has handled. A micro-batch that runs again writes a receipt of the same offsets again, perhaps with other counts.
A lane that was reset, to a restored or a new checkpoint, reads the same offsets again in other ranges. In both cases only the
later receipts count: they are in force.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fanout.reconcile.evidence import HandledRange


class Effective(NamedTuple):
    """The receipts of one lane and one partition that later receipts do not wholly replace."""

    ranges: list[HandledRange]
    """Receipts in force: none of their offsets is in a later receipt in force. In the order of offsets, without overlaps."""
    partly_read_again: list[HandledRange]
    """Older receipts that share only some of their offsets with later receipts. The number of due deliveries at the other
    offsets is unknown."""


class Gap(NamedTuple):
    """A run of offsets without a receipt, from `first` to `last`, both included."""

    first: int
    last: int


def effective(receipts: Sequence[HandledRange]) -> Effective:
    """Return the receipts that later receipts do not wholly replace.

    `receipts` are of one lane and one partition, in the order in which they were written. Later receipts replace an older
    receipt if they contain its first and its last offset. If the later receipts together have another number of due deliveries
    or of rejected records than the older receipt, `surplus_allowed` of each later receipt grows by the older receipt's due
    deliveries: the older run may have ended deliveries that the later runs did not find due.
    """
    ranges: list[HandledRange] = []
    ends: list[int] = []  # negative: newest receipts usually have the highest offsets, and so are appended at the end
    partly_read_again: list[HandledRange] = []
    for handled in reversed(receipts):
        # The ranges from `low` to before `high` overlap with this receipt.
        low = bisect.bisect_left(ends, -handled.last)
        while low > 0 and ranges[low - 1].first <= handled.last:
            low -= 1
        high = low
        while high < len(ranges) and ranges[high].last >= handled.first:
            high += 1
        later = ranges[low:high]
        if not later:
            ranges.insert(low, handled)
            ends.insert(low, -handled.last)
        elif later[-1].first <= handled.first and later[0].last >= handled.last:
            if (handled.due, handled.rejected) != (sum(other.due for other in later), sum(other.rejected for other in later)):
                ranges[low:high] = [other._replace(surplus_allowed=other.surplus_allowed + handled.due) for other in later]
        else:
            partly_read_again.append(handled)
    return Effective(ranges[::-1], partly_read_again)


def gaps(receipts: Effective, begin: int) -> Iterator[Gap]:
    """Yield the runs of offsets, from `begin` to the last receipt, that no receipt in `receipts` covers."""
    at = begin
    for handled in sorted([*receipts.ranges, *receipts.partly_read_again]):
        if handled.first > at:
            yield Gap(at, handled.first - 1)
        at = max(at, handled.last + 1)
