"""Compile the alternatives of a field in a filter pattern, such as `["new", {"prefix": "a"}]`, into tests of a single value.

Runs wherever `delivery.webhooks.filters.event_pattern` runs. Imports the standard library, `delivery.errors` and
`delivery.webhooks.filters.intervals` only. Pure.

All alternatives with one operator become one test: 300 prefixes take hardly more time than one. Only wildcards and
`anything-but` are tested one by one. The tests are grouped by the type of the JSON values that they test. A type without a test
is not accepted. So prefixes test strings only, bounds test numbers only, and `true` never equals 1.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import math
import socket
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import NoneType
from typing import Any, NamedTuple, TypeAlias

from delivery import errors
from delivery.webhooks.filters.intervals import Range, RangeUnion

_Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

Test = Callable[[Any], bool]
Tests = Mapping[type, Test]
"""By type of a JSON value, the test of values of this type. A value of any other type is not accepted."""


class Alternatives(NamedTuple):
    """The compiled alternatives of one field."""

    tests: Mapping[type, Sequence[Test]]
    """By type of a JSON value, the tests of values of this type. A value that one test accepts is accepted."""
    max_tests: int
    """Most tests that one value takes."""


class _Alternative(NamedTuple):
    """One alternative of a field, before it is compiled: the function that compiles it, and its operand.

    All alternatives of a field with the same `build` are compiled together, from a list of their operands.
    """

    build: Callable[[list[Any]], Tests]
    operand: Any
    own_tests: int = 0
    """Number of tests of this alternative alone, besides the one test of all alternatives with the same `build`."""


class Absent:
    """Stands in `Tests` for the type of a missing value."""


SCALARS = (str, int, float, bool, NoneType)
"""Types of JSON values other than objects and arrays."""
_NUMBERS = (int, float)
_OPERATORS = ("prefix", "suffix", "equals-ignore-case", "wildcard", "anything-but", "numeric", "cidr", "exists")


def compile_alternatives(alternatives: Iterable[Any], path: str) -> Alternatives:
    """Return the tests of the alternatives of a field; raise FilterError for an invalid one.

    `path` is the field's place in the pattern.
    """
    operands: defaultdict[Callable[[list[Any]], Tests], list[Any]] = defaultdict(list)
    own_tests = 0
    for index, accepted in enumerate(alternatives):
        alternative = _alternative(accepted, f"{path}[{index}]")
        operands[alternative.build].append(alternative.operand)
        own_tests += alternative.own_tests
    tests: defaultdict[type, list[Test]] = defaultdict(list)
    for build, several in operands.items():
        for kind, test in build(several).items():
            tests[kind].append(test)
    return Alternatives(dict(tests), len(operands) + own_tests)


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


def bounds(comparisons: list[Any]) -> Range:
    """Return the range of numbers that a valid operand of `numeric` accepts, such as `[">", 0, "<=", 5]`."""
    sides = {
        symbol[0]: (as_in_events(bound), len(symbol) > 1)
        for symbol, bound in zip(comparisons[::2], comparisons[1::2], strict=True)
    }
    if "=" in sides:
        return Range(sides["="][0], sides["="][0], True, True)
    lower, has_lower = sides.get(">", (None, False))
    upper, has_upper = sides.get("<", (None, False))
    return Range(lower, upper, has_lower, has_upper)


# --- from an alternative to its operand -----------------------------------------------------------------------------------


def _alternative(accepted: Any, path: str) -> _Alternative:
    """Return an alternative; raise FilterError if it is neither a literal nor an object with one operator.

    `path` is the alternative's place in the pattern.
    """
    if isinstance(accepted, SCALARS):
        return _Alternative(_equality, accepted)
    if not isinstance(accepted, dict):
        raise errors.FilterError(path, "must be a value or an operator; a list accepts no lists")
    if len(accepted) != 1:
        raise errors.FilterError(path, f"has {len(accepted)} operators: write one per object, and one object per alternative")
    ((name, operand),) = accepted.items()
    return _operator(name, operand, f"{path}.{name}")


def _operator(name: str, operand: Any, path: str) -> _Alternative:
    """Return the alternative of an operator; raise FilterError for an unknown operator, and for an invalid operand."""
    if name in _AFFIXES_IGNORING_CASE and isinstance(operand, dict):
        return _affix_ignoring_case(name, operand, path)
    if name in _TEXTS:
        return _text(name, operand, path)
    if name == "anything-but":
        return _anything_but(operand, path)
    if name == "numeric":
        _check_comparisons(operand, path)
        return _Alternative(_in_ranges, bounds(operand))
    if name == "cidr":
        return _Alternative(_in_networks, _parsed(_network, operand, path))
    if name == "exists":
        if not isinstance(operand, bool):
            raise errors.FilterError(path, "must be true or false")
        return _Alternative(_present if operand else _absent, None)
    close = difflib.get_close_matches(name, _OPERATORS, n=1)
    advice = f"did you mean {close[0]}?" if close else f"known are {', '.join(_OPERATORS)}"
    raise errors.FilterError(path, f"unknown operator; {advice}")


def _text(name: str, operand: Any, path: str) -> _Alternative:
    build, parse = _TEXTS[name]
    return _Alternative(build, _parsed(parse, operand, path), own_tests=int(build is _fits))


def _affix_ignoring_case(name: str, operand: Mapping[str, Any], path: str) -> _Alternative:
    if list(operand) != ["equals-ignore-case"]:
        raise errors.FilterError(path, 'must be a string, or {"equals-ignore-case": "…"}')
    text = _parsed(str.casefold, operand["equals-ignore-case"], f"{path}.equals-ignore-case")
    return _Alternative(_AFFIXES_IGNORING_CASE[name], text)


def _parsed(parse: Callable[[str], Any], operand: Any, path: str) -> Any:
    if not isinstance(operand, str):
        raise errors.FilterError(path, "must be a string")
    try:
        return parse(operand)
    except errors.FilterError as exc:
        raise exc.within(path) from None


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


def _network(text: str) -> _Network:
    try:
        # Parsed in two parts: the whole text could also be an address without a mask, or with a mask written as an address.
        address, bits = text.split("/")
        return ipaddress.ip_network((address, int(bits)), strict=False)
    except ValueError:
        raise errors.FilterError("", "must be a range of addresses, such as 10.0.0.0/8 or 2001:db8::/32") from None


def _check_comparisons(operand: Any, path: str) -> None:
    """Raise FilterError unless `operand` is one comparison, or a lower and an upper bound."""
    if not isinstance(operand, list) or len(operand) not in (2, 4):
        raise errors.FilterError(path, 'must be a comparison, ["<", 10], or a range, [">", 0, "<=", 5]')
    symbols, numbers = operand[::2], operand[1::2]
    for symbol, number in zip(symbols, numbers, strict=True):
        if not isinstance(symbol, str) or symbol not in _COMPARISONS:
            raise errors.FilterError(path, f"unknown comparison {json.dumps(symbol)}; known are {' '.join(_COMPARISONS)}")
        if type(number) not in _NUMBERS:
            raise errors.FilterError(path, f"{symbol} compares with a number, not with {json.dumps(number)}")
    is_range = symbols[0] in (">", ">=") and symbols[-1] in ("<", "<=") and numbers[0] < numbers[-1]
    if len(symbols) > 1 and not is_range:
        raise errors.FilterError(
            path,
            "is not a range of numbers: write a lower bound (> or >=), then an upper bound (< or <=) above it: "
            '[">", 0, "<=", 5]',
        )


def _anything_but(operand: Any, path: str) -> _Alternative:
    """Return the alternative that accepts null, and each string, number and boolean that `operand` does not exclude.

    Objects and missing fields are not accepted. Raise FilterError for an invalid `operand`.
    """
    if not isinstance(operand, dict):
        literals = operand if isinstance(operand, list) else [operand]
        if {type(literal) for literal in literals} not in ({str}, {int}, {float}, {int, float}):
            kinds = 'a string, a number, a list of strings, a list of numbers, or an operator such as {"prefix": "a"}'
            raise errors.FilterError(path, f"must be {kinds}")
        return _Alternative(_none_excluded_by_all, _equality(literals), own_tests=1)
    if len(operand) != 1 or not operand.keys() <= _TEXTS.keys():
        raise errors.FilterError(path, f"must hold exactly one of {', '.join(_TEXTS)}")
    ((name, texts),) = operand.items()
    path = f"{path}.{name}"
    if not isinstance(texts, list):
        excluded = [_text(name, texts, path)]
    elif texts:
        excluded = [_text(name, text, f"{path}[{index}]") for index, text in enumerate(texts)]
    else:
        raise errors.FilterError(path, "must be a string or a list of strings")
    test = excluded[0].build([alternative.operand for alternative in excluded])
    return _Alternative(_none_excluded_by_all, test, own_tests=1 + sum(alternative.own_tests for alternative in excluded))


# --- from operands to a test ----------------------------------------------------------------------------------------------


def _equality(literals: list[Any]) -> Tests:
    """Return tests that accept a value equal to one of `literals`, by one look-up in a set. 300 and 3.0e2 are equal."""
    by_type: dict[type, set[Any]] = {}
    for literal in literals:
        if type(literal) in _NUMBERS:
            for kind in _NUMBERS:
                by_type.setdefault(kind, set()).add(as_in_events(literal))
        else:
            by_type.setdefault(type(literal), set()).add(literal)
    return {kind: frozenset(wanted).__contains__ for kind, wanted in by_type.items()}


def _starts_with(prefixes: list[str]) -> Tests:
    wanted = tuple(prefixes)
    return {str: lambda value: bool(value.startswith(wanted))}


def _ends_with(suffixes: list[str]) -> Tests:
    wanted = tuple(suffixes)
    return {str: lambda value: bool(value.endswith(wanted))}


# The next three compare case-folded texts, so that `STRASSE` equals `straße`. Each character is folded by itself, into one or
# more characters. So a value needs to be folded only as far as the longest operand reaches.


def _starts_with_ignoring_case(prefixes: list[str]) -> Tests:
    wanted, longest = tuple(prefixes), max(map(len, prefixes))
    return {str: lambda value: bool(value[:longest].casefold().startswith(wanted))}


def _ends_with_ignoring_case(suffixes: list[str]) -> Tests:
    wanted, longest = tuple(suffixes), max(map(len, suffixes))
    return {str: lambda value: bool(value[max(0, len(value) - longest) :].casefold().endswith(wanted))}


def _equals_ignoring_case(texts: list[str]) -> Tests:
    wanted, longest = frozenset(texts), max(map(len, texts))
    return {str: lambda value: len(value) <= longest and value.casefold() in wanted}


def _fits(wildcards: list[list[str]]) -> Tests:
    tests = [_fits_one(*wildcard) for wildcard in wildcards]
    return {str: tests[0] if len(tests) == 1 else lambda value: any(test(value) for test in tests)}


def _fits_one(first: str, *rest: str) -> Test:
    """Return the test of a wildcard with these `pieces`.

    The test finds the texts between the asterisks from left to right, each at its first place. No backtracking is needed.
    """
    if not rest:
        return lambda value: bool(value == first)
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


def _in_networks(networks: list[_Network]) -> Tests:
    by_version: dict[int, list[Range]] = {4: [], 6: []}
    for network in networks:
        first, last = int(network.network_address), int(network.broadcast_address)
        by_version[network.version].append(Range(first, last, True, True))
    ranges_4, ranges_6 = RangeUnion(by_version[4]), RangeUnion(by_version[6])

    def test(value: str) -> bool:
        family, ranges = (socket.AF_INET6, ranges_6) if ":" in value else (socket.AF_INET, ranges_4)
        try:
            return int.from_bytes(socket.inet_pton(family, value)) in ranges
        except (OSError, ValueError):  # not an address; with a NUL in it, a ValueError
            return False

    return {str: test}


def _in_ranges(ranges: list[Range]) -> Tests:
    return dict.fromkeys(_NUMBERS, RangeUnion(ranges).__contains__)


def _present(_: list[None]) -> Tests:
    return dict.fromkeys(SCALARS, _always)


def _absent(_: list[None]) -> Tests:
    return {Absent: _always}


def _none_excluded_by_all(exclusions: list[Tests]) -> Tests:
    """Return the tests of a field's `anything-but` alternatives. Each of `exclusions` accepts what one alternative excludes.

    The alternatives are joined by "or". So a scalar is refused only if every one of `exclusions` accepts it.
    """
    return {kind: _not_all([excluded.get(kind, _never) for excluded in exclusions]) for kind in SCALARS}


def _not_all(tests: list[Test]) -> Test:
    if _never in tests:
        return _always
    if len(tests) == 1:
        (test,) = tests
        return lambda value: not test(value)
    return lambda value: not all(test(value) for test in tests)


def _always(_: Any) -> bool:
    return True


def _never(_: Any) -> bool:
    return False


_COMPARISONS = ("=", "<", "<=", ">", ">=")
_AFFIXES_IGNORING_CASE: Mapping[str, Callable[[list[str]], Tests]] = {
    "prefix": _starts_with_ignoring_case,
    "suffix": _ends_with_ignoring_case,
}
_TEXTS: Mapping[str, tuple[Callable[[list[Any]], Tests], Callable[[str], Any]]] = {
    "prefix": (_starts_with, str),
    "suffix": (_ends_with, str),
    "equals-ignore-case": (_equals_ignoring_case, str.casefold),
    "wildcard": (_fits, pieces),
}
"""By operator, the builder of the test of several texts, and the function that parses one text."""
