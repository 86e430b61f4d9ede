"""Spark's executors and their fake do the same."""

import subprocess
import sys

import pytest

from tests.support import executors


def test_the_fake_does_what_sparks_executors_do():
    cluster = executors.FakeExecutors(started=2, room=2)

    def now(value, wanted):
        assert value() == wanted

    executors.hold_to_contract(cluster, now)


@pytest.mark.spark
@pytest.mark.slow
def test_sparks_executors_come_when_asked_for_and_end_when_decommissioned(tmp_path):
    """In a process of its own: this one has a Spark without executors."""
    words = [sys.executable, "-m", "tests.support.executors", str(tmp_path)]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
