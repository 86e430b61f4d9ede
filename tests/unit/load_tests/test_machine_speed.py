"""The slowdown is the faster of two starts of Python, and a start that fails is no measurement."""

import pytest

from load_tests.harness import machine_speed


def test_the_faster_of_two_starts_counts(monkeypatch):
    seconds = iter([5 * machine_speed.REFERENCE_S, 1.5 * machine_speed.REFERENCE_S])
    monkeypatch.setattr(machine_speed, "_start_s", lambda: next(seconds))
    assert machine_speed.slowdown() == pytest.approx(1.5)


def test_a_start_that_takes_longer_is_a_greater_slowdown(monkeypatch):
    usual = machine_speed.slowdown()
    monkeypatch.setattr(machine_speed, "WORK", "import time\nwhile time.process_time() < 1: pass")
    assert machine_speed.slowdown() > max(usual, 1 / machine_speed.REFERENCE_S - 0.1)


def test_a_start_that_fails_is_no_measurement(monkeypatch):
    monkeypatch.setattr(machine_speed, "WORK", "raise SystemExit(3)")
    with pytest.raises(RuntimeError, match="exit status"):
        machine_speed.slowdown()
