"""The tests that documents name exist, and are marked where `make test` leaves them out. The tables are complete."""

import ast
import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.support import reading

ROOT = reading.ROOT
SHOWN_BY_TESTS = ["docs/faults.md", "docs/threat-model.md", "docs/features.md"]
NAMED_TEST = r"`(?:(tests/[\w/]+\.py)::)?(test_\w+)`"
COMMANDS = {"tests/k8s": "(k8s)", "tests/image": "(image)"}
"""Folders of tests that only a command of their own runs, and the mark of that command in documents."""
LAST_FAULT = 83
"""Number of faults that were listed before the platform was written. Later faults have higher numbers."""


class FoundTest(NamedTuple):
    """A test, and its mark in documents: of `make test-all`, of a command of its own, or none."""

    path: str
    name: str
    mark: str = ""


def found_in(path: str, text: str) -> Iterator[FoundTest]:
    """Yield the tests of a file, also those in classes."""
    of_folder = next((mark for folder, mark in COMMANDS.items() if path.startswith(f"{folder}/")), "")
    yield from (test._replace(mark=of_folder or test.mark) for test in in_body(path, ast.parse(text).body, is_slow=False))


def in_body(path: str, body: list[ast.stmt], *, is_slow: bool) -> Iterator[FoundTest]:
    is_slow |= any(mentions_slow(node) for node in body if ast.unparse(node).startswith("pytestmark"))
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from in_body(path, node.body, is_slow=is_slow or any(map(mentions_slow, node.decorator_list)))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            whole = is_slow or "pytest.mark.slow" in map(ast.unparse, node.decorator_list)
            in_part = any(map(mentions_slow, node.decorator_list))
            yield FoundTest(path, node.name, "(slow)" if whole else "(in part slow)" if in_part else "")


def mentions_slow(node: ast.AST) -> bool:
    return any("slow" in {getattr(part, "id", ""), getattr(part, "attr", "")} for part in ast.walk(node))


@functools.cache
def all_tests() -> frozenset[FoundTest]:
    """Return the tests of all sets. Not at import: each worker imports this file, and one runs it."""
    files = {str(path.relative_to(ROOT)): path for path in (ROOT / "tests").rglob("test_*.py")}
    return frozenset(test for name, path in files.items() for test in found_in(name, path.read_text()))


def meant(path: str, name: str) -> set[FoundTest]:
    """Return the tests that a document means: those of this name, in the file `path` if it is not empty."""
    return {test for test in all_tests() if test.name == name and path in {"", test.path}}


def text_of(document: str) -> str:
    return (ROOT / document).read_text()


@pytest.mark.parametrize("document", SHOWN_BY_TESTS)
def test_every_test_that_a_document_names_exists(document):
    named = re.findall(NAMED_TEST, text_of(document))
    assert named
    assert [name for path, name in named if not meant(path, name)] == []


@pytest.mark.parametrize("document", SHOWN_BY_TESTS)
def test_a_document_marks_the_tests_that_make_test_leaves_out(document):
    """Where several files have a test of one name, a name without a file means all of them, and they have one mark."""
    named = re.findall(rf"{NAMED_TEST}( \((?:slow|in part slow|k8s|image)\))?", text_of(document))
    wrong = [name for path, name, mark in named if {mark.strip()} != {test.mark for test in meant(path, name)}]
    assert wrong == []


def test_the_marks_of_tests_are_found_in_each_form():
    assert {test.mark for test in all_tests()} == {"", "(slow)", "(in part slow)", "(k8s)", "(image)"}
    code = """
class TestSlow:
    pytestmark = pytest.mark.slow
    def test_a(self): ...
class TestOthers:
    @pytest.mark.slow
    def test_b(self): ...
    @pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.slow)])
    def test_c(self, x): ...
    def test_d(self): ...
@pytest.mark.slow
class TestDecorated:
    def test_e(self): ...
"""
    found = {test.name: test.mark for test in found_in("tests/e2e/test_x.py", code)}
    marks = ("(slow)", "(slow)", "(in part slow)", "", "(slow)")
    assert found == dict(zip(("test_a", "test_b", "test_c", "test_d", "test_e"), marks, strict=True))
    assert {test.mark for test in found_in("tests/k8s/test_x.py", code)} == {"(k8s)"}


def test_every_fault_is_listed_once_with_a_test_or_a_longer_run():
    """Regression: eighteen faults had no row, and two numbers meant other faults."""
    rows = re.findall(r"^\| (\d+) \|(.+)$", text_of("docs/faults.md"), re.MULTILINE)
    numbers = [int(number) for number, _ in rows]
    assert numbers == sorted(set(numbers))
    assert set(range(1, LAST_FAULT + 1)) <= set(numbers)
    assert [number for number, row in rows if not re.search(r"`(test_|tests/|python -m load_tests )", row)] == []


def features():
    """Return the rows of the tables of features, as lists of seven cells."""
    text = text_of("docs/features.md").partition("## Sources")[0]
    rows = [row.split(" | ") for row in re.findall(r"^\| (?!\|)(.*) \|$", text, re.MULTILINE)]
    return [row for row in rows if len(row) > 3]


def test_every_feature_of_the_platform_is_linked_and_shown_by_a_test():
    assert len(features()) > 80
    for name, ours, shown, *_ in features():
        tests = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", shown)
        has_it = re.match(r"\[(yes|partly)\]\([\w.#-]+\)", ours) is not None
        assert has_it or re.match(r"no\b", ours), name
        assert bool(tests) == has_it, name
        assert [test for path, test in tests if f"def {test}(" not in (ROOT / path).read_text()] == [], name


def test_every_answer_about_another_system_has_a_source():
    """Unknown is an answer without a source, and a dash means that the question does not apply."""
    text = text_of("docs/features.md")
    listed = re.findall(r"^\| ([SCOH]\d+) \| .+ \| .+ \| <https://", text, re.MULTILINE)
    assert len(set(listed)) == len(listed)
    assert set(listed) == set(re.findall(r"\b[SCOH]\d+\b", text.partition("## Sources")[0]))
    for name, _, _, *others in features():
        assert len(others) == 4, name
        for system, answer in zip("SCOH", others, strict=True):
            sourced = re.match(rf"(yes|no|partly|cloud only)\b.*\({system}\d+(, {system}\d+)*\)", answer)
            assert answer in {"unknown", "–"} or sourced, (name, answer)
