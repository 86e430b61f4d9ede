"""Times that a person types: moments ago, moments to come, and texts that are refused with the name of their option."""

import datetime as dt

import pytest
from typer.testing import CliRunner

from delivery import errors
from fanout.cli import main
from fanout.terminal import times

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("90m", NOW_MS - 90 * 60_000),
        ("7d", NOW_MS - 7 * 86_400_000),
        ("2027-01-15T08:00:00Z", 1_800_000_000_000),
        ("2027-01-15T08:00", 1_800_000_000_000),
        ("2027-01-15T10:00+02:00", 1_800_000_000_000),
    ],
)
def test_a_time_is_a_duration_ago_or_a_moment(typed, expected):
    assert times.moment_ms("--since", typed, now_ms=NOW_MS) == expected


@pytest.mark.parametrize("typed", ["", "yesterday", "24", "-1h", "1w"])
def test_an_invalid_time_is_refused_with_its_option(typed):
    with pytest.raises(errors.SettingsError, match="--since"):
        times.moment_ms("--since", typed, now_ms=NOW_MS)


def test_a_time_ahead_is_a_duration_from_now():
    assert times.moment_ms("--expires", "90d", now_ms=NOW_MS, is_ahead=True) == NOW_MS + 90 * 86_400_000
    with pytest.raises(errors.SettingsError, match="--expires must be a time from now"):
        times.moment_ms("--expires", "soon", now_ms=NOW_MS, is_ahead=True)


@pytest.mark.parametrize("typed", ["9999999d", "1969-12-31", "0001-01-01T00:00+10:00", "9999-12-31T23:59:59-10:00"])
@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_moment_is_in_a_year_that_python_and_kafka_know(typed, is_ahead):
    with pytest.raises(errors.SettingsError, match="--since must be a moment of the years 1970 to 9999"):
        times.moment_ms("--since", typed, now_ms=NOW_MS, is_ahead=is_ahead)


def test_the_last_moment_is_in_the_year_9999():
    assert dt.datetime.fromtimestamp(times.LAST_MS / 1000, dt.UTC).isoformat() == "9999-12-31T23:59:59+00:00"
    assert times.moment_ms("--since", "9999-12-31T23:59:59Z", now_ms=NOW_MS) == times.LAST_MS


@pytest.mark.parametrize("typed", ["9999999d", "0s", "2026-01-01", "soon"])
def test_a_key_that_cannot_expire_then_is_not_created(typed):
    done = CliRunner().invoke(main.app, ["api-keys", "create", "--scope", "operator", "--expires", typed])
    assert isinstance(done.exception, errors.SettingsError)
    assert "--expires" in str(done.exception)


def test_statistics_begin_at_a_moment_that_exists():
    done = CliRunner().invoke(main.app, ["endpoints", "statistics", "orders", "--since", "9999999d"])
    assert isinstance(done.exception, errors.SettingsError)
    assert "--since" in str(done.exception)


@pytest.mark.parametrize(
    ("at_ms", "said"),
    [(0, "1970-01-01 00:00:00"), (1_795_000_000_000_000, "1795000000000000 ms since 1970"), (-1, "-1 ms since 1970")],
)
def test_a_time_that_is_not_in_milliseconds_is_shown_as_a_number(at_ms, said):
    """Regression: `fanout dead-letters show` ended with a traceback for a record whose time was in microseconds."""
    assert times.shown(at_ms) == said
