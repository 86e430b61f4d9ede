"""Match events by their content: compile an event pattern once, then evaluate it for each event.

Runs in the executors, the archive, the API, the commands and the driver. Pure.

Patterns have the syntax of Amazon EventBridge:

    {"data": {"status": ["paid", "sent"], "amount": [{"numeric": [">=", 100]}], "test": [{"exists": false}]}}

Every field that the pattern names must match. A field matches when one alternative of its list does. `$or` has two or more
objects (branches). At least one branch must match, and so must the other fields of the object with the `$or`.
`delivery.webhooks.filters.operators` defines the alternatives. The rules for missing values and arrays are:

* A field has a value when it is a string, number, boolean or null. An object is not a value, nor is an empty array. Only
  `{"exists": false}` matches a field without a value. `anything-but` needs a value.
* A field that is an array matches when one of its elements matches by a value, at any depth of nesting. A match by missing
  values alone needs all elements: if one of two elements has a `discount`, `discount` is not missing.
* Fields of one pattern object must match in the same object of an array. So a pattern for first name Ann and last name Lee
  does not match an array with Ann Ray and Bo Lee.

EventBridge differs in details, which docs/filters.md lists. The most important are:

1. A dot in a field name is a step into an object in EventBridge. In this module it is part of the name.
2. Strings that look like addresses are compared as addresses in EventBridge. In this module they are compared as text.
3. If a field is named both beside and inside `$or`, EventBridge keeps one of the two conditions. In this module both must
   match.
4. A field beside `$or` and a field inside it may name the same array. In EventBridge both must match in the same object of the
   array. In this module they may match in different objects.

A pattern becomes a tree of judges, one for each object and field: functions from a value to one of three verdicts. A judge
counts the tests of array elements, because one event may have tens of thousands of elements. An event that needs more than
MAX_ELEMENT_TESTS of one filter does not match it.
"""

from __future__ import annotations

import decimal
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from delivery import errors
from delivery.webhooks.filters import operators

MAX_PATTERN_BYTES = 16 * 1024
"""Most bytes of a pattern in the JSON that Postgres returns. Postgres returns 1e300 as an integer of 301 digits."""
MAX_DEPTH = 16
"""Most levels of nested objects in a pattern. The branches of `$or` count, operators such as `{"exists": true}` do not."""
_TOO_DEEP = f"is nested deeper than {MAX_DEPTH} objects: use fewer levels"
_SHORTEN = "leave some out, or use several subscriptions"
MAX_OPERANDS = 300
"""Most literals in a pattern. The sign of a comparison is a literal too. Each `*` counts as one more literal, because it is one
more text to search. The number bounds the work for one value of an event. `$or` needs no bound of its own: it is evaluated as
written, never expanded."""
MAX_ELEMENT_TESTS = 1_000_000
"""Most tests of array elements, for one event and one filter: about 0.25 seconds of CPU. Each element counts as many tests as
the filter has for it (`_Compiled.max_tests`). The count depends on the event and the filter only, so each process has the same
verdict."""


class _Work:
    """The tests of array elements that one evaluation of a filter may still make."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = MAX_ELEMENT_TESTS

    def spend(self, tests: int) -> None:
        """Count `tests` further tests before they are made; raise _TooCostlyError if fewer tests are left."""
        self._left -= tests
        if self._left < 0:
            raise _TooCostlyError


class _TooCostlyError(Exception):
    """An evaluation needs more than MAX_ELEMENT_TESTS."""


_Judge = Callable[[Any, _Work], int]
_NO, _BY_ABSENCE, _BY_VALUE = range(3)
"""Verdicts of a judge: no match, a match by missing fields only, a match by a value. The order matters: alternatives, and the
fields of an object that matches, combine by the maximum."""
_MISSING: dict[str, Any] = {}
"""Stands for a missing field: like an empty object, a missing field is not a value and has no fields."""


class _Compiled(NamedTuple):
    """A compiled part of a pattern: an object, a field, one alternative list, or the branches of `$or`."""

    judge: _Judge
    max_tests: int
    """Most tests that the judge makes for one value that is no array, or for one element of an array."""


class Filter:
    """A compiled filter pattern."""

    __slots__ = ("_judge",)

    def __init__(self, judge: _Judge) -> None:
        self._judge = judge

    def matches(self, document: Mapping[str, Any]) -> bool:
        """Return True if `document`, a parsed JSON object, matches the pattern. Never raises.

        A document that needs more than MAX_ELEMENT_TESTS does not match. A lane calls `matches` for each event of the
        subscription's types and tenants. An index of the filters (`filters.index`) may rule the filter out before.
        """
        try:
            return self._judge(document, _Work()) != _NO
        except _TooCostlyError:
            return False

    def is_too_costly(self, document: Mapping[str, Any]) -> bool:
        """Return True if `document` does not match because it needs more than MAX_ELEMENT_TESTS."""
        try:
            self._judge(document, _Work())
        except _TooCostlyError:
            return True
        return False


def compile_pattern(pattern: Mapping[str, Any]) -> Filter:
    """Return the filter of a pattern; raise FilterError if the pattern is invalid.

    The error's `path` names the invalid part of the pattern. Empty: the whole pattern is invalid.
    """
    try:
        size = len(json.dumps(_as_stored(pattern), allow_nan=False, ensure_ascii=False).encode())
    except (TypeError, ValueError):
        raise errors.FilterError(
            "", "cannot be written as JSON: replace values such as NaN, dates and half surrogate pairs by text"
        ) from None
    except RecursionError:
        raise errors.FilterError("", _TOO_DEEP) from None
    if size > MAX_PATTERN_BYTES:
        raise errors.FilterError("", f"has {size} bytes as JSON; at most {MAX_PATTERN_BYTES} are accepted: {_SHORTEN}")
    judge = _object(pattern, "", depth=1).judge
    operands = _operands(pattern)
    if operands > MAX_OPERANDS:
        raise errors.FilterError("", f"has {operands} values and asterisks; at most {MAX_OPERANDS} are accepted: {_SHORTEN}")
    return Filter(judge)


def _as_stored(value: Any) -> Any:
    """Return a JSON value with the numbers as Postgres returns them.

    Python writes numbers from 1e16 on with an exponent, and Postgres returns them as integers. Without the conversion, a
    pattern could be accepted, and exceed MAX_PATTERN_BYTES at the next read.
    """
    if isinstance(value, dict):
        return {name: _as_stored(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_as_stored(member) for member in value]
    if isinstance(value, float) and 1e16 <= abs(value) < math.inf:  # noqa: PLR2004 - see above
        return int(decimal.Decimal(repr(value)))
    return value


def _object(pattern: Any, path: str, depth: int) -> _Compiled:
    """Return the judge of an object in a pattern; raise FilterError if the object is invalid.

    A document must match each field of the object. If there is an `$or`, the document must also match one of its branches.
    """
    if not isinstance(pattern, dict) or not pattern:
        raise errors.FilterError(path, 'must be an object with at least one field: {"data": {"status": ["paid"]}}')
    if depth > MAX_DEPTH:
        raise errors.FilterError(path, _TOO_DEEP)
    if any(not isinstance(name, str) for name in pattern):  # YAML reads `1`, `true` and `~` as other types
        raise errors.FilterError(path, 'has a field name that is no text: write it in quotes, such as "1" or "true"')
    parts = {
        name: _field(wanted, f"{path}.{name}" if path else name, depth) for name, wanted in pattern.items() if name != "$or"
    }
    fields = [(name, part.judge) for name, part in parts.items()]
    either = _either(pattern["$or"], f"{path}.$or" if path else "$or", depth) if "$or" in pattern else None

    def judge(document: Mapping[str, Any], work: _Work) -> int:
        strongest = _BY_ABSENCE
        for name, judge_field in fields:
            verdict = judge_field(document.get(name, _MISSING), work)
            if verdict == _NO:
                return _NO
            strongest = max(strongest, verdict)
        if either is None:
            return strongest
        verdict = either.judge(document, work)
        return _NO if verdict == _NO else max(strongest, verdict)

    return _Compiled(judge, sum(part.max_tests for part in parts.values()) + (0 if either is None else either.max_tests))


def _either(branches: Any, path: str, depth: int) -> _Compiled:
    if not isinstance(branches, list) or len(branches) < 2:  # noqa: PLR2004 - one branch is no choice
        raise errors.FilterError(path, "must be a list of two or more objects")
    parts = [_object(branch, f"{path}[{index}]", depth + 1) for index, branch in enumerate(branches)]

    def judge(document: Mapping[str, Any], work: _Work) -> int:
        best = _NO
        for branch in parts:
            best = max(best, branch.judge(document, work))
            if best == _BY_VALUE:
                break
        return best

    return _Compiled(judge, sum(1 + branch.max_tests for branch in parts))


def _field(wanted: Any, path: str, depth: int) -> _Compiled:
    if isinstance(wanted, dict):
        return _nested(_object(wanted, path, depth + 1))
    if isinstance(wanted, list) and wanted:
        return _values(wanted, path)
    raise errors.FilterError(path, 'must be an object of fields, or a list of at least one value, such as ["paid"]')


def _nested(inner: _Compiled) -> _Compiled:
    """Return the judge of a field whose value should be an object, or an array of objects."""
    judge_object, inner_tests = inner
    when_missing = judge_object(_MISSING, _Work())

    def judge_one(value: Any, work: _Work) -> int:
        return judge_object(value, work) if isinstance(value, dict) else when_missing

    element = _Compiled(judge_one, 1 + inner_tests)

    def judge(value: Any, work: _Work) -> int:
        return _over_array(element, value, when_missing, work) if isinstance(value, list) else judge_one(value, work)

    return _Compiled(judge, element.max_tests)


def _values(alternatives: list[Any], path: str) -> _Compiled:
    """Return the judge of a field that the pattern compares with a list of alternatives.

    One of `alternatives` must match the field's value, or one element if the value is an array. `{"exists": false}` matches a
    field that has no value, and an array without an element that has a value. Raise FilterError for an invalid alternative.
    """
    tests, max_tests = operators.compile_alternatives(alternatives, path)
    when_missing = _BY_ABSENCE if operators.Absent in tests else _NO

    def judge_one(value: Any, _: _Work) -> int:
        kind = type(value)
        if kind is dict:
            return when_missing
        for test in tests.get(kind, ()):
            if test(value):
                return _BY_VALUE
        return _NO

    element = _Compiled(judge_one, max_tests)

    def judge(value: Any, work: _Work) -> int:
        return _over_array(element, value, when_missing, work) if type(value) is list else judge_one(value, work)

    return _Compiled(judge, max_tests)


def _over_array(element: _Compiled, array: list[Any], when_missing: int, work: _Work) -> int:
    """Return the verdict on an array, by the verdicts of `element` on its elements.

    1. The array has no element: `when_missing`, the verdict on a missing field.
    2. An element matches by a value: _BY_VALUE.
    3. All elements match by absence: _BY_ABSENCE.
    4. Otherwise: _NO.
    """
    judge, max_tests = element
    weakest = when_missing
    for members in arrays(array):
        work.spend(len(members) * max_tests)
        for member in members:
            if type(member) is list:
                continue
            verdict = judge(member, work)
            if verdict == _BY_VALUE:
                return verdict
            weakest = min(weakest, verdict)
    return weakest


def arrays(array: list[Any]) -> Iterator[list[Any]]:
    """Yield an array and all arrays in it, in any order. An array in an object of an array is not yielded.

    Without recursion, because events may nest deeply.
    """
    pending = [array]
    while pending:
        members = pending.pop()
        yield members
        pending.extend(member for member in members if type(member) is list)


def _operands(pattern: Any) -> int:
    """Return the number of literals and asterisks in a pattern."""
    if isinstance(pattern, dict):
        return sum(map(_operands, pattern.values()))
    if isinstance(pattern, list):
        return sum(map(_operands, pattern))
    return 1 + pattern.count("*") if isinstance(pattern, str) else 1
