"""Draw the folders and their imports from the code: docs/folders.md.

Runs in `python -m fanout.documents.generate` and the tests. Reads the files of the packages and imports none of them. A floor
is a group of folders that import from lower floors only, and not from each other. An area is a package, or a part of one.
"""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("delivery", "subscriptions_db", "fanout", "load_tests")
"""The packages whose folders are drawn."""


class Area(NamedTuple):
    """A package, or a part of one, with a picture of its own. An area consists of neighbouring floors.

    A floor is a group of folders that import only from lower floors.
    """

    name: str
    note: str
    floors: tuple[str, ...]
    """The floors from the lowest to the highest. Each floor has the names of its folders, separated by blanks."""


AREAS = (
    Area(
        "delivery/webhooks",
        "The delivery core. Runs in the executors, without Spark and without Postgres.",
        (
            "delivery.errors delivery.payload_form delivery.secret delivery.webhooks.clocks",
            "delivery.registry_model",
            "delivery.model",
            "delivery.webhooks.events delivery.webhooks.filters delivery.webhooks.policy delivery.webhooks.state",
            "delivery.webhooks.formats",
            "delivery.webhooks.routing delivery.webhooks.scheduling delivery.webhooks.batching",
            "delivery.webhooks.dispatching delivery.webhooks.http",
            "delivery.webhooks.sending",
            "delivery.webhooks.retries",
            "delivery.webhooks.results",
            "delivery.webhooks.leases",
            "delivery.webhooks.lanes",
        ),
    ),
    Area(
        "delivery/config, delivery/observability",
        "Settings, logs, metrics and health. Runs on the driver and in the commands. Executors use only its logs.",
        ("delivery.config", "delivery.observability"),
    ),
    Area(
        "delivery/stages",
        "The Spark application. Runs on the driver. `tasks`, parts of `kafka` and `realtime`, and the modules that start and "
        "keep the Python workers run in the executors.",
        (
            "delivery.stages.jvm delivery.stages.class_sharing delivery.stages.process_state",
            "delivery.stages.local_address delivery.stages.pyspark_path delivery.stages.kafka",
            "delivery.stages.checkpoint delivery.stages.registry",
            "delivery.stages.checkpoint_lock",
            "delivery.stages.tasks delivery.stages.disk_space",
            "delivery.stages.scaling",
            "delivery.stages.lanes",
            "delivery.stages.realtime",
            "delivery.stages.worker_daemon delivery.job_lanes",
            "delivery.job",
        ),
    ),
    Area(
        "subscriptions_db",
        "The registry, the archive, and the HTTP API in front of both. Runs on the driver and in the commands, which are also "
        "`fanout serve` and `fanout archive`. With `snapshot.source` `lookup` it also reads the registry in the executors.",
        (
            "subscriptions_db.disclosure subscriptions_db.answer_size subscriptions_db.described subscriptions_db.postgres",
            "subscriptions_db.secrets subscriptions_db.server_bounds",
            "subscriptions_db.snapshot",
            "subscriptions_db.manifest",
            "subscriptions_db.registration subscriptions_db.replays",
            "subscriptions_db.archive.notifications subscriptions_db.following",
            "subscriptions_db.archive.ingest",
            "subscriptions_db.archive.search",
            "subscriptions_db.api.contract subscriptions_db.api.examples",
            "subscriptions_db.api.oidc subscriptions_db.api.documents",
            "subscriptions_db.api.registry subscriptions_db.api.deliveries subscriptions_db.api.publishing",
            "subscriptions_db.api.admission",
            "subscriptions_db.api.server",
        ),
    ),
    Area(
        "fanout",
        "The commands. Nothing in `delivery` or `subscriptions_db` imports it.",
        (
            "fanout.terminal",
            "fanout.jvm fanout.kafka",
            "fanout.local fanout.redrive",
            "fanout.reconcile fanout.archiver fanout.admin",
            "fanout.demo",
            "fanout.cli",
            "fanout.documents",
        ),
    ),
    Area(
        "load_tests",
        "The load tests. They run the whole platform.",
        (
            "load_tests.profiling",
            "load_tests.reports load_tests.harness load_tests.rivals",
            "load_tests.polls load_tests.scaling",
            "load_tests.scenarios load_tests.options",
            "load_tests.scenarios.at_scale",
            "load_tests.curves load_tests.profile_command",
            "load_tests.__main__",
        ),
    ),
)
FLOORS = tuple(floor for area in AREAS for floor in area.floors)
"""The folders of each floor, from the lowest floor up. tests/unit/test_boundaries.py fails if a folder imports from another
folder that is not on a lower floor."""

GROUND = frozenset(("delivery.errors", "delivery.model", "delivery.payload_form", "delivery.registry_model", "delivery.secret"))
"""Modules that nearly every folder imports. The tables of docs/folders.md leave them out."""

HEAD = """\
# Folders and their imports

<!-- Generated from the imports of the code and the floors in fanout/documents/folder_map.py by `make docs`. -->

An arrow means *imports*. Every arrow points down: a folder imports from lower floors only. `tests/unit/test_boundaries.py`
fails where a folder does not. Folders in one frame share a floor, and none of them imports another.

The pictures leave out an arrow where a longer way of arrows leads to the same box. The tables name the imports that cross an
area, except those of the modules directly in `delivery/`: `errors`, `model`, `payload_form`, `registry_model` and `secret`.
[Architecture](architecture.md) shows how an event travels through these folders.

## The areas
"""


@functools.cache
def module_imports(root: Path) -> Mapping[str, set[str]]:
    """Return the modules of this project that each module imports, by their dotted names. Files `__init__.py` are left out.

    Reads the files of `root` once.
    """
    paths = [path for package in PACKAGES for path in (root / package).rglob("*.py") if path.name != "__init__.py"]
    modules = {".".join(path.relative_to(root).with_suffix("").parts): path for path in paths}
    return {module: set(_imported(path, modules)) for module, path in modules.items()}


def folder_of(module: str) -> str:
    """Return the folder of a module. A module in the root of its package, or of `delivery/stages`, is its own folder."""
    folder = module.rpartition(".")[0]
    return module if "." not in folder or folder == "delivery.stages" else folder


def folder_imports(root: Path) -> dict[str, set[str]]:
    """Return the folders that each folder imports from."""
    found: dict[str, set[str]] = {}
    for module, imported in module_imports(root).items():
        folder = folder_of(module)
        found.setdefault(folder, set()).update({folder_of(target) for target in imported} - {folder})
    return found


def document(root: Path) -> str:
    """Return the text of docs/folders.md."""
    imports = folder_imports(root)
    floors = {folder: number for number, floor in enumerate(FLOORS, start=1) for folder in floor.split()}
    areas = _area_imports(imports)
    parts = [HEAD, _picture([[area.name] for area in reversed(AREAS)], areas, prefix="")]
    for area in reversed(AREAS):
        rows = [floor.split() for floor in reversed(area.floors)]
        picture = _picture(rows, imports, prefix=area.name.replace("/", ".") + ".")
        parts.append(f"\n## {area.name}\n\n{area.note}\n{picture}")
        parts.append("\n| floor | folder | what it does | imports from other areas |\n|---|---|---|---|\n")
        for folder in itertools.chain(*rows):
            others = sorted(imports[folder].difference(GROUND, *rows), key=lambda other: (-floors[other], other))
            named = ", ".join(f"`{other}`" for other in others)
            parts.append(f"| {floors[folder]} | `{_path(root, folder)}` | {_purpose(root, folder)} | {named} |\n")
    return "".join(parts)


def _imported(path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                names = (f"{node.module}.{alias.name}", str(node.module))
                yield from [name for name in names if name in modules][:1]


def _area_imports(imports: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return area → the other areas that it imports from. `imports` is folder → folders."""
    area_of = {folder: area.name for area in AREAS for floor in area.floors for folder in floor.split()}
    found: dict[str, set[str]] = {area.name: set() for area in AREAS}
    for folder, others in imports.items():
        found[area_of[folder]].update({area_of[other] for other in others} - {area_of[folder]})
    return found


def _arrows(boxes: Collection[str], imports: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return box → boxes that it imports. An import of a box is left out if another imported box leads to that box as well."""
    direct = {box: imports[box].intersection(boxes) for box in boxes}
    reached = {box: _reached(box, direct) for box in boxes}
    return {
        box: {other for other in others if not any(other in reached[between] for between in others)}
        for box, others in direct.items()
    }


def _reached(folder: str, direct: Mapping[str, set[str]]) -> set[str]:
    return direct[folder].union(*(_reached(other, direct) for other in direct[folder]))


def _picture(floors: Iterable[list[str]], imports: Mapping[str, set[str]], *, prefix: str) -> str:
    """Return a Mermaid flowchart of the boxes on `floors`, from the top down. `prefix` is left out of their labels."""
    names: dict[str, str] = {}
    lines = ["flowchart TB"]
    for boxes in floors:
        labelled = []
        for box in boxes:
            names[box] = f"n{len(names)}"
            labelled.append(f'{names[box]}["{box.removeprefix(prefix)}"]')
        is_shared = len(boxes) > 1
        lines += [f'subgraph floor_of_{names[boxes[0]]}[" "]', *labelled, "end"] if is_shared else labelled
    arrows = _arrows(names, imports)
    lines += [f"{names[box]} --> {names[other]}" for box in names for other in names if other in arrows[box]]
    return "\n```mermaid\n" + "\n".join(lines) + "\n```\n"


def _path(root: Path, folder: str) -> str:
    path = folder.replace(".", "/")
    return f"{path}/" if (root / path).is_dir() else f"{path}.py"


def _purpose(root: Path, folder: str) -> str:
    """Return the first paragraph of the folder's docstring."""
    path = root / folder.replace(".", "/")
    text = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
    return " ".join((ast.get_docstring(ast.parse(text)) or "").partition("\n\n")[0].split()).replace("|", "\\|")
