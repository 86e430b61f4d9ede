"""Read a YAML document, and know in which line each of its fields stands.

Runs in the command. Pure.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import yaml

from delivery import errors

_SAFE_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The C loader where it is built: ten times faster."""
MAX_DOCUMENT_BYTES = 64 * 1024 * 1024
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_ADVICE = (
    ("cannot start any token", "has a character that begins nothing in YAML: indent by spaces, not tabs; put @ ` % in quotes"),
    ("mapping values are not allowed", "has a colon where none may be: quote text that has `: `, or mend the indentation"),
    ("alphabetic or numeric", 'has a `*` or `&` that begins no text in YAML: put it in quotes, as event_type: "*"'),
    ("expected ',' or", "a list or mapping in brackets is not closed, or lacks a comma"),
    ("did not find expected", "is indented otherwise than the lines that it belongs to, or a bracket or quote is not closed"),
    ("block end", "is indented otherwise than the lines that it belongs to"),
    ("could not find expected ':'", "has no colon behind a name, or a quote is not closed"),
    ("unexpected end of stream", "a quote is not closed"),
    ("another document", "a second document begins here (---): apply each by itself"),
    ("undefined alias", "has a `*` that refers to nothing: put text that begins with one in quotes"),
    ("constructor for the tag", "has a tag (`!…`), which is not taken: put text that begins with ! in quotes"),
    ("unhashable", "has a list or mapping for a name"),
    ("not allowed", "has a character that no text may have, or is not UTF-8"),
)  # fmt: skip
"""What YAML's parser says, and what it means to who wrote the document."""


class _Loader(_SAFE_LOADER):  # type: ignore[misc]  # its base is one of two
    """Refuses a key that stands twice: YAML's parsers silently drop the first, and pruning would delete what it named.

    A date is text, as in JSON: in an id or a filter nothing else was meant.
    """

    yaml_implicit_resolvers: ClassVar[Any] = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in _SAFE_LOADER.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:  # noqa: FBT001, FBT002  # as in the base
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value} stands here twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """What a document says, and where."""

    value: Any
    root: yaml.Node | None

    def line_of(self, path: str) -> int | None:
        """Return the line of a field by its path, or of what it would stand in; None for the document as a whole."""
        return _line_of(self.root, path) if path and self.root is not None else None

    @contextlib.contextmanager
    def naming_lines(self, name: str) -> Iterator[None]:
        """Put the file and line before what is refused inside."""
        try:
            yield
        except errors.RegistrationError as exc:
            found = exc.found if isinstance(exc, errors.ManifestRefused) else (exc,)
            raise errors.ManifestRefused(
                sorted((one.at(name, self.line_of(one.path)) for one in found), key=lambda one: one.line or 0)
            ) from None


def read(text: bytes | str, name: str = "") -> Document:
    """Return a parsed document; raise RegistrationError with the line in which it is no YAML."""
    if len(text) > MAX_DOCUMENT_BYTES:
        raise errors.RegistrationError("", f"the document is larger than {MAX_DOCUMENT_BYTES} bytes; apply it in parts")
    loader = None
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        value = None if root is None else loader.construct_document(root)
    except RecursionError:
        raise errors.RegistrationError("", "not YAML: it is nested too deep").at(name, None) from None
    except (ValueError, yaml.reader.ReaderError):  # not UTF-8, or a character that is not printed
        raise errors.RegistrationError("", "not YAML: it is not UTF-8 text, or has control characters").at(name, None) from None
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None) or getattr(exc, "context_mark", None)
        said = f"not YAML: {_advised(getattr(exc, 'problem', None) or '')}"
        raise errors.RegistrationError("", said).at(name, mark.line + 1 if mark else None) from None
    finally:
        if loader is not None:
            loader.dispose()
    return Document(value={} if value is None else value, root=root)


def _advised(problem: str) -> str:
    return next((advice for said, advice in _ADVICE if said in problem), problem or "it cannot be read")


def _line_of(node: yaml.Node, path: str) -> int:
    """Walk from a node as far as the path leads. Names may have dots in them: the longest that fits is taken."""
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
    _, line, value, rest = max(fitting, key=lambda one: one[0])
    return line, value, rest


def _into_list(node: yaml.Node, path: str) -> tuple[int, yaml.Node, str] | None:
    number, bracket, rest = path.removeprefix("[").partition("]")
    if not (isinstance(node, yaml.SequenceNode) and bracket and number.isdigit() and int(number) < len(node.value)):
        return None
    item = node.value[int(number)]
    return item.start_mark.line + 1, item, rest
