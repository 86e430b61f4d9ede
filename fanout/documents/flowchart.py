"""Draw how data flows through modules as a Mermaid flowchart. Check its arrows, and its boxes of code and of topics.

Runs in `python -m fanout.documents.generate` and the tests. Reads the drawn modules as text, without importing them. Takes the
names of the settings from `delivery.config.settings`.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple, assert_never

from delivery.config import settings
from fanout.documents import folder_map

Medium = Literal["Spark", "Kafka", "Postgres", "HTTP", "TCP", "object"]
"""The means by which one box gives data to another box without importing it. `object`: a third module passes an object to one
of the two boxes."""
OPENS_POSTGRES = "subscriptions_db.postgres.connect"


class Code(NamedTuple):
    """A box of modules and packages, by their dotted names. The label has their paths, then `note`."""

    names: tuple[str, ...]
    note: str = ""


class Topics(NamedTuple):
    """A box of topics in Kafka, by the settings that name them."""

    settings: tuple[str, ...]


class Outside(NamedTuple):
    """A box of something that is no code of the project. With `is_store` it is a cylinder, such as tables in Postgres."""

    label: str
    is_store: bool = False


Box = Code | Topics | Outside


class Handover(NamedTuple):
    """The means by which the source of an arrow gives data to the target without a call."""

    medium: Medium
    by: str
    """The module that arranges the hand-over: it plans the query, has the client of Kafka or Postgres, or passes the object."""


class Arrow(NamedTuple):
    """An arrow between two boxes of a picture: a call, or a hand-over. `words` are the label of the arrow."""

    source: str
    target: str
    words: str = ""
    handover: Handover | None = None


class Frame(NamedTuple):
    """A frame around boxes of a picture."""

    label: str
    boxes: tuple[str, ...]


class Picture(NamedTuple):
    """A flowchart. The boxes have short names, by which arrows refer to them."""

    boxes: Mapping[str, Box]
    arrows: tuple[Arrow, ...]
    direction: Literal["TB", "LR"] = "TB"
    frame: Frame | None = None


def calls(source: str, target: str, words: str = "") -> Arrow:
    """Return the arrow of a call. Some module of the source has to import some module of the target."""
    return Arrow(source, target, words)


def passes(source: str, target: str, medium: Medium, by: str, words: str = "") -> Arrow:
    """Return the arrow of a hand-over that module `by` arranges."""
    return Arrow(source, target, words, Handover(medium, by))


class Known(NamedTuple):
    """Facts about the code, with which a picture is compared."""

    root: Path
    imports: Mapping[str, set[str]]
    """The modules that each module imports."""
    settings: Collection[str]
    """The names of all settings, such as `delivery.retries_topic`."""


def known(root: Path) -> Known:
    """Return the modules and imports of the code in `root`, and the names of all settings of the running process."""
    return Known(root, folder_map.module_imports(root), settings.known_names())


def drawn(picture: Picture, code: Known) -> str:
    """Return the Mermaid code of a picture. Raise ValueError if `contradictions` yields any text."""
    if found := list(contradictions(picture, code)):
        raise ValueError(
            "docs/architecture.md was not written. Correct the picture that differs from the code:\n" + "\n".join(found)
        )
    frame = picture.frame or Frame("", ())
    lines = [f"flowchart {picture.direction}"]
    lines += [_box(name, box, code) for name, box in picture.boxes.items() if name not in frame.boxes]
    if frame.boxes:
        lines += [f'subgraph frame ["{frame.label}"]', *(_box(name, picture.boxes[name], code) for name in frame.boxes), "end"]
    lines += [_arrow(arrow, picture) for arrow in picture.arrows]
    return "```mermaid\n" + "\n".join(lines) + "\n```\n"


def contradictions(picture: Picture, code: Known) -> Iterator[str]:
    """Yield a text for each contradiction between a picture and the code, of the kinds below.

    1. A box or a hand-over names a module or a setting that does not exist.
    2. No module of the source of a call imports a module of its target.
    3. A box of code at an end of a hand-over does not contain the arranging module, and neither imports the other.
    4. A topic is at an end of a hand-over, and the arranging module reads no attribute with the name of the topic's setting.
    5. The module that arranges a hand-over through Postgres does not import OPENS_POSTGRES.
    6. A hand-over through Kafka has no topic at its ends, or a hand-over through another medium has a topic there.
    """
    for name, box in picture.boxes.items():
        if isinstance(box, Code):
            yield from (f"{name}: there is no module {module}" for module in box.names if not _modules(module, code))
        elif isinstance(box, Topics):
            yield from (f"{name}: there is no setting {setting}" for setting in box.settings if setting not in code.settings)
    for arrow in picture.arrows:
        yield from (f"{arrow.source} to {arrow.target}: {reason}" for reason in _unproved(arrow, picture, code))


def _unproved(arrow: Arrow, picture: Picture, code: Known) -> Iterator[str]:
    ends = (picture.boxes[arrow.source], picture.boxes[arrow.target])
    if arrow.handover is None:
        source, target = (_of_box(end, code) for end in ends)
        if not any(code.imports[module] & target for module in source):
            yield "the first does not import the second"
        return
    medium, by = arrow.handover
    if by not in code.imports:
        yield f"there is no module {by}"
        return
    for end in ends:
        if isinstance(end, Code) and not _is_linked(by, _of_box(end, code), code):
            yield f"{by} neither belongs to {' and '.join(end.names)} nor is joined to it by an import"
    topics = [setting for end in ends if isinstance(end, Topics) for setting in end.settings]
    read = _attributes(by, code)
    yield from (f"{by} does not read {setting}" for setting in topics if setting.rpartition(".")[2] not in read)
    if medium == "Postgres" and OPENS_POSTGRES not in code.imports[by]:
        yield f"{by} does not import {OPENS_POSTGRES}"
    if (medium == "Kafka") != bool(topics):
        yield "a hand-over through Kafka needs a box of topics at one end, and any other hand-over must have none"


def _is_linked(by: str, modules: set[str], code: Known) -> bool:
    return by in modules or bool(code.imports[by] & modules) or any(by in code.imports[module] for module in modules)


def _of_box(box: Box, code: Known) -> set[str]:
    return set(itertools.chain(*(_modules(name, code) for name in box.names))) if isinstance(box, Code) else set()


def _modules(name: str, code: Known) -> set[str]:
    """Return the module `name`, or all modules of the package `name`."""
    return {module for module in code.imports if module == name or module.startswith(f"{name}.")}


def _attributes(module: str, code: Known) -> set[str]:
    """Return the names of all attributes that a module reads."""
    tree = ast.parse(_file(module, code.root).read_text())
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def _file(module: str, root: Path) -> Path:
    return (root / module.replace(".", "/")).with_suffix(".py")


def _box(name: str, box: Box, code: Known) -> str:
    match box:
        case Code(names, note):
            paths = [_path(module, code) for module in names]
            return f'{name}["{"<br/>".join([*paths, *([note] if note else [])])}"]'
        case Topics(named):
            label = _topic(named[0], code) if len(named) == 1 else f"topics: {' · '.join(map(_stem, named))}"
            return f'{name}[("{label}")]'
        case Outside(label, is_store):
            return f'{name}[("{label}")]' if is_store else f'{name}["{label}"]'
        case _:
            assert_never(box)


def _path(module: str, code: Known) -> str:
    """Return the path of a module or package without `delivery/`, with which most labels would begin otherwise."""
    path = module.removeprefix("delivery.").replace(".", "/")
    return f"{path}.py" if module in code.imports else path


def _topic(setting: str, code: Known) -> str:
    """Return the label of a box for one setting: `retries topic` for `delivery.retries_topic`.

    A setting of the form `…_pattern` gives `topics of <setting>`. The label begins with the area if several areas have a
    setting of this name, and for a setting `topic` the area stands alone: `operations topic` for `operations.topic`.
    """
    if setting.endswith("_pattern"):
        return f"topics of {setting}"
    area, _, field = setting.partition(".")
    is_shared = field != "topic" and sum(name.endswith(f".{field}") for name in code.settings) > 1
    return f"{area} {_stem(setting)} topic" if is_shared else f"{_stem(setting)} topic"


def _stem(setting: str) -> str:
    area, _, field = setting.partition(".")
    return area if field == "topic" else field.removesuffix("_topic").replace("_", " ")


def _arrow(arrow: Arrow, picture: Picture) -> str:
    """Return a line from box to box: solid for a call, dotted for a hand-over."""
    if arrow.handover is None:
        return f'{arrow.source} -- "{arrow.words}" --> {arrow.target}' if arrow.words else f"{arrow.source} --> {arrow.target}"
    ends = (picture.boxes[arrow.source], picture.boxes[arrow.target])
    medium = arrow.handover.medium if all(isinstance(end, Code) for end in ends) else ""  # else the other box says it
    label = ": ".join(filter(None, (medium, arrow.words)))
    return f'{arrow.source} -. "{label}" .-> {arrow.target}' if label else f"{arrow.source} -.-> {arrow.target}"
