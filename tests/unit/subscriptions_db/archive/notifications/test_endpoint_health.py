"""What customers are told of their endpoints, and when."""

import datetime as dt

import pytest

from delivery.model import OutcomeKind, TenantId
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


def seen(sign, at_s, times=1, reason=None):
    return Signal("ep1", "c1", sign, archive.NOW + dt.timedelta(seconds=at_s), times, reason)


def told(*signs):
    """The events that follow, each as its kind, the second at which it was told, and what it says."""
    known, found = EndpointHealth(), []
    for one in signs:
        known, event = endpoint_health.apply(known, one, POLICY)
        if event is not None:
            found.append((event.kind, (event.at - archive.NOW).total_seconds(), event.data))
    return found


def kinds(*signs):
    return [(kind, at_s) for kind, at_s, _ in told(*signs)]


@pytest.mark.parametrize(
    ("signs", "expected"),
    [
        ([seen(FAILED, 0, 4), seen(FAILED, 300)], [(EventKind.FAILING, 300)]),
        ([seen(FAILED, 0, 4), seen(FAILED, 299)], []),  # not for long enough
        ([seen(FAILED, 0, 3), seen(FAILED, 300)], []),  # not often enough
        ([seen(FAILED, 0, 9), seen(ACCEPTED, 200), seen(FAILED, 300, 9)], []),  # not only failures
        ([seen(FAILED, 0, 9), seen(FAILED, 400), seen(FAILED, 9999)], [(EventKind.FAILING, 400)]),  # once an episode
        ([seen(ACCEPTED, 0), seen(FAILED, 1), seen(ACCEPTED, 9999)], []),  # what was not told does not end
        ([seen(FAILED, 0, 9), seen(FAILED, 300), seen(ACCEPTED, 400)], [(EventKind.FAILING, 300), (EventKind.RECOVERED, 400)]),
    ],
)
def test_an_endpoint_is_failing_after_nothing_but_failures_and_recovers_with_the_first_success(signs, expected):
    assert kinds(*signs) == expected


def test_an_endpoint_that_comes_and_goes_is_told_of_once_in_the_quiet_time():
    episodes = [
        one
        for start in range(0, 7200, 600)
        for one in (seen(FAILED, start, 9), seen(FAILED, start + 300), seen(ACCEPTED, start + 400))
    ]
    assert kinds(*episodes) == [
        (EventKind.FAILING, 300), (EventKind.RECOVERED, 400), (EventKind.FAILING, 3900), (EventKind.RECOVERED, 4000),
    ]  # fmt: skip


def test_an_endpoint_that_still_fails_after_the_quiet_time_is_told_of_then():
    again = [seen(FAILED, at_s) for at_s in range(500, 4000, 60)]
    signs = [seen(FAILED, 0, 9), seen(FAILED, 300), seen(ACCEPTED, 400), *again]
    assert kinds(*signs) == [(EventKind.FAILING, 300), (EventKind.RECOVERED, 400), (EventKind.FAILING, 3920)]


def test_to_be_disabled_ends_an_episode_and_is_told_once():
    disabled = seen(DISABLED, 500, reason="failing")._replace(since=archive.NOW)
    looked_again = disabled._replace(at=archive.NOW + dt.timedelta(days=1))
    signs = [seen(FAILED, 0, 9), seen(FAILED, 300), disabled, looked_again]
    assert kinds(*signs) == [(EventKind.FAILING, 300), (EventKind.DISABLED, 500)]
    again = [seen(ACCEPTED, 600), seen(FAILED, 4000, 9), seen(FAILED, 4300)]
    assert kinds(*signs, *again) == [(EventKind.FAILING, 300), (EventKind.DISABLED, 500), (EventKind.FAILING, 4300)]


def test_who_disables_an_endpoint_again_and_again_is_told_after_the_quiet_time_of_the_last():
    def disabled(at_s, since_s):
        return seen(DISABLED, at_s)._replace(since=archive.NOW + dt.timedelta(seconds=since_s))

    found = told(disabled(1, 0), disabled(11, 10), disabled(21, 20), disabled(3600, 20), disabled(3601, 20), disabled(9999, 20))
    assert [(at_s, data["since"]) for _, at_s, data in found] == [
        (1, "2026-05-10T12:00:00.000Z"), (3601, "2026-05-10T12:00:20.000Z"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("signs", "expected"),
    [
        ([seen(POSTPONED, 0, 999)], []),
        ([seen(POSTPONED, 0, 999), seen(POSTPONED, 3599)], [(EventKind.BACKLOG_GROWING, 3599)]),
        ([seen(POSTPONED, 0, 999), seen(POSTPONED, 3600)], []),  # another window
        ([seen(POSTPONED, 0, 1500), seen(POSTPONED, 1, 9000)], [(EventKind.BACKLOG_GROWING, 0)]),
        (
            [seen(POSTPONED, 0, 1500), seen(POSTPONED, 3600, 1500)],
            [(EventKind.BACKLOG_GROWING, 0), (EventKind.BACKLOG_GROWING, 3600)],
        ),
        # A window that was told late says nothing of the next one for as long.
        ([seen(POSTPONED, 0, 500), seen(POSTPONED, 3000, 500), seen(POSTPONED, 3600, 1500), seen(POSTPONED, 6600)],
         [(EventKind.BACKLOG_GROWING, 3000), (EventKind.BACKLOG_GROWING, 6600)]),
    ],
)  # fmt: skip
def test_a_backlog_grows_when_much_is_postponed_within_the_quiet_time(signs, expected):
    assert kinds(*signs) == expected


def test_the_first_dead_letter_is_told_at_once_and_those_in_the_quiet_time_together_after_it():
    assert kinds(seen(LETTER, 0), seen(LETTER, 1)) == [(EventKind.DEAD_LETTERS_WAITING, 0)]
    later = told(seen(LETTER, 0, reason="gone"), seen(LETTER, 1, 5, reason="timeout"), seen(LETTER, 2), seen(WOKEN, 3600))
    assert later[1:] == [
        (
            EventKind.DEAD_LETTERS_WAITING, 3600,
            {"endpoint_id": "ep1", "since": "2026-05-10T12:00:01.000Z", "letters": 6, "reason": "timeout"},
        )
    ]  # fmt: skip
    assert kinds(seen(LETTER, 0), seen(LETTER, 1), seen(LETTER, 4000)) == [
        (EventKind.DEAD_LETTERS_WAITING, at) for at in (0, 4000)
    ]


def test_a_condition_is_to_be_woken_only_while_it_has_letters_to_tell():
    known, _ = endpoint_health.apply(EndpointHealth(), seen(LETTER, 0), POLICY)
    assert known.wake_at(POLICY) is None
    known, _ = endpoint_health.apply(known, seen(LETTER, 1), POLICY)
    assert known.wake_at(POLICY) == archive.NOW + dt.timedelta(seconds=3600)
    known, event = endpoint_health.apply(known, seen(WOKEN, 3600), POLICY)
    assert event is not None
    assert known.wake_at(POLICY) is None
    assert endpoint_health.apply(known, seen(WOKEN, 9999), POLICY) == (known, None)


def test_the_id_of_an_event_is_the_same_however_often_it_is_made():
    made = [endpoint_health.apply(EndpointHealth(), seen(LETTER, 0), POLICY)[1] for _ in range(2)]
    assert made[0].event_id == made[1].event_id == "op_44bffd3d4d782a4ecada62008117247f"


def test_an_event_is_the_same_by_whatever_clock_its_moment_is_said():
    elsewhere = dt.timezone(dt.timedelta(hours=2))
    one = seen(DISABLED, 0)
    _, here = endpoint_health.apply(EndpointHealth(), one, POLICY)
    _, there = endpoint_health.apply(EndpointHealth(), one._replace(at=one.at.astimezone(elsewhere)), POLICY)
    assert (here.event_id, here.data) == (there.event_id, there.data)


def test_a_row_of_the_log_says_what_was_accepted_failed_and_postponed_in_its_order():
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


def test_what_the_job_writes_is_read():
    [row] = archive.attempts(archive.outcome(), archive.outcome()._replace(kind=OutcomeKind.POSTPONED, attempts=()))
    assert [(one.kind, one.reason) for one in signals.log_signals(log_records.decode(row), archive.NOW)] == [
        (FAILED, "server_error"), (POSTPONED, "timeout"),
    ]  # fmt: skip


def test_a_dead_letter_is_a_sign_but_one_of_an_operational_event_is_none():
    assert signals.dead_letter_signals(archive.letter_row(archive.letter()), archive.NOW) == [seen(LETTER, 0, reason="timeout")]
    assert signals.dead_letter_signals(archive.letter_row(archive.letter(tenant_id=TenantId("fanout"))), archive.NOW) == []
