"""Find the ranges, among many, that contain a number, without testing each range.

Runs wherever events are matched with subscriptions. Imports the standard library only. Pure.

The sorted bounds of all ranges divide the numbers into slots: one for each bound, and one for each gap. A range covers
consecutive slots, and is stored at the fewest nodes of a segment tree that cover them. A number is in one slot. The ranges that
contain the number are at the slot's own node and at the nodes above it. So a search takes as many steps as the logarithm of
the number of bounds.
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

    __slots__ = ("_at_node", "_bounds", "_slots")

    def __init__(self, items: Iterable[tuple[Range, Item]]) -> None:
        items = list(items)
        self._bounds = sorted({bound for range_, _ in items for bound in range_[:2] if bound is not None})
        self._slots = 2 * len(self._bounds) + 1
        self._at_node: defaultdict[int, list[Item]] = defaultdict(list)
        for range_, item in items:
            for node in self._nodes(range_):
                self._at_node[node].append(item)

    def containing(self, number: float) -> Iterator[list[Item]]:
        """Yield lists, which together have the items whose range contains `number`."""
        slot = bisect.bisect_left(self._bounds, number) + bisect.bisect_right(self._bounds, number)
        node = slot + self._slots
        while node:
            if node in self._at_node:
                yield self._at_node[node]
            node >>= 1

    def _nodes(self, range_: Range) -> Iterator[int]:
        first, end = self._slots, 2 * self._slots
        if range_.lower is not None:
            first += self._slot_of(range_.lower) + (not range_.has_lower)
        if range_.upper is not None:
            end = self._slots + self._slot_of(range_.upper) + range_.has_upper
        while first < end:
            if first & 1:
                yield first
                first += 1
            if end & 1:
                end -= 1
                yield end
            first >>= 1
            end >>= 1

    def _slot_of(self, bound: float) -> int:
        return 2 * bisect.bisect_left(self._bounds, bound) + 1
