"""Signals about an endpoint become operational events: at which second, and at most once in the quiet time."""

import datetime as dt

import pytest

from delivery.model import OutcomeKind
from delivery.registry_model import TenantId
from delivery.webhooks.results import log_records
from delivery.webhooks.results.log_entries import (
    AttemptEntry,
    BatchAttemptEntry,
    BatchPostponedEntry,
    PostponedEntry,
    SkippedEntry,
)
from subscriptions_db.archive.ingest import signals
from subscriptions_db.archive.notifications import endpoint_health
from subscriptions_db.archive.notifications.endpoint_health import EndpointHealth, EventKind, Policy, Signal, SignalKind
from tests.support import archive, records

POLICY = Policy(failing_after_s=300, backlog_events=1000, quiet_s=3600)
ACCEPTED, FAILED, POSTPONED, LETTER, DISABLED, WOKEN = SignalKind


def seen(kind, at_s, times=1, reason=None):
    return Signal("ep1", "c1", kind, archive.NOW + dt.timedelta(seconds=at_s), times, reason)


def events_of(*given):
    """Return the operational events that follow from signals: kind, second of the report, and data of each."""
    known, found = EndpointHealth(), []
    for signal in given:
        known, event = endpoint_health.apply(known, signal, POLICY)
        if event is not None:
            found.append((event.kind, (event.at - archive.NOW).total_seconds(), event.data))
    return found


def kinds(*given):
    return [(kind, at_s) for kind, at_s, _ in events_of(*given)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([seen(FAILED, 0, 4), seen(FAILED, 300)], [(EventKind.FAILING, 300)]),
        ([seen(FAILED, 0, 4), seen(FAILED, 299)], []),  # not for long enough
        ([seen(FAILED, 0, 3), seen(FAILED, 300)], []),  # not often enough
        ([seen(FAILED, 0, 9), seen(ACCEPTED, 200), seen(FAILED, 300, 9)], []),  # not only failures
        ([seen(FAILED, 0, 9), seen(FAILED, 400), seen(FAILED, 9999)], [(EventKind.FAILING, 400)]),  # once an episode
        ([seen(ACCEPTED, 0), seen(FAILED, 1), seen(ACCEPTED, 9999)], []),  # a failure without an event does not end
        ([seen(FAILED, 0, 9), seen(FAILED, 300), seen(ACCEPTED, 400)], [(EventKind.FAILING, 300), (EventKind.RECOVERED, 400)]),
    ],
)
def test_an_endpoint_fails_by_failures_alone_and_then_recovers(given, expected):
    assert kinds(*given) == expected


def test_repeated_episodes_are_reported_once_in_the_quiet_time():
    episodes = [
        signal
        for start in range(0, 7200, 600)
        for signal in (seen(FAILED, start, 9), seen(FAILED, start + 300), seen(ACCEPTED, start + 400))
    ]
    assert kinds(*episodes) == [
        (EventKind.FAILING, 300), (EventKind.RECOVERED, 400), (EventKind.FAILING, 3900), (EventKind.RECOVERED, 4000),
    ]  # fmt: skip


def test_an_endpoint_that_still_fails_is_reported_after_quiet_time():
    again = [seen(FAILED, at_s) for at_s in range(500, 4000, 60)]
    given = [seen(FAILED, 0, 9), seen(FAILED, 300), seen(ACCEPTED, 400), *again]
    assert kinds(*given) == [(EventKind.FAILING, 300), (EventKind.RECOVERED, 400), (EventKind.FAILING, 3920)]


def test_disabling_ends_an_episode_and_is_reported_once():
    disabled = seen(DISABLED, 500, reason="failing")._replace(since=archive.NOW)
    looked_again = disabled._replace(at=archive.NOW + dt.timedelta(days=1))
    given = [seen(FAILED, 0, 9), seen(FAILED, 300), disabled, looked_again]
    assert kinds(*given) == [(EventKind.FAILING, 300), (EventKind.DISABLED, 500)]
    again = [seen(ACCEPTED, 600), seen(FAILED, 4000, 9), seen(FAILED, 4300)]
    assert kinds(*given, *again) == [(EventKind.FAILING, 300), (EventKind.DISABLED, 500), (EventKind.FAILING, 4300)]


def test_a_disabling_in_the_quiet_time_forgets_earlier_failures():
    """Regression: enabled within the quiet time, the endpoint was reported with failures from before it was disabled."""
    disabled = [seen(DISABLED, at_s)._replace(since=archive.NOW + dt.timedelta(seconds=at_s)) for at_s in (0, 400)]
    failed = [seen(FAILED, 100, 9), *disabled[1:], seen(FAILED, 500), seen(FAILED, 900, 9)]
    assert [data["since"] for kind, _, data in events_of(disabled[0], *failed) if kind is EventKind.FAILING] == [
        "2026-05-10T12:08:20.000Z"
    ]


def test_a_failing_endpoint_disabled_in_the_quiet_time_recovers():
    """Each `failing` event is followed by `recovered` or `disabled`: docs/operational-events.md."""
    disabled = [seen(DISABLED, at_s)._replace(since=archive.NOW + dt.timedelta(seconds=at_s)) for at_s in (0, 700)]
    given = [disabled[0], seen(FAILED, 100, 9), seen(FAILED, 500), disabled[1], seen(ACCEPTED, 800)]
    assert kinds(*given) == [(EventKind.DISABLED, 0), (EventKind.FAILING, 500), (EventKind.RECOVERED, 800)]


def test_repeated_disabling_is_reported_after_the_quiet_time():
    def disabled(at_s, since_s):
        return seen(DISABLED, at_s)._replace(since=archive.NOW + dt.timedelta(seconds=since_s))

    found = events_of(
        disabled(1, 0), disabled(11, 10), disabled(21, 20), disabled(3600, 20), disabled(3601, 20), disabled(9999, 20)
    )
    assert [(at_s, data["since"]) for _, at_s, data in found] == [
        (1, "2026-05-10T12:00:00.000Z"), (3601, "2026-05-10T12:00:20.000Z"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([seen(POSTPONED, 0, 999)], []),
        ([seen(POSTPONED, 0, 999), seen(POSTPONED, 3599)], [(EventKind.BACKLOG_GROWING, 3599)]),
        ([seen(POSTPONED, 0, 999), seen(POSTPONED, 3600)], []),  # another window
        ([seen(POSTPONED, 0, 1500), seen(POSTPONED, 1, 9000)], [(EventKind.BACKLOG_GROWING, 0)]),
        (
            [seen(POSTPONED, 0, 1500), seen(POSTPONED, 3600, 1500)],
            [(EventKind.BACKLOG_GROWING, 0), (EventKind.BACKLOG_GROWING, 3600)],
        ),
        # After an event late in a window, the next event waits for as long as a window.
        ([seen(POSTPONED, 0, 500), seen(POSTPONED, 3000, 500), seen(POSTPONED, 3600, 1500), seen(POSTPONED, 6600)],
         [(EventKind.BACKLOG_GROWING, 3000), (EventKind.BACKLOG_GROWING, 6600)]),
    ],
)  # fmt: skip
def test_many_postponed_deliveries_in_a_window_report_a_backlog(given, expected):
    assert kinds(*given) == expected


def test_the_first_dead_letter_is_reported_at_once_others_together():
    assert kinds(seen(LETTER, 0), seen(LETTER, 1)) == [(EventKind.DEAD_LETTERS_WAITING, 0)]
    later = events_of(seen(LETTER, 0, reason="gone"), seen(LETTER, 1, 5, reason="timeout"), seen(LETTER, 2), seen(WOKEN, 3600))
    assert later[1:] == [
        (
            EventKind.DEAD_LETTERS_WAITING, 3600,
            {"endpoint_id": "ep1", "since": "2026-05-10T12:00:01.000Z", "letters": 6, "reason": "timeout"},
        )
    ]  # fmt: skip
    assert kinds(seen(LETTER, 0), seen(LETTER, 1), seen(LETTER, 4000)) == [
        (EventKind.DEAD_LETTERS_WAITING, at) for at in (0, 4000)
    ]


def test_wake_at_is_set_only_while_dead_letters_are_unreported():
    known, _ = endpoint_health.apply(EndpointHealth(), seen(LETTER, 0), POLICY)
    assert known.wake_at(POLICY) is None
    known, _ = endpoint_health.apply(known, seen(LETTER, 1), POLICY)
    assert known.wake_at(POLICY) == archive.NOW + dt.timedelta(seconds=3600)
    known, event = endpoint_health.apply(known, seen(WOKEN, 3600), POLICY)
    assert event is not None
    assert known.wake_at(POLICY) is None
    assert endpoint_health.apply(known, seen(WOKEN, 9999), POLICY) == (known, None)


def test_an_operational_event_built_twice_has_the_same_id():
    made = [endpoint_health.apply(EndpointHealth(), seen(LETTER, 0), POLICY)[1] for _ in range(2)]
    assert made[0].event_id == made[1].event_id == "op_44bffd3d4d782a4ecada62008117247f"


def test_an_operational_event_does_not_depend_on_the_time_zone():
    elsewhere = dt.timezone(dt.timedelta(hours=2))
    signal = seen(DISABLED, 0)
    _, in_utc = endpoint_health.apply(EndpointHealth(), signal, POLICY)
    _, in_zone = endpoint_health.apply(EndpointHealth(), signal._replace(at=signal.at.astimezone(elsewhere)), POLICY)
    assert (in_utc.event_id, in_utc.data) == (in_zone.event_id, in_zone.data)


def test_log_signals_are_in_the_order_of_the_entries():
    row = records.log(
        records.entry(AttemptEntry, error_class="timeout"),
        records.entry(BatchAttemptEntry, error_class="server_error", count=7),
        records.entry(AttemptEntry, error_class="local"),  # a fault of ours
        records.entry(AttemptEntry),
        records.entry(PostponedEntry, reason="circuit_open"),
        records.entry(PostponedEntry, reason="circuit_open", tenant_id="fanout"),
        records.entry(BatchPostponedEntry, reason="circuit_open", count=7),
        records.entry(SkippedEntry, reason="subscription_paused"),
    )
    assert signals.log_signals(row, archive.NOW) == [
        seen(FAILED, 0, 2, "server_error"), seen(ACCEPTED, 0), seen(POSTPONED, 0, 8, "circuit_open"),
    ]  # fmt: skip


def test_signals_are_read_from_records_that_the_job_writes():
    [row] = archive.attempts(archive.outcome(), archive.outcome()._replace(kind=OutcomeKind.POSTPONED, attempts=()))
    assert [(signal.kind, signal.reason) for signal in signals.log_signals(log_records.decode(row), archive.NOW)] == [
        (FAILED, "server_error"), (POSTPONED, "timeout"),
    ]  # fmt: skip


def test_a_dead_letter_of_an_operational_event_gives_no_signal():
    assert signals.dead_letter_signals(archive.letter_row(archive.letter()), archive.NOW) == [seen(LETTER, 0, reason="timeout")]
    assert signals.dead_letter_signals(archive.letter_row(archive.letter(tenant_id=TenantId("fanout"))), archive.NOW) == []
