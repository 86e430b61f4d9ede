"""Hold each set of tests to a budget: the run fails where a set takes a fifth more CPU than that.

A pytest plugin, `-p tests.budget`. A set is a folder of tests/. What counts are the CPU seconds of a set's tests and of all
processes below them: the commands, Spark's JVMs, the brokers. Seconds of the clock would fail on a busy machine for nothing.
CPU seconds depend on the processor and on how much of its caches others use. So each worker times a fixed piece of work between
tests, and the seconds are divided by how much longer that took than on the machine of the budgets.

The budgets are those of `make test`. A set that ran a test marked `slow`, or more generated cases
(tests/support/thoroughness.py), is measured, and not judged.

Not counted: a Postgres server. It leaves the tree when it has started, and only on a busy machine would it be seen before that.
"""

from __future__ import annotations

import collections
import contextlib
import statistics
import threading
import time
from collections.abc import Collection

import psutil
import pytest

from load_tests.harness import machine_speed
from tests.support import thoroughness

BUDGETS_S = {"unit": 50, "properties": 16, "simulation": 18, "integration": 110, "spark": 70, "e2e": 280}
"""CPU seconds of each set, as measured (docs/testing.md). A set that is not here is measured, and not judged."""
TOLERANCE = 1.2
LOOK_EVERY_S = 3.0
"""A look reads the parent of each process of the machine, which takes milliseconds of CPU. Between two looks, the last seconds
of processes are lost whose parent has ended."""
PROBE_EVERY_S = 30.0


def over(spent: dict[str, float], budgets: dict[str, float], with_slow: Collection[str] = ()) -> list[str]:
    """Return what to say of each set that took more than its budget allows, without the sets in `with_slow`."""
    return [
        f"{name} took {spent[name]:.0f} CPU seconds, more than {TOLERANCE:.0%} of its {budgets[name]:.0f}"
        for name in sorted(spent.keys() & budgets.keys() - set(with_slow))
        if spent[name] > TOLERANCE * budgets[name]
    ]


class Tree:
    """The CPU seconds of this process and of all below it, those that have ended as well. Looked at by a thread.

    A process that its parent waited for is in the parent's account. One whose parent ended before is followed to its end.
    """

    def __init__(self) -> None:
        self._root = psutil.Process()
        self._alive: dict[psutil.Process, tuple[float, int]] = {}
        """CPU seconds of each process and of its children that have ended, and the pid of its parent."""
        self._left = 0.0
        """Used by processes that have ended, and that nobody in the tree waited for."""
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True)
        self._thread.start()

    def seconds(self) -> float:
        with self._lock:
            for process in {self._root, *self._root.children(recursive=True), *self._alive}:
                try:
                    if process.name() != "postgres":
                        self._alive[process] = sum(process.cpu_times()[:4]), process.ppid()
                except psutil.Error:
                    used, parent = self._alive.pop(process, (0.0, 0))
                    if parent not in {process.pid for process in self._alive}:
                        self._left += used
            return self._left + sum(used for used, _ in self._alive.values())

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _look_on(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            with contextlib.suppress(OSError):  # a test has used up the files that this process may open
                self.seconds()


class Measuring:
    """Measures in the process that runs the tests: a worker of xdist, or pytest itself."""

    def __init__(self) -> None:
        self._tree = Tree()
        self._seconds: collections.Counter[str] = collections.Counter()
        self._probes: dict[str, list[float]] = collections.defaultdict(list)
        self._probed_at = 0.0
        self._with_slow: set[str] = set()
        self._set = ""
        self._since = 0.0
        """CPU seconds of the tree when the tests of this set began. Read between sets only, as each look costs milliseconds."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        name = set_of(item)
        if item.get_closest_marker("slow") or thoroughness.IS_THOROUGH:
            self._with_slow.add(name)
        if name != self._set:
            self._count()
            self._set = name
        if time.monotonic() - self._probed_at > PROBE_EVERY_S or not self._probes[name]:
            self._probes[name].append(machine_speed.slowdown())
            self._probed_at = time.monotonic()
        return (yield)

    def _count(self):
        used = self._tree.seconds()
        if self._set:
            self._seconds[self._set] += used - self._since
        self._since = used

    def pytest_sessionfinish(self, session):
        self._count()
        self._tree.end()
        spent = {name: seconds / statistics.fmean(self._probes[name]) for name, seconds in self._seconds.items()}
        output = {"measured": dict(self._seconds), "spent": spent, "with_slow": sorted(self._with_slow)}
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput |= output
        else:
            add(session.config.stash, output)


class Judging:
    """Adds up what the workers measured, and fails the run."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        add(node.config.stash, getattr(node, "workeroutput", {}))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        stash = session.config.stash
        if not session.exitstatus and over(stash[TOTALS], BUDGETS_S, stash[WITH_SLOW]):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter, config):
        spent, with_slow = config.stash[TOTALS], config.stash[WITH_SLOW]
        terminalreporter.section("CPU seconds of each set, its budget, and the slowdown divided out")
        for name in sorted(spent):
            budget = "with slow tests or more cases: not judged" if name in with_slow else BUDGETS_S.get(name, "none")
            slowdown = config.stash[MEASURED][name] / spent[name] if spent[name] else 1.0
            terminalreporter.line(f"{name:12} {spent[name]:6.0f} {budget:>6} {slowdown:6.2f}")
        for problem in over(spent, BUDGETS_S, with_slow):
            terminalreporter.line(f"over budget: {problem}", red=True)


MEASURED = pytest.StashKey[collections.Counter]()
"""CPU seconds of each set on this machine."""
TOTALS = pytest.StashKey[collections.Counter]()
"""CPU seconds of each set, divided by the slowdown of the machine."""
WITH_SLOW = pytest.StashKey[set]()
"""Sets that ran a test marked `slow`, or more generated cases."""


def add(stash, output):
    """Add what a process that runs tests has measured to the figures of the run."""
    stash[MEASURED].update(output.get("measured", {}))
    stash[TOTALS].update(output.get("spent", {}))
    stash[WITH_SLOW].update(output.get("with_slow", ()))


def set_of(item):
    return item.path.relative_to(item.config.rootpath / "tests").parts[0]


def pytest_configure(config):
    config.stash[MEASURED] = collections.Counter()
    config.stash[TOTALS] = collections.Counter()
    config.stash[WITH_SLOW] = set()
    is_worker = hasattr(config, "workerinput")
    if is_worker or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Measuring())
    if not is_worker:
        config.pluginmanager.register(Judging())
