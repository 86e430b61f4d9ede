"""Find, among many filters, those that a document may match, without evaluating each filter.

Runs wherever events are matched with subscriptions. Pure. A document has an event's attributes, and its payload below `data`.

The filter `{"status": ["paid", "sent"]}` matches no document with another status. So the index has the filter under two keys,
and each value of a document is looked up. The cost depends on the document and on the number of candidates, and hardly on the
number of filters. A key has a path in the document, and is one of

* a text, its start or its end, with or without regard to case;
* a number, a boolean or null;
* a range of numbers, for `numeric`;
* any string, number, boolean or null, for `anything-but`, `cidr`, `{"exists": true}` and `{"wildcard": "*x*"}`.

A pattern with several fields is kept under the keys of one field: the field whose keys have the fewest other filters. `$or`
counts as one field, with the keys of all its branches. A filter that can match by missing fields alone has no key, and is
always a candidate.

The index only prunes. If a filter has keys, a document that fulfils none of these keys cannot match the filter. For a
candidate, the compiled filter decides. The keys of a filter are its access predicate, as in "Filtering Algorithms and
Implementation for Very Fast Publish/Subscribe Systems" (SIGMOD 2001).
"""

from __future__ import annotations

import math
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from delivery.webhooks.filters import event_pattern, operators
from delivery.webhooks.filters.intervals import Range, Ranges

Path: TypeAlias = tuple[str, ...]
Item = TypeVar("Item")


class FilterIndex(Generic[Item]):
    """Find the items whose filter pattern a document may match. An item is any hashable object. Immutable.

    `event_pattern.compile_pattern` must accept each pattern.
    """

    __slots__ = ("_always", "_root")

    def __init__(self, patterns: Iterable[tuple[Mapping[str, Any], Item]]) -> None:
        self._always: list[Item] = []
        self._root: _PathNode[Item] = _PathNode()
        required = [(_conditions(pattern, ()), item) for pattern, item in patterns]
        found: list[tuple[_Part | _Literal | _Present, Item]] = []
        weigh = _weight_function(key for conditions, _ in required for key in _keys(conditions))
        ranges: defaultdict[Path, list[tuple[Range, Item]]] = defaultdict(list)
        for conditions, item in required:
            weight, keys = _lightest(conditions, weigh)
            if weight == math.inf:
                self._always.append(item)
                continue
            for key in dict.fromkeys(keys):
                if isinstance(key, _InRange):
                    ranges[key.path].append((key.range, item))
                else:
                    found.append((key, item))
        for key, item in sorted(found, key=_by_length):
            self._root.at(key.path).add(key, item)
        for path, items in ranges.items():
            self._root.at(path).ranges = Ranges(items)

    def candidates(self, document: Mapping[str, Any]) -> set[Item]:
        """Return the items of all patterns that `document` matches, and possibly items of other patterns."""
        found: _Found[Item] = {id(self._always): self._always}
        self._root.find(document, found)
        return set().union(*found.values())


# --- keys of a pattern ----------------------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """A key: the slice from `start` to `end` of a text at `path` equals `text`.

    If `start` is None, the slice begins where the text does. If `end` is None, the slice ends where the text does. With
    `is_folded`, the text is case-folded first, and the slice is taken from the folded text.
    """

    path: Path
    is_folded: bool
    start: int | None
    end: int | None
    text: str


class _Literal(NamedTuple):
    """A key: the value at `path` is no string, and equals `value`. `kind` is its type (numbers: float), so `true` is not 1."""

    path: Path
    kind: type
    value: float | bool | None


class _InRange(NamedTuple):
    """A key: the number at `path` is in `range`."""

    path: Path
    range: Range


class _Present(NamedTuple):
    """A key: there is a string, number, boolean or null at `path`."""

    path: Path


_Key: TypeAlias = _Part | _Literal | _InRange | _Present
_Conditions: TypeAlias = "list[list[_Key | _Conditions]]"
"""Conditions of a pattern, each a list of alternatives. A document that matches fulfils at least one alternative of each
condition. An alternative is a key, or a list of conditions in turn: those of a branch of `$or`, or the start and the end of a
wildcard."""


def _conditions(pattern: Mapping[str, Any], path: Path) -> _Conditions:
    found: _Conditions = []
    for name, wanted in pattern.items():
        if name == "$or":
            found.append([_conditions(branch, path) for branch in wanted])
        elif isinstance(wanted, dict):
            found += _conditions(wanted, (*path, name))
        elif {"exists": False} not in wanted:
            found.append([_alternative(accepted, (*path, name)) for accepted in wanted])
    return found


def _alternative(accepted: Any, path: Path) -> _Key | _Conditions:
    match accepted:
        case str():
            return _Part(path, False, None, None, accepted)
        case int() | float() | None:
            return _literal(path, accepted)
        case {"prefix": operand}:
            return _start(path, operand)
        case {"suffix": operand}:
            return _end(path, operand)
        case {"equals-ignore-case": text}:
            return _Part(path, True, None, None, text.casefold())
        case {"wildcard": wildcard}:
            first, *rest = operators.pieces(wildcard)
            return [[_start(path, first)], [_end(path, rest[-1])]] if rest else _Part(path, False, None, None, first)
        case {"numeric": ["=", number]}:
            return _literal(path, number)
        case {"numeric": comparisons}:
            return _InRange(path, operators.bounds(comparisons))
    return _Present(path)


def _literal(path: Path, value: float | None) -> _Literal:
    if value is None or isinstance(value, bool):
        return _Literal(path, type(value), value)
    return _Literal(path, float, operators.as_in_events(value))


def _start(path: Path, operand: str | Mapping[str, str]) -> _Key:
    text, is_folded = _spelling(operand)
    return _Part(path, is_folded, None, len(text), text) if text else _Present(path)


def _end(path: Path, operand: str | Mapping[str, str]) -> _Key:
    text, is_folded = _spelling(operand)
    return _Part(path, is_folded, -len(text), None, text) if text else _Present(path)


def _spelling(operand: str | Mapping[str, str]) -> tuple[str, bool]:
    return (operand, False) if isinstance(operand, str) else (operand["equals-ignore-case"].casefold(), True)


# --- choice of the keys of a filter ---------------------------------------------------------------------------------------


def _keys(conditions: _Conditions) -> Iterator[_Key]:
    for alternatives in conditions:
        for alternative in alternatives:
            if isinstance(alternative, list):
                yield from _keys(alternative)
            else:
                yield alternative


def _weight_function(keys: Iterable[_Key]) -> Callable[[_Key], float]:
    """Return a function from a key to its weight: how often the key occurs in `keys`, the keys of all filters.

    The weight of a range is half the number of ranges at its path, as if a document's number were in half of these ranges.
    """
    uses: Counter[_Key | Path] = Counter(key.path if isinstance(key, _InRange) else key for key in keys)
    return lambda key: uses[key.path] / 2 if isinstance(key, _InRange) else uses[key]


def _lightest(conditions: _Conditions, weigh: Callable[[_Key], float]) -> tuple[float, list[_Key]]:
    """Return the weight and the keys of the condition with the least weight. Without a condition the weight is infinite."""
    return min(
        (_together(alternatives, weigh) for alternatives in conditions), key=operator.itemgetter(0), default=(math.inf, [])
    )


def _together(alternatives: list[_Key | _Conditions], weigh: Callable[[_Key], float]) -> tuple[float, list[_Key]]:
    """Return the total weight of one condition's alternatives, and their keys.

    A weight says how many filters use a key (`_weight_function`). A branch of `$or`, or a wildcard, has the weight and the keys
    of its lightest condition.
    """
    total, keys = 0.0, []
    for alternative in alternatives:
        if isinstance(alternative, list):
            weight, of_branch = _lightest(alternative, weigh)
            keys += of_branch
        else:
            weight = weigh(alternative)
            keys.append(alternative)
        total += weight
    return total, keys


# --- look-up of the keys --------------------------------------------------------------------------------------------------


_ByPart: TypeAlias = defaultdict[tuple[int | None, int | None], dict[str, list[Item]]]
_Found: TypeAlias = dict[int, list[Item]]
"""The lists of items that were found, each once, by their `id`. Many elements of one array may lead to the same list."""


def _by_length(keyed: tuple[_Part | _Literal | _Present, Any]) -> int:
    """Return the length of the slice of a key. 0: the key has no slice of a text."""
    key = keyed[0]
    return abs(key.start or key.end or 0) if isinstance(key, _Part) else 0


class _PathNode(Generic[Item]):
    """The items with a key at one path of a document, and the nodes of the paths below.

    Keys must be added in the order of `_by_length`. A look-up ends at the first slice that is longer than the text.
    """

    __slots__ = ("_below", "_literals", "_parts", "_present", "ranges")

    def __init__(self) -> None:
        self._below: defaultdict[str, _PathNode[Item]] = defaultdict(_PathNode)
        self._present: list[Item] = []
        self._literals: defaultdict[tuple[type, Any], list[Item]] = defaultdict(list)
        self._parts: defaultdict[bool, _ByPart[Item]] = defaultdict(lambda: defaultdict(dict))
        self.ranges: Ranges[Item] = Ranges(())

    def at(self, path: Path) -> _PathNode[Item]:
        node = self
        for name in path:
            node = node._below[name]
        return node

    def add(self, key: _Part | _Literal | _Present, item: Item) -> None:
        if isinstance(key, _Part):
            self._parts[key.is_folded][key.start, key.end].setdefault(key.text, []).append(item)
        elif isinstance(key, _Literal):
            self._literals[key.kind, key.value].append(item)
        else:
            self._present.append(item)

    def find(self, value: Any, found: _Found[Item]) -> None:
        """Add to `found` the lists of items with a key that `value`, one of its fields or one of its elements fulfils."""
        if isinstance(value, dict):
            for name in self._below.keys() & value.keys():  # Python iterates over the smaller one
                self._below[name].find(value[name], found)
        elif isinstance(value, list):
            for members in event_pattern.arrays(value):
                for member in members:
                    if type(member) is not list:
                        self.find(member, found)
        else:
            self._find_scalar(value, found)

    def _find_scalar(self, value: Any, found: _Found[Item]) -> None:
        found[id(self._present)] = self._present
        kind = type(value)
        if kind is str:
            for is_folded, by_part in self._parts.items():
                text = value.casefold() if is_folded else value
                for (start, end), by_text in by_part.items():
                    if abs(start or end or 0) > len(text):
                        break
                    if (items := by_text.get(text[start:end])) is not None:
                        found[id(items)] = items
            return
        if kind is int or kind is float:
            for items in self.ranges.containing(value):
                found[id(items)] = items
            kind = float
        if (items := self._literals.get((kind, value))) is not None:
            found[id(items)] = items
