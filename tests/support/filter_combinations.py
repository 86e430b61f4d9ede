"""Every operator of a filter, on every kind of value and with every kind of operand, as JSON texts."""

from __future__ import annotations

from collections.abc import Iterator

_TEXT, _NUMBER = '"text"', "7"
_NO_TEXT = ("null", "true", "false", _NUMBER)
_NO_NUMBER = ("null", "true", "false", _TEXT, '"5"')

_POSITIVE = {
    '"paid"': ('"paid"', '"Paid"', _NO_TEXT),
    '""': ('""', '" "', _NO_TEXT),
    '"\\ud83d\\ude80 "': ('"🚀 "', '"🚀"', _NO_TEXT),
    "5": ("5", "5.5", _NO_NUMBER),
    "3.018e2": ("301.8", "302", _NO_NUMBER),
    "null": ("null", '"null"', ("true", "false", _NUMBER, _TEXT, "0", '""')),
    "true": ("true", "false", ("null", _NUMBER, _TEXT, "1", '"true"')),
    "false": ("false", "true", ("null", _NUMBER, _TEXT, "0", '""')),
    '{"prefix": "pa"}': ('"paid"', '"Paid"', _NO_TEXT),
    '{"prefix": ""}': ('""', "7", _NO_TEXT),
    '{"prefix": {"equals-ignore-case": "PA"}}': ('"pAid"', '"open"', _NO_TEXT),
    '{"prefix": {"equals-ignore-case": ""}}': ('"x"', "7", _NO_TEXT),
    '{"suffix": "id"}': ('"paid"', '"paID"', _NO_TEXT),
    '{"suffix": ""}': ('"x"', "7", _NO_TEXT),
    '{"suffix": {"equals-ignore-case": "ID"}}': ('"pAiD"', '"open"', _NO_TEXT),
    '{"equals-ignore-case": "Paid"}': ('"pAID"', '"paid "', _NO_TEXT),
    '{"equals-ignore-case": ""}': ('""', '"x"', _NO_TEXT),
    '{"wildcard": "*"}': ('""', "7", _NO_TEXT),
    '{"wildcard": ""}': ('""', '"x"', _NO_TEXT),
    '{"wildcard": "paid"}': ('"paid"', '"paid*"', _NO_TEXT),
    '{"wildcard": "a/*/z"}': ('"a/b/c/z"', '"a/z"', _NO_TEXT),
    '{"wildcard": "*b*b*"}': ('"abcb"', '"abc"', _NO_TEXT),
    '{"numeric": ["=", 3.018e2]}': ("301.8", "302", _NO_NUMBER),
    '{"numeric": ["<", 5]}': ("4.9", "5", _NO_NUMBER),
    '{"numeric": ["<=", 5]}': ("5.0", "5.1", _NO_NUMBER),
    '{"numeric": [">", 5]}': ("5.1", "5", _NO_NUMBER),
    '{"numeric": [">=", 5]}': ("5", "4.9", _NO_NUMBER),
    '{"numeric": [">", 0, "<", 5]}': ("1", "5", _NO_NUMBER),
    '{"numeric": [">", 0, "<=", 5]}': ("5", "0", _NO_NUMBER),
    '{"numeric": [">=", 0, "<", 5]}': ("0", "5", _NO_NUMBER),
    '{"numeric": [">=", 0, "<=", 5]}': ("0", "-1", _NO_NUMBER),
    '{"cidr": "10.0.0.0/24"}': ('"10.0.0.255"', '"10.0.1.0"', (*_NO_TEXT, _TEXT, '"10.0.0.256"', '""')),
    '{"cidr": "2001:db8::/32"}': ('"2001:0DB8:0:0:0:0:0:1"', '"2001:db9::1"', (*_NO_TEXT, _TEXT, '"10.0.0.1"')),
}
"""Alternative → a value that matches, a value that does not, and values of other kinds, none of which matches."""
_NEGATIVE = {
    '{"anything-but": "open"}': ('"Open"', '"open"', _NO_TEXT),
    '{"anything-but": ""}': ('"x"', '""', _NO_TEXT),
    '{"anything-but": ["open", "sent"]}': ('"paid"', '"sent"', _NO_TEXT),
    '{"anything-but": 0}': ("5", "0.0", _NO_NUMBER),
    '{"anything-but": [5, 7.5]}': ("6", "7.5", _NO_NUMBER),
    '{"anything-but": {"prefix": "or"}}': ('"Or"', '"order"', _NO_TEXT),
    '{"anything-but": {"prefix": ["or", "in"]}}': ('"paid"', '"invoice"', _NO_TEXT),
    '{"anything-but": {"suffix": ".png"}}': ('"a.PNG"', '"a.png"', _NO_TEXT),
    '{"anything-but": {"suffix": [".png", ".jpg"]}}': ('"a.txt"', '"a.jpg"', _NO_TEXT),
    '{"anything-but": {"equals-ignore-case": "Open"}}': ('"paid"', '"oPEN"', _NO_TEXT),
    '{"anything-but": {"equals-ignore-case": ["Open", "sent"]}}': ('"paid"', '"SENT"', _NO_TEXT),
    '{"anything-but": {"wildcard": "*/lib/*"}}': ('"/bin/sh"', '"/usr/lib/x"', _NO_TEXT),
    '{"anything-but": {"wildcard": ""}}': ('"x"', '""', _NO_TEXT),
    '{"anything-but": {"wildcard": ["*.jar", "*.class"]}}': ('"a.py"', '"a.class"', _NO_TEXT),
}
"""Like _POSITIVE, for `anything-but`: all values of other kinds match."""


def cases() -> Iterator[tuple[str, str, bool]]:
    """Yield an alternative for the field `x`, an event, and whether the event matches."""
    for table, are_others_accepted in ((_POSITIVE, False), (_NEGATIVE, True)):
        for alternative, (accepted, refused, others) in table.items():
            matching = [accepted, f"[{refused}, {accepted}]", f"[[{accepted}]]", f'[{{"y": {refused}}}, {accepted}]']
            failing = [refused, f"[{refused}]", f"[[], [{refused}]]", f'{{"y": {accepted}}}', f'[{{"y": {accepted}}}]']
            for value in matching + list(others) * are_others_accepted:
                yield alternative, f'{{"x": {value}}}', True
            for value in [*failing, "[]", "{}"] + list(others) * (not are_others_accepted):
                yield alternative, f'{{"x": {value}}}', False
            yield alternative, "{}", False
    for value in ("null", "false", "0", '""', "[null]", "[[0]]", '[{"y": 1}, 0]'):
        yield '{"exists": true}', f'{{"x": {value}}}', True
        yield '{"exists": false}', f'{{"x": {value}}}', False
    for event in ("{}", '{"x": []}', '{"x": {}}', '{"x": {"y": 1}}', '{"X": 1}', '{"y": "x"}'):
        yield '{"exists": true}', event, False
        yield '{"exists": false}', event, True


OPERANDS = (
    "null", "true", "7", '"a"', '""', "[]", '["a"]', '["a", "b"]', "[7]", "[7, 8]", '["a", 7]', '["a", null]', "[null]",
    '[["a"]]', "{}", '{"prefix": "a"}', '{"equals-ignore-case": "a"}', '{"equals-ignore-case": ["a"]}',
    '{"equals-ignore-case": 7}', '{"equals-ignore-case": "a", "prefix": "a"}', '["=", 7]', '["<", 7, ">", 0]',
    '[">", 0, "<", 7]', '[">", 0, ">", 0]', '[">", 0, "<"]', '["=", "7"]', '["!=", 7]', '"10.0.0.0/8"', '"10.0.0.0"',
    '"10.0.0/8"', '"x::/64"', '"10.0.0.0/64x"', '"a**b"',
)  # fmt: skip
"""Operands that are tried with every operator. _ACCEPTED has the operands that each operator accepts."""
_TEXTS = {'"a"', '""', '"10.0.0.0/8"', '"10.0.0.0"', '"10.0.0/8"', '"x::/64"', '"10.0.0.0/64x"', '"a**b"'}
_LISTS = {'["a"]', '["a", "b"]', '["=", "7"]'}
_ACCEPTED = {
    "prefix": _TEXTS | {'{"equals-ignore-case": "a"}'},
    "suffix": _TEXTS | {'{"equals-ignore-case": "a"}'},
    "equals-ignore-case": _TEXTS,
    "wildcard": _TEXTS - {'"a**b"'},
    "numeric": {'["=", 7]', '[">", 0, "<", 7]'},
    "cidr": {'"10.0.0.0/8"'},
    "exists": {"true"},
    "anything-but": _TEXTS
    | _LISTS
    | {"7", "[7]", "[7, 8]", '{"prefix": "a"}', '{"equals-ignore-case": "a"}', '{"equals-ignore-case": ["a"]}'},
    "EXISTS": set(),
    "regex": set(),
}
_EXCLUDED = {
    "prefix": _TEXTS | _LISTS,
    "suffix": _TEXTS | _LISTS,
    "equals-ignore-case": _TEXTS | _LISTS,
    "wildcard": _TEXTS - {'"a**b"'} | _LISTS,
    "numeric": set(),
    "cidr": set(),
    "exists": set(),
    "anything-but": set(),
}
"""Like _ACCEPTED, for operators inside `anything-but`."""


def compilations() -> Iterator[tuple[str, bool]]:
    """Yield each alternative to compile, and True if a filter may have the alternative."""
    for name, accepted in _ACCEPTED.items():
        for operand in OPERANDS:
            yield f'{{"{name}": {operand}}}', operand in accepted
    for name, accepted in _EXCLUDED.items():
        for operand in OPERANDS:
            yield f'{{"anything-but": {{"{name}": {operand}}}}}', operand in accepted
    for wanted in ("[]", '["a"]', '[["a"]]'):
        yield wanted, False
    yield '{"prefix": "a", "suffix": "b"}', False
    yield "{}", False
