"""The rules of files, folders and names (CONTRIBUTING.md)."""

import ast
import collections
import re

import pytest

from fanout.documents import folder_map
from tests.support import patching, reading

ROOT = reading.ROOT
MODULES = [path for package in folder_map.PACKAGES for path in (ROOT / package).rglob("*.py") if path.name != "__init__.py"]
FOLDERS = sorted({path.parent for path in MODULES})
PATCHED_TABLES = {"tests/integration/api/test_deprecation.py": ["subscriptions_db.api.server.route_table.ROUTES"]}
"""Constants that a test may patch because they are no bounds. The API has no deprecated route yet: the test adds one."""
SOURCES = [path for package in (*folder_map.PACKAGES, "tests") for path in (ROOT / package).rglob("*.py")]


def test_a_folder_has_at_most_twelve_modules():
    sizes = {str(folder.relative_to(ROOT)): sum(path.parent == folder for path in MODULES) for folder in FOLDERS}
    assert {folder: size for folder, size in sizes.items() if size > 12} == {}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_a_folder_says_what_comes_in_and_goes_out_and_where_it_runs(folder):
    text = " ".join((ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or "").split())
    assert re.search(r"\bIn: .+ Out: .+", text)
    assert re.search(r"\bRuns (in|on) ", text)


def test_a_file_has_at_most_400_lines():
    """A longer file has a second idea, which belongs into a file of its own."""
    sizes = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in SOURCES}
    assert {path: size for path, size in sizes.items() if size > 400} == {}


def test_a_class_name_occurs_once_in_a_package():
    found = collections.Counter(
        f"{path.relative_to(ROOT).parts[0]}: {node.name}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, count in found.items() if count > 1} == set()


def ending_removed(name):
    """Return a name without the endings in which look-alike names differ, such as `plan` and `plans`."""
    return "_".join(re.sub(r"(ing|ers|er|ed|es|s|e)$", "", word) if len(word) > 4 else word for word in name.split("_"))


def test_no_two_modules_of_a_package_differ_in_the_ending_of_their_names():
    """A module may be called as its folder, such as `sending/sender.py`. Modules of one name do the same for other data."""
    found = collections.defaultdict(set)
    for path in MODULES:
        package = path.relative_to(ROOT).parts[0]
        if ending_removed(path.stem) != ending_removed(path.parent.name):
            found[package, ending_removed(path.stem)].add(path.stem)
    assert [sorted(names) for names in found.values() if len(names) > 1] == []


def test_a_test_name_has_at_most_75_characters():
    names = {name for path in (ROOT / "tests").rglob("*.py") for name in re.findall(r"def (test_\w+)", path.read_text())}
    assert {name for name in names if len(name) > 75} == set()


def test_no_variable_or_function_is_called_one_or_told():
    """Both words name any value at all."""
    names = {ast.Name: "id", ast.arg: "arg", ast.FunctionDef: "name", ast.AsyncFunctionDef: "name"}
    found = {
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if getattr(node, names.get(type(node), ""), None) in {"one", "told"}
    }
    assert found == set()


def test_no_test_patches_a_constant():
    """A patched constant shows no reader that the bound can vary, and has no effect where a default copied it."""
    found = {
        str(path.relative_to(ROOT)): names
        for path in (ROOT / "tests").rglob("*.py")
        if (names := patching.patched_constants(path.read_text(), folder_map.PACKAGES))
    }
    assert found == PATCHED_TABLES


@pytest.mark.parametrize(
    "statement",
    [
        "monkeypatch.setattr(job, 'MAX_S', 1)",
        "patched.setattr(\n    job, 'MAX_S', 1\n)",
        "setattr(job, 'MAX_S', 1)",
        "monkeypatch.setattr('delivery.job.MAX_S', 1)",
        "mock.patch.object(job, 'MAX_S', 1)",
        "mock.patch('delivery.job.MAX_S', 1)",
        "for module, name in [(job, 'MAX_S')]: patched.setattr(module, name, 1)",
        "job.MAX_S = 1",
        "job.MAX_S, x = 1, 2",
    ],
)
def test_a_constant_that_a_test_patches_is_found(statement):
    source = f"from delivery import job\n{statement}"
    assert patching.patched_constants(source, {"delivery"}) == ["delivery.job.MAX_S"]
    assert patching.patched_constants(source, {"fanout"}) == []
    assert patching.patched_constants(source.replace("MAX_S", "run"), {"delivery"}) == []
