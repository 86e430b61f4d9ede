"""One cluster, one platform and one release for all tests: an install costs most of the time.

The order of the files is fixed, and each test leaves the release installed and ready.
"""

from __future__ import annotations

import datetime as dt
import tempfile
import time
from pathlib import Path

import pytest

from tests.k8s import arrivals, release
from tests.k8s import platform as platforms
from tests.k8s.cluster import __main__ as cluster
from tests.k8s.cluster import binaries

ORDER = ("install", "changes", "faults", "scaling", "bad_input", "development", "rights", "uninstall", "document")
"""Tests that need no release come before these. The rights are judged by what the tests before them have made the driver do."""
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    places = {f"test_{name}": place for place, name in enumerate(ORDER, start=1)}
    ours = [item for item in items if item.path.parent == HERE]
    others = [item for item in items if item.path.parent != HERE]
    for item in ours:
        item.add_marker(pytest.mark.k8s)
    items[:] = others + sorted(ours, key=lambda item: places.get(item.path.stem, 0))  # stable: within a file as written


@pytest.fixture(scope="session", autouse=True)
def programs():
    """Build the programs that the cache lacks, so that no test is left out for want of them.

    `make test-k8s` builds them before, because on a slow machine it takes longer than a test may.
    """
    binaries.ensure(cluster.say)


@pytest.fixture(scope="session")
def folder():
    """A folder that is not pytest's: each other run of pytest closes /tmp/pytest-of-root to the user of Postgres again."""
    with tempfile.TemporaryDirectory(prefix="fanout-k8s-", ignore_cleanup_errors=True) as made:
        yield Path(made)


@pytest.fixture(scope="session")
def platform(request, folder):
    cluster.up()
    cluster.image(platforms.IMAGE)
    began_at = dt.datetime.now(dt.UTC).isoformat()
    with platforms.started(folder) as started:
        started.began_at = began_at
        request.config.k8s_report = started.report
        yield started
        started.release.uninstall()


@pytest.fixture(scope="session")
def installed(platform):
    """The release, after the first delivery."""
    began = time.monotonic()
    platform.release.install(platform.values())
    migrated_s = time.monotonic() - began
    platform.allow_serve()
    platform.register()
    first = platform.load().publish(1)
    release.eventually(lambda: platform.arrived.missing(first, arrivals.DIRECT), lambda left: not left, within_s=240)
    platform.first_delivery_s = time.monotonic() - began
    platform.release.await_ready("driver")
    platform.prove("install", first, migrated_s=migrated_s, first_delivery_s=platform.first_delivery_s)
    return platform


@pytest.fixture
def ready(installed):
    """The release before a test: every pod is ready, and nothing waits."""
    installed.release.await_ready("driver")
    release.eventually(lambda: installed.release.running("executor"), within_s=120)
    return installed


def pytest_terminal_summary(terminalreporter, config):
    report = getattr(config, "k8s_report", None)
    if report:
        terminalreporter.section("figures of make test-k8s")
        for line in report.lines():
            terminalreporter.line(line)
