"""Say which receipts count, and which offsets no receipt covers. Pure.

Runs in the command and the tests. A micro-batch that runs again says the same of the same offsets once more. A lane that was
sent back (a restored or a new checkpoint) reads in other runs what it has read before: then the later ones count.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fanout.reconcile.evidence import Run


class Counted(NamedTuple):
    """What counts of one lane's receipts of one partition."""

    runs: list[Run]
    """By offsets; none overlaps with another."""
    halves: list[Run]
    """Older ones of which a part was read again: how much of their due is in that part they do not say."""


class Gap(NamedTuple):
    """Offsets between runs."""

    first: int
    last: int


def counted(receipts: Sequence[Run]) -> Counted:
    """Return what counts of receipts in the order in which they were written."""
    runs: list[Run] = []
    ends: list[int] = []  # negative, so that the newest, which have the highest offsets as a rule, come last
    halves: list[Run] = []
    for run in reversed(receipts):
        # Of those that are taken, these two may overlap with it, and what lies between them does.
        low = bisect.bisect_left(ends, -run.last)
        while low > 0 and runs[low - 1].first <= run.last:
            low -= 1
        high = low
        while high < len(runs) and runs[high].last >= run.first:
            high += 1
        again = runs[low:high]
        if not again:
            runs.insert(low, run)
            ends.insert(low, -run.last)
        elif again[-1].first <= run.first and again[0].last >= run.last:
            if (run.due, run.rejected) != (sum(one.due for one in again), sum(one.rejected for one in again)):
                runs[low:high] = [one._replace(at_most=one.at_most + run.due) for one in again]
        else:
            halves.append(run)
    return Counted(runs[::-1], halves)


def gaps(found: Counted, begin: int) -> Iterator[Gap]:
    """Yield what lies between the runs from `begin` on. What halves cover is not in it."""
    at = begin
    for run in sorted([*found.runs, *found.halves]):
        if run.first > at:
            yield Gap(at, run.first - 1)
        at = max(at, run.last + 1)
