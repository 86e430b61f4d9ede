"""The slowdown is the faster of two starts of Python, and a start that fails is no measurement."""

import pytest

from load_tests.harness import machine_speed


def test_the_faster_of_two_starts_counts(tmp_path):
    longer_once = f"""
import pathlib, time
first = pathlib.Path({str(tmp_path / "first")!r})
if not first.exists():
    first.touch()
    while time.process_time() < 0.9: pass
"""
    assert machine_speed.slowdown(longer_once) < 0.4 / machine_speed.REFERENCE_S


def test_work_that_takes_longer_is_a_greater_slowdown():
    assert machine_speed.slowdown("import time\nwhile time.process_time() < 0.2: pass") > 0.19 / machine_speed.REFERENCE_S


def test_a_start_that_fails_is_no_measurement():
    with pytest.raises(RuntimeError, match="exit code 3"):
        machine_speed.slowdown("raise SystemExit(3)")
