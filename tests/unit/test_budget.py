"""A set of tests that takes more CPU than its budget allows fails the run, wherever that CPU was used."""

import os
import signal
import subprocess
import sys

import pytest

from tests import budget
from tests.support.reading import ROOT

BURNING = """
import subprocess, sys

def test_that_has_a_process_burn_cpu():
    code = "import time\\nwhile time.process_time() < 0.8: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
"""
SLOW = "import pytest\npytestmark = pytest.mark.slow\n"
BUDGET = """
from tests import budget

budget.BUDGETS_S["burning"] = {}
budget.machine_speed.slowdown = lambda: 2.0
"""
"""The settings of the inner run. The 0.8 s count 0.4 s, on each machine."""


@pytest.mark.parametrize(("spent", "is_over"), [(10.0, False), (12.0, False), (12.1, True)])
def test_a_set_may_take_a_fifth_more_than_its_budget(spent, is_over):
    assert bool(budget.over({"unit": spent, "without a budget": 1e9}, {"unit": 10, "not run": 1})) is is_over


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("workers", "allowed_s", "mark", "returncode"),
    [
        pytest.param("1", 0.25, "", 1, id="over its budget"),
        pytest.param("0", 60, "", 0, id="within its budget"),
        pytest.param("1", 0.25, SLOW, 0, id="with a slow test: measured only"),
        pytest.param("0", 0.25, SLOW, 0, id="with a slow test, without workers"),
    ],
)
def test_a_run_fails_by_what_the_processes_of_a_set_used(tmp_path, workers, allowed_s, mark, returncode):
    folder = tmp_path / "tests" / "burning"
    folder.mkdir(parents=True)
    (folder / "test_burning.py").write_text(mark + BURNING)
    (tmp_path / "conftest.py").write_text(BUDGET.format(allowed_s))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--rootdir=.", "-p", "xdist", "-p", "tests.budget", "-n", workers, "tests"],
        # `make test-all` sets THOROUGH, with which no set is judged. The other plugins would take half of the CPU.
        env=os.environ | {"PYTHONPATH": str(ROOT), "THOROUGH": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == returncode, done.stdout
    assert done.stdout.count("   2.00\n") == 1, done.stdout
    assert ("over budget: burning took" in done.stdout) is bool(returncode), done.stdout
    assert ("with slow tests or more cases: not judged" in done.stdout) is bool(mark), done.stdout


@pytest.mark.parametrize(("name", "is_counted"), [("burner", True), ("postgres", False)])
def test_a_process_counts_after_its_starter_has_ended_unless_it_is_postgres(tmp_path, name, is_counted):
    (tmp_path / name).symlink_to("/bin/sh")
    burn = "i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done; echo burnt; kill -STOP $$"
    starter = subprocess.Popen(
        ["/bin/sh", "-c", f"./{name} -c '{burn}' & echo $!; read _"],
        cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    burner = int(starter.stdout.readline())
    tree = budget.Tree()
    before = tree.seconds()
    starter.stdin.close()
    starter.wait()
    assert starter.stdout.readline() == "burnt\n"
    spent = tree.seconds() - before
    tree.end()
    starter.stdout.close()
    os.kill(burner, signal.SIGKILL)
    assert (spent > 0.3) is is_counted, spent
