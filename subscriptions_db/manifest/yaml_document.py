"""Parse a YAML document, and find the line of each of its fields. Pure.

Runs in `fanout` commands: `fanout apply`, and those of `fanout filter` and `fanout event-type` that take YAML.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import yaml

from delivery import errors

_SAFE_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The C loader if it is available: it is ten times faster."""
MAX_DOCUMENT_BYTES = 64 * 1024 * 1024
"""Maximum bytes of a document in UTF-8."""
MAX_WITH_ALIASES = 512 * 1024 * 1024
"""Maximum characters of a document with its aliases written out. With aliases of aliases, each line can double the number."""
MAX_LEVELS = 100
"""Maximum levels of nested lists and mappings. libyaml composes nested nodes by recursion in C. So a document of some 50,000
levels would end the process with a segmentation fault. Filters, schemas and examples have lower bounds of their own."""
_TAG = "tag:yaml.org,2002:"
_PLAIN = (
    ("bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), "tTfF"),
    ("int", re.compile(r"-?(?:0|[1-9][0-9]*)$"), "-0123456789"),
    ("float", re.compile(r"-?(?:0|[1-9][0-9]*)\.[0-9]+(?:[eE][-+][0-9]+)?$"), "-0123456789"),
)
"""Tags of values without quotes, with the texts that have the tag and their first characters, in the order of the search.

Numbers are as in JSON, and booleans as in YAML 1.2. YAML 1.1 has more: 0301 is the number 193, 1_000 is 1000, 12:30 is 750, and
NO, the code of a country, is false. By the rules of YAML 1.1, an id or a value of a filter would silently become another value.
As in YAML 1.1, 12345e6 is text: other programs write such text without quotes.
"""
_ADVICE = (
    (
        "cannot start any token",
        "a character here begins nothing in YAML: indent with spaces, not tabs; put text that begins with @ ` or % in quotes",
    ),
    (
        "mapping values are not allowed",
        "a colon is not allowed here: put text that contains `: ` in quotes, or fix the indentation",
    ),
    ("alphabetic or numeric", 'text cannot begin with `*` or `&`: put it in quotes, such as event_type: "*"'),
    ("expected ',' or", "a list or mapping in brackets is not closed, or a comma is missing: add the bracket or the comma"),
    (
        "did not find expected",
        "the indentation differs from the lines around it, or a bracket or quote is not closed: correct or close it",
    ),
    ("block end", "the indentation differs from the lines around it: correct the indentation"),
    ("could not find expected ':'", "a name has no colon after it, or a quote is not closed: add the colon or the quote"),
    ("unexpected end of stream", "a quote is not closed: add the closing quote"),
    ("another document", "a second document begins here (---): put each document into a file of its own"),
    ("undefined alias", "a `*` refers to no anchor: put text that begins with `*` in quotes"),
    ("constructor for the tag", "tags (`!…`) are not supported: put text that begins with ! in quotes"),
    ("unhashable", "a list or mapping cannot be a name: write a text"),
    ("sequence entries are not allowed", "`- ` is not allowed here: begin the list on a line of its own"),
    ("mapping keys are not allowed", "`? ` is not allowed here: put text that begins with `? ` in quotes"),
)  # fmt: skip
"""Fragments of the parser's messages, each with the message that the author of the document gets instead."""
BOM = "\ufeff"
"""The byte order mark, which some editors of Windows write first."""
_SURROGATES = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
"""A character that JSON escapes as two surrogates. libyaml refuses both."""
_MISFIT = "a value does not fit its tag !!{}: correct it, or put it in quotes without a tag"
_TOO_LONG = "a number has too many digits: put it in quotes"


_TOO_MANY_ALIASES = (
    f"with its aliases (*) written out it has more than {MAX_WITH_ALIASES} characters. Split it into parts, or use fewer "
    "aliases"
)


_NOT_AS_YAML_1_1 = {f"{_TAG}{name}" for name in ("bool", "int", "float", "timestamp")}


class _Loader(_SAFE_LOADER):  # type: ignore[misc]  # its base is one of two
    """Refuse a repeated key: YAML parsers silently drop its first value, and `apply --prune` would delete the rows in it.

    A value without a tag and without quotes is a number or a boolean by _PLAIN only. A date stays text, as in JSON: ids and
    filters have no dates.
    """

    yaml_implicit_resolvers: ClassVar[Any] = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in _NOT_AS_YAML_1_1]
        for first, resolvers in _SAFE_LOADER.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:  # noqa: FBT001, FBT002  # as in the base
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value} is given twice: keep one", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)

    def construct_tagged(self, node: yaml.Node) -> Any:
        """Return the value of a node by its tag; raise ConstructorError if its text does not fit the tag, as in `!!bool x`."""
        try:
            return _SAFE_LOADER.yaml_constructors[node.tag](self, node)
        except (ArithmeticError, AttributeError, LookupError, ValueError) as exc:  # PyYAML does not check the text
            tag = node.tag.removeprefix(_TAG)
            is_number = tag == "int" and str(node.value).lstrip("+-").isdecimal()
            said = _TOO_LONG if is_number else _MISFIT.format(tag)
            raise yaml.constructor.ConstructorError(None, None, said, node.start_mark) from exc


for _tag in _NOT_AS_YAML_1_1:
    _Loader.add_constructor(_tag, _Loader.construct_tagged)
for _name, _pattern, _first in _PLAIN:
    _Loader.add_implicit_resolver(f"{_TAG}{_name}", _pattern, list(_first))


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A parsed YAML document, with the lines of its fields."""

    value: Any
    root: yaml.Node | None
    """The top node, which has the positions. None: the document is empty."""

    def line_of(self, path: str) -> int | None:
        """Return the line of a field, or of the nearest field around it.

        None: `path` is empty and means the whole document, or the document is empty.
        """
        return _line_of(self.root, path) if path and self.root is not None else None

    @contextlib.contextmanager
    def naming_lines(self, name: str) -> Iterator[None]:
        """Raise the RegistrationErrors of the block as one ManifestRefused, sorted by line.

        Each error names the file `name`, and its line unless the error concerns the whole document.
        """
        try:
            yield
        except errors.RegistrationError as exc:
            found = exc.found if isinstance(exc, errors.ManifestRefused) else (exc,)
            raise errors.ManifestRefused(
                sorted(
                    (mistake.at(name, self.line_of(mistake.path)) for mistake in found), key=lambda mistake: mistake.line or 0
                )
            ) from None


def read(text: bytes | str, name: str = "") -> Document:
    """Return a parsed document. The value of an empty document is an empty dictionary.

    A JSON object or list is parsed as JSON, because YAML refuses some JSON, such as tabs. The lines of its fields come from the
    YAML parser. `name` is the file, for messages.

    Raise RegistrationError, with the line if it is known, in these cases:

    1. The document is too large, nested too deeply or not YAML, or has a repeated name.
    2. The document uses YAML that is not supported: a tag that YAML does not define, or a second document.
    """
    if len(text if isinstance(text, bytes) else text.encode(errors="surrogatepass")) > MAX_DOCUMENT_BYTES:
        raise errors.RegistrationError(
            "",
            f"{name or 'the document'} is larger than {MAX_DOCUMENT_BYTES} bytes and was not read: shorten it, or split a "
            "manifest into parts, each with whole customers",
        )
    loader, as_json = None, _json_value(text)
    if as_json is not None:
        spaced = _without_mark(text).replace("\t", " ")  # tabs of JSON only stand between tokens, where YAML may refuse them
        text = _SURROGATES.sub(lambda found: str(json.loads(f'"{found[0]}"')), spaced)
    try:
        _require_bounded(text, name)
        loader = _Loader(text)
        root = loader.get_single_node()
        value = None if root is None else loader.construct_document(root)
    except yaml.reader.ReaderError as exc:
        said, line = _unreadable(text, chr(exc.character) if 0 <= exc.character <= sys.maxunicode else "")
        raise errors.RegistrationError("", f"not YAML: {said}").at(name, line) from None
    except UnicodeEncodeError as exc:  # a lone surrogate in text
        said, line = _unreadable(text, exc.object[exc.start])
        raise errors.RegistrationError("", f"not YAML: {said}").at(name, line) from None
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None) or getattr(exc, "context_mark", None)
        said = f"not YAML: {_advised(getattr(exc, 'problem', None) or '')}"
        raise errors.RegistrationError("", said).at(name, mark.line + 1 if mark else None) from None
    finally:
        if loader is not None:
            loader.dispose()
    if as_json is not None:
        value = as_json
    return Document(value={} if value is None else value, root=root)


def _json_value(text: bytes | str) -> Any:
    """Return the value of a text that is a JSON object or list, with or without a byte order mark, else None."""
    try:
        value = json.loads(_without_mark(text), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def _without_mark(text: bytes | str) -> str:
    """Return text of JSON without its byte order mark. Raise UnicodeDecodeError for bytes that are not UTF-8."""
    return (text if isinstance(text, str) else text.decode()).removeprefix(BOM)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _require_bounded(text: bytes | str, name: str) -> None:
    """Raise RegistrationError, with the line, for a document that is nested too deeply or too large. Does not recurse.

    1. A list or mapping is nested deeper than MAX_LEVELS.
    2. With its aliases written out, the document has more than MAX_WITH_ALIASES characters.
    """
    sizes, anchors = [0], dict[str | None, int]()
    """`sizes`: number of characters and values of the document, and of each open list or mapping. `anchors`: of each anchor."""
    opened: list[str | None] = []
    for event in yaml.parse(text, Loader=_SAFE_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append(event.anchor)
            sizes.append(1)
            problem = f"it is nested deeper than {MAX_LEVELS} levels. Flatten it" if len(opened) > MAX_LEVELS else ""
        elif isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
            if isinstance(event, yaml.AliasEvent):
                size, anchor = anchors.get(event.anchor, 0), None
            elif isinstance(event, yaml.ScalarEvent):
                size, anchor = 1 + len(event.value), event.anchor
            else:
                size, anchor = sizes.pop(), opened.pop()
            if anchor is not None:
                anchors[anchor] = size
            sizes[-1] += size
            problem = _TOO_MANY_ALIASES if sizes[-1] > MAX_WITH_ALIASES else ""
        else:
            continue
        if problem:
            line = event.start_mark.line + 1 if event.start_mark else None
            raise errors.RegistrationError("", f"not YAML that can be read: {problem}").at(name, line)


def _unreadable(text: bytes | str, refused: str) -> tuple[str, int]:
    """Return why the parser cannot read a text, and the line.

    The reason is a byte that is not UTF-8, or else the character that the parser has refused.
    """
    try:
        decoded = text if isinstance(text, str) else text.decode()
    except UnicodeDecodeError as exc:
        said = f"byte 0x{exc.object[exc.start]:02x} is not UTF-8: save the file as UTF-8"
        return said, exc.object.count(b"\n", 0, exc.start) + 1
    kind = "control character" if unicodedata.category(refused) == "Cc" else "character"
    return f"the {kind} U+{ord(refused):04X} is not allowed: remove it", decoded.count("\n", 0, decoded.find(refused)) + 1


def _advised(problem: str) -> str:
    return next((advice for said, advice in _ADVICE if said in problem), problem or "it cannot be read")


def _line_of(node: yaml.Node, path: str) -> int:
    """Follow a path from a node as far as it leads, and return the line of the last field that was found.

    Names may contain dots, so the longest matching name wins.
    """
    line = node.start_mark.line + 1
    while path:
        path = path.removeprefix(".")
        step = _into_mapping(node, path) if isinstance(node, yaml.MappingNode) else _into_list(node, path)
        if step is None:
            break
        line, node, path = step
    return int(line)


def _into_mapping(node: yaml.MappingNode, path: str) -> tuple[int, yaml.Node, str] | None:
    fitting = []
    for key, value in node.value:
        for spelled in (str(key.value), f"[{key.value}]"):
            rest = path.removeprefix(spelled)
            if path.startswith(spelled) and (not rest or rest[0] in ".["):
                fitting.append((len(spelled), key.start_mark.line + 1, value, rest))
    if not fitting:
        return None
    _, line, value, rest = max(fitting, key=lambda match: match[0])
    return line, value, rest


def _into_list(node: yaml.Node, path: str) -> tuple[int, yaml.Node, str] | None:
    number, bracket, rest = path.removeprefix("[").partition("]")
    if not (isinstance(node, yaml.SequenceNode) and bracket and number.isdigit() and int(number) < len(node.value)):
        return None
    item = node.value[int(number)]
    return item.start_mark.line + 1, item, rest
