"""Compile one alternative of a filter pattern, such as `{"prefix": "a"}`, into tests of a single value.

Runs wherever `delivery.webhooks.filters.event_pattern` runs. Imports the standard library and `delivery.errors` only. Pure.

An alternative becomes a mapping from the type of a JSON value to the test of values of this type. A type without a test is not
accepted. So prefixes test strings only, bounds test numbers only, and `true` never equals 1.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import math
import operator
import socket
from collections.abc import Callable, Iterable, Mapping
from types import NoneType
from typing import Any

from delivery import errors

Test = Callable[[Any], bool]
Tests = Mapping[type, Test]
"""By type of a JSON value, the test of values of this type. A value of any other type is not accepted."""


class Absent:
    """Stands in `Tests` for the type of a missing value."""


SCALARS = (str, int, float, bool, NoneType)
"""Types of JSON values other than objects and arrays."""
_NUMBERS = (int, float)
_OPERATORS = ("prefix", "suffix", "equals-ignore-case", "wildcard", "anything-but", "numeric", "cidr", "exists")


def equality(literals: Iterable[Any]) -> Tests:
    """Return tests that accept a value equal to one of `literals`, by one look-up in a set. 300 and 3.0e2 are equal."""
    by_type: dict[type, set[Any]] = {}
    for literal in literals:
        if type(literal) in _NUMBERS:
            for kind in _NUMBERS:
                by_type.setdefault(kind, set()).add(as_in_events(literal))
        else:
            by_type.setdefault(type(literal), set()).add(literal)
    return {kind: frozenset(wanted).__contains__ for kind, wanted in by_type.items()}


def as_in_events(number: float) -> float:
    """Return a number of a filter as the parser of events returns it.

    An integer of up to 64 bits, with or without a sign, stays an integer. Any other number is a double. The parser rejects an
    event with a number that is larger than every double. In a filter, such a number becomes infinite.
    """
    if -(2**63) <= number < 2**64:
        return number
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def comparison(rule: Mapping[str, Any], path: str) -> Tests:
    """Return the tests of `rule`, an object with one operator such as `{"prefix": "a"}`.

    `path` is the rule's place in the pattern. Raise FilterError for any other object, and for an invalid operand.
    """
    if len(rule) != 1:
        raise errors.FilterError(path, f"has {len(rule)} operators: write one per object, and one object per alternative")
    ((name, operand),) = rule.items()
    path = f"{path}.{name}"
    if name in _AFFIXES and isinstance(operand, dict):
        return {str: _affix_ignoring_case(_AFFIXES[name], operand, path)}
    if name in _TEXTS:
        return {str: _text_test(_TEXTS[name], operand, path)}
    if name == "anything-but":
        return _anything_but(operand, path)
    if name == "numeric":
        return dict.fromkeys(_NUMBERS, _numeric(operand, path))
    if name == "cidr":
        return {str: _text_test(_in_network, operand, path)}
    if name == "exists":
        return _exists(operand, path)
    close = difflib.get_close_matches(name, _OPERATORS, n=1)
    advice = f"did you mean {close[0]}?" if close else f"known are {', '.join(_OPERATORS)}"
    raise errors.FilterError(path, f"unknown operator; {advice}")


def _text_test(build: Callable[[str], Test], operand: Any, path: str) -> Test:
    if not isinstance(operand, str):
        raise errors.FilterError(path, "must be a string")
    try:
        return build(operand)
    except errors.FilterError as exc:
        raise exc.within(path) from None


def _affix_ignoring_case(build: Callable[[str], Test], operand: Mapping[str, Any], path: str) -> Test:
    if list(operand) != ["equals-ignore-case"]:
        raise errors.FilterError(path, 'must be a string, or {"equals-ignore-case": "…"}')
    return _text_test(_ignoring_case(build), operand["equals-ignore-case"], f"{path}.equals-ignore-case")


def _equals(text: str) -> Test:
    return lambda value: bool(value == text)


def _starts_with(text: str) -> Test:
    return lambda value: bool(value.startswith(text))


def _ends_with(text: str) -> Test:
    return lambda value: bool(value.endswith(text))


def _ignoring_case(build: Callable[[str], Test]) -> Callable[[str], Test]:
    """Return a builder of tests that compare case-folded texts, so that `STRASSE` equals `straße`."""

    def build_folded(text: str) -> Test:
        test = build(text.casefold())
        return lambda value: test(value.casefold())

    return build_folded


def _fits(wildcard: str) -> Test:
    """Return the test of a wildcard; raise FilterError as `pieces` does.

    The test finds the texts between the asterisks from left to right, each at its first place. No backtracking is needed.
    """
    first, *rest = pieces(wildcard)
    if not rest:
        return _equals(first)
    *middle, last = rest

    def test(value: str) -> bool:
        if not (value.startswith(first) and value.endswith(last)):
            return False
        position, end = len(first), len(value) - len(last)
        for piece in middle:
            found = value.find(piece, position, end)
            if found < 0:
                return False
            position = found + len(piece)
        return position <= end

    return test


def pieces(wildcard: str) -> list[str]:
    r"""Return the texts between the asterisks of a wildcard, with `\*` and `\\` unescaped.

    Raise FilterError for a backslash before another character or at the end, and for two asterisks side by side.
    """
    pieces = [""]
    characters = iter(wildcard)
    for character in characters:
        if character == "*":
            pieces.append("")
            continue
        literal = next(characters, "") if character == "\\" else character
        if character == "\\" and literal not in ("*", "\\"):
            raise errors.FilterError("", r"a backslash may stand only before * or \; write \\ for a backslash")
        pieces[-1] += literal
    if "" in pieces[1:-1]:
        raise errors.FilterError("", "asterisks stand side by side: write one asterisk, which means the same")
    return pieces


def _in_network(text: str) -> Test:
    try:
        # Parsed in two parts: the whole text could also be an address without a mask, or with a mask written as an address.
        address, bits = text.split("/")
        network = ipaddress.ip_network((address, int(bits)), strict=False)
    except ValueError:
        raise errors.FilterError("", "must be a range of addresses, such as 10.0.0.0/8 or 2001:db8::/32") from None
    family = {4: socket.AF_INET, 6: socket.AF_INET6}[network.version]
    first, last = network.network_address.packed, network.broadcast_address.packed

    def test(value: str) -> bool:
        try:
            return first <= socket.inet_pton(family, value) <= last
        except (OSError, ValueError):  # not an address of this family; with a NUL in it, a ValueError
            return False

    return test


def _numeric(operand: Any, path: str) -> Test:
    """Return the test of a number by one comparison, or by a lower and an upper bound; raise FilterError for other operands."""
    if not isinstance(operand, list) or len(operand) not in (2, 4):
        raise errors.FilterError(path, 'must be a comparison, ["<", 10], or a range, [">", 0, "<=", 5]')
    symbols, bounds = operand[::2], operand[1::2]
    for symbol, bound in zip(symbols, bounds, strict=True):
        if not isinstance(symbol, str) or symbol not in _COMPARISONS:
            raise errors.FilterError(path, f"unknown comparison {json.dumps(symbol)}; known are {' '.join(_COMPARISONS)}")
        if type(bound) not in _NUMBERS:
            raise errors.FilterError(path, f"{symbol} compares with a number, not with {json.dumps(bound)}")
    compare, bound = _COMPARISONS[symbols[0]], as_in_events(bounds[0])
    if len(operand) == 2:  # noqa: PLR2004 - one symbol and its bound
        return lambda value: compare(value, bound)
    if symbols[0] not in (">", ">=") or symbols[1] not in ("<", "<=") or bounds[0] >= bounds[1]:
        raise errors.FilterError(
            path,
            "is not a range of numbers: write a lower bound (> or >=), then an upper bound (< or <=) above it: "
            '[">", 0, "<=", 5]',
        )
    compare_upper, upper = _COMPARISONS[symbols[1]], as_in_events(bounds[1])
    return lambda value: compare(value, bound) and compare_upper(value, upper)


def _exists(operand: Any, path: str) -> Tests:
    if not isinstance(operand, bool):
        raise errors.FilterError(path, "must be true or false")
    return dict.fromkeys(SCALARS if operand else (Absent,), _always)


def _anything_but(operand: Any, path: str) -> Tests:
    """Return tests that accept null, and each string, number and boolean that `operand` does not exclude.

    Objects and missing fields are not accepted. Raise FilterError for an invalid `operand`.
    """
    if isinstance(operand, dict):
        excluded: Tests = {str: _excluded_texts(operand, path)}
    else:
        literals = operand if isinstance(operand, list) else [operand]
        if {type(literal) for literal in literals} not in ({str}, {int}, {float}, {int, float}):
            kinds = 'a string, a number, a list of strings, a list of numbers, or an operator such as {"prefix": "a"}'
            raise errors.FilterError(path, f"must be {kinds}")
        excluded = equality(literals)
    return {kind: _not(excluded[kind]) if kind in excluded else _always for kind in SCALARS}


def _excluded_texts(rule: Mapping[str, Any], path: str) -> Test:
    if len(rule) != 1 or not rule.keys() <= _TEXTS.keys():
        raise errors.FilterError(path, f"must hold exactly one of {', '.join(_TEXTS)}")
    ((name, operand),) = rule.items()
    path = f"{path}.{name}"
    if not isinstance(operand, list):
        return _text_test(_TEXTS[name], operand, path)
    if not operand:
        raise errors.FilterError(path, "must be a string or a list of strings")
    tests = [_text_test(_TEXTS[name], text, f"{path}[{index}]") for index, text in enumerate(operand)]
    return lambda value: any(test(value) for test in tests)


def _always(_: Any) -> bool:
    return True


def _not(test: Test) -> Test:
    return lambda value: not test(value)


_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_AFFIXES: Mapping[str, Callable[[str], Test]] = {"prefix": _starts_with, "suffix": _ends_with}
_TEXTS: Mapping[str, Callable[[str], Test]] = {
    **_AFFIXES,
    "equals-ignore-case": _ignoring_case(_equals),
    "wildcard": _fits,
}
