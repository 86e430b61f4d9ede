"""The objects that a process keeps from task to task."""

import ast
import re
from concurrent import futures

import pytest

from delivery.stages import process_state
from tests.support import reading

STAGES = sorted((reading.ROOT / "delivery").rglob("*.py"))


def test_an_object_is_made_once_for_each_key():
    kept = process_state.Kept()
    first, other = kept.get(object, "a", 1), kept.get(object, "b", 1)
    assert kept.get(object, "a", 1) is first
    assert first is not other


def test_threads_that_ask_at_the_same_time_get_the_same_object():
    kept, made = process_state.Kept(), []
    with futures.ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda _: kept.get(lambda: made.append(1) or object()), range(200)))
    assert (len(made), len(set(map(id, got)))) == (1, 1)


def test_a_cleared_object_is_made_again_and_a_failed_one_is_not_kept():
    kept = process_state.Kept()
    with pytest.raises(ZeroDivisionError):
        kept.get(lambda: 1 // 0)
    first = kept.get(object)
    kept.clear()
    assert kept.get(object) is not first


@pytest.mark.parametrize("path", STAGES, ids=lambda path: path.stem)
def test_a_module_keeps_no_mutable_object_of_its_own(path):
    """Such objects belong into process_state, which says who makes, uses and ends each."""
    if path.stem == "process_state":
        return
    found = re.findall(r"(?m)^@functools\.cache\b.*(?:\n@.*)*\ndef \w+\(\)", path.read_text())
    for node in ast.parse(path.read_text()).body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.Call) and ast.unparse(value.func).split(".")[-1] in {"deque", "dict", "set", "list", "Lock"}:
            found.append(ast.unparse(node))
        if isinstance(value, ast.Dict | ast.List | ast.Set) and re.search(r"^_?[a-z]", ast.unparse(node)):
            found.append(ast.unparse(node))  # a table of constants has a name in upper case
    assert found == []
