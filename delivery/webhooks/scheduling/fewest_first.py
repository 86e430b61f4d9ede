"""Keep a line in which the items that hold the fewest slots come first. A slot is room for one request in flight. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)
"""The type of the items in the line."""


class FewestFirst(Generic[Item]):
    """A line of items: those with the fewest held slots come first. Items with equally many slots keep their order of arrival.

    The length of the line is the number of items. Each method takes about the same time for a long line as for a short line:
    the items are grouped by their number of slots, and there are few different numbers.
    """

    def __init__(self) -> None:
        self._held: dict[Item, int] = {}
        self._lines: dict[int, dict[Item, None]] = {}
        """The items by the number of slots that they hold."""

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, item: Item) -> bool:
        return item in self._held

    def put(self, item: Item, held: int) -> None:
        """Add an item that holds `held` slots, behind all items with as many. An item that is in the line already moves."""
        self.discard(item)
        self._held[item] = held
        self._lines.setdefault(held, {})[item] = None

    def discard(self, item: Item) -> None:
        """Take an item out of the line, if it is there."""
        if (held := self._held.pop(item, None)) is None:
            return
        line = self._lines[held]
        del line[item]
        if not line:
            del self._lines[held]

    def first(self) -> tuple[Item, int]:
        """Return the first item, and the number of slots that it holds. The line must not be empty."""
        held = min(self._lines)
        return next(iter(self._lines[held])), held

    def clear(self) -> None:
        """Take all items out of the line."""
        self._held.clear()
        self._lines.clear()
