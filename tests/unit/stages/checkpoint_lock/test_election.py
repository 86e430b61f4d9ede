"""The holder of a checkpoint's Lease is decided from the driver's observations and its own clock."""

import pytest

from delivery.stages.checkpoint_lock import election
from delivery.stages.checkpoint_lock.election import ElectionStep

NOW = 1000.0


def record(holder="other", version="7", duration_s=15):
    return election.LeaseRecord(holder=holder, duration_s=duration_s, version=version, acquired="then", transitions=3)


def observed(record=None, ago=0.0):
    return election.Observed(record=record, since=NOW - ago)


@pytest.mark.parametrize(
    ("seen", "decision"),
    [
        (observed(), ElectionStep.ACQUIRE),
        (observed(record("")), ElectionStep.ACQUIRE),
        (observed(record("me")), ElectionStep.ACQUIRE),  # the answer to its first write was lost
        (observed(record()), ElectionStep.WAIT),
        (observed(record(), ago=14.9), ElectionStep.WAIT),
        (observed(record(), ago=15), ElectionStep.ACQUIRE),
        (observed(record(duration_s=60), ago=15), ElectionStep.WAIT),  # the holder's claim counts, not ours
        (observed(record(duration_s=60), ago=60), ElectionStep.ACQUIRE),
    ],
)
def test_a_driver_without_the_lease_waits_or_acquires(seen, decision):
    assert election.decide("me", seen, None, NOW) is decision


@pytest.mark.parametrize(
    ("seen", "renewed_ago", "decision"),
    [
        (observed(record("me")), 2, ElectionStep.RENEW),
        (observed(record("me")), 9.9, ElectionStep.RENEW),
        (observed(record("me")), 10, ElectionStep.LOST),
        (observed(record("me")), 3600, ElectionStep.LOST),  # stopped for an hour, and nobody took the Lease
        (observed(record("other")), 2, ElectionStep.LOST),
        (observed(record("")), 2, ElectionStep.LOST),
        (observed(None), 2, ElectionStep.RENEW),  # deleted: it is created again, unless another driver does first
        (observed(None), 10, ElectionStep.LOST),
    ],
)
def test_a_holder_renews_or_has_lost(seen, renewed_ago, decision):
    assert election.decide("me", seen, NOW - renewed_ago, NOW) is decision


def test_only_a_changed_record_counts_as_a_renewal():
    first = observed(record(version="7"), ago=20)
    assert first.updated(record(version="7"), NOW) == first
    assert first.updated(record(version="8"), NOW).since == NOW
    assert first.updated(None, NOW) == observed(None)


def test_an_acquired_record_names_the_version_it_replaces_and_counts_the_change():
    assert election.claimed("me", observed(record("other")), "now") == election.LeaseRecord(
        holder="me", duration_s=election.LEASE_S, version="7", acquired="now", transitions=4
    )
    assert election.claimed("me", observed(), "now") == election.LeaseRecord(
        holder="me", duration_s=election.LEASE_S, version="", acquired="now", transitions=0
    )


def test_a_renewed_record_keeps_when_it_was_acquired():
    renewed = election.claimed("me", observed(record("me")), "now")
    assert (renewed.acquired, renewed.transitions, renewed.version) == ("then", 3, "7")


def test_a_released_lease_is_acquired_at_once():
    assert election.decide("next", observed(election.released(record("me"))), None, NOW) is ElectionStep.ACQUIRE


def test_a_fenced_driver_has_ended_before_another_may_acquire():
    """A request may hang, the log may stand still for a second, and workers end two seconds after their JVM."""
    from delivery.stages.checkpoint_lock import kubernetes_lease  # noqa: PLC0415

    assert election.RENEW_DEADLINE_S + kubernetes_lease.WATCH_S + kubernetes_lease.LAST_WORDS_S + 2 < election.LEASE_S
