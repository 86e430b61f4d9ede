"""Find which of many ranges contain a number, or whether any range does, without testing each range.

Runs wherever events are matched with subscriptions. Imports the standard library only. Pure.

The sorted bounds of all ranges divide the numbers into slots: one for each bound, and one for each gap. A range covers
consecutive slots, and is stored at the fewest nodes of a segment tree that cover them. A number is in one slot. The ranges that
contain the number are at the slot's own node and at the nodes above this node. So a search takes as many steps as the logarithm
of the number of bounds. Whether any range contains a number is known from the slot alone.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")


class Range(NamedTuple):
    """A range of numbers. `lower` None: there is no lower bound. `upper` None: there is no upper bound."""

    lower: float | None
    upper: float | None
    has_lower: bool = False
    """True if the range includes its lower bound."""
    has_upper: bool = False
    """True if the range includes its upper bound."""


class Ranges(Generic[Item]):
    """Find the items whose range contains a number. Made from pairs of a range and an item (any object). Immutable."""

    __slots__ = ("_at_node", "_slots")

    def __init__(self, items: Iterable[tuple[Range, Item]]) -> None:
        items = list(items)
        self._slots = _Slots(range_ for range_, _ in items)
        self._at_node: defaultdict[int, list[Item]] = defaultdict(list)
        for range_, item in items:
            for node in self._nodes(range_):
                self._at_node[node].append(item)

    def containing(self, number: float) -> Iterator[list[Item]]:
        """Yield lists, which together have the items whose range contains `number`."""
        node = self._slots.of(number) + self._slots.count
        while node:
            if node in self._at_node:
                yield self._at_node[node]
            node >>= 1

    def _nodes(self, range_: Range) -> Iterator[int]:
        covered = self._slots.covered_by(range_)
        first, end = self._slots.count + covered.start, self._slots.count + covered.stop
        while first < end:
            if first & 1:
                yield first
                first += 1
            if end & 1:
                end -= 1
                yield end
            first >>= 1
            end >>= 1


class RangeUnion:
    """All numbers of some ranges. `number in union` costs nearly the same for many ranges as for few. Immutable."""

    __slots__ = ("_covered", "_slots")

    def __init__(self, ranges: Iterable[Range]) -> None:
        ranges = list(ranges)
        self._slots = _Slots(ranges)
        self._covered = frozenset(slot for range_ in ranges for slot in self._slots.covered_by(range_))

    def __contains__(self, number: float) -> bool:
        return self._slots.of(number) in self._covered


class _Slots:
    """Divide the numbers into slots by the bounds of some ranges. Slots count from 0, from the lowest numbers on."""

    __slots__ = ("_bounds", "count")

    def __init__(self, ranges: Iterable[Range]) -> None:
        self._bounds = sorted({bound for range_ in ranges for bound in range_[:2] if bound is not None})
        self.count = 2 * len(self._bounds) + 1

    def of(self, number: float) -> int:
        return bisect.bisect_left(self._bounds, number) + bisect.bisect_right(self._bounds, number)

    def covered_by(self, range_: Range) -> range:
        """Return the slots of a range, which must be one of the ranges from which the slots were made."""
        first = 0 if range_.lower is None else self.of(range_.lower) + (not range_.has_lower)
        end = self.count if range_.upper is None else self.of(range_.upper) + range_.has_upper
        return range(first, end)
