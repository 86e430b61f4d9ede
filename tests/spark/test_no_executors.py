"""A job for which Spark has no executor can be stopped."""

import subprocess
import sys

import pytest


@pytest.mark.spark
@pytest.mark.slow
def test_a_stop_ends_lanes_whose_jobs_wait_for_an_executor():
    """Regression: the lanes waited for ever, so Spark was never stopped, and the pods of its executors stayed pending."""
    words = [sys.executable, "-m", "tests.support.no_executors"]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
