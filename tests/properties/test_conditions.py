"""The operational events about an endpoint are consistent, bounded, and the same after any restart."""

import collections
import datetime as dt
import itertools

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from subscriptions_db.archive.notifications import endpoint_health
from subscriptions_db.archive.notifications.endpoint_health import EndpointHealth, EventKind, Policy, Signal, SignalKind
from tests.support import archive, thoroughness

POLICY = Policy(failing_after_s=30, backlog_events=20, quiet_s=200)
steps = st.tuples(
    st.sampled_from(list(SignalKind)), st.integers(0, 120), st.integers(1, 12), st.sampled_from(["timeout", None])
)


@st.composite
def histories(draw):
    at, seen = archive.NOW, []
    for sign, wait_s, times, reason in draw(st.lists(steps, max_size=80)):
        at += dt.timedelta(seconds=wait_s)
        seen.append(Signal("ep1", "c1", sign, at, times, reason))
    return seen


def fold(history, known=None, *, restarts=frozenset()):
    known, events = known or EndpointHealth(), []
    for number, signal in enumerate(history):
        if number in restarts:
            known = msgspec.json.decode(msgspec.json.encode(known), type=EndpointHealth)
        known, event = endpoint_health.apply(known, signal, POLICY)
        events += [event] if event else []
    return events


@settings(max_examples=thoroughness.cases(120, thorough=300), deadline=None)
@given(histories())
def test_failing_and_recovered_alternate(history):
    is_failing = False
    for event in fold(history):
        if event.kind is EventKind.FAILING:
            assert not is_failing
        if event.kind is EventKind.RECOVERED:
            assert is_failing
        if event.kind in {EventKind.FAILING, EventKind.RECOVERED, EventKind.DISABLED}:
            is_failing = event.kind is EventKind.FAILING


@settings(max_examples=thoroughness.cases(120, thorough=300), deadline=None)
@given(histories())
def test_each_kind_comes_once_in_the_quiet_time_with_its_own_id(history):
    by_kind = collections.defaultdict(list)
    events = fold(history)
    for event in events:
        by_kind[event.kind].append(event.at)
    for kind, moments in by_kind.items():
        if kind is not EventKind.RECOVERED:  # which follows a failing
            waits = [(after - before).total_seconds() for before, after in itertools.pairwise(moments)]
            assert all(wait_s >= POLICY.quiet_s for wait_s in waits), kind
    assert len(by_kind[EventKind.RECOVERED]) <= len(by_kind[EventKind.FAILING])
    assert len({event.event_id for event in events}) == len(events)


@settings(max_examples=thoroughness.cases(120, thorough=300), deadline=None)
@given(histories(), st.frozensets(st.integers(0, 80)))
def test_a_restart_anywhere_publishes_the_same_events(history, restarts):
    assert fold(history, restarts=restarts) == fold(history)


@settings(max_examples=thoroughness.cases(120, thorough=300), deadline=None)
@given(histories())
def test_events_count_every_dead_letter_in_the_end(history):
    end = history[-1].at + dt.timedelta(seconds=POLICY.quiet_s) if history else archive.NOW
    events = fold([*history, Signal("ep1", "c1", SignalKind.WOKEN, end)])
    letters = sum(signal.times for signal in history if signal.kind is SignalKind.DEAD_LETTER)
    assert sum(event.data["letters"] for event in events if event.kind is EventKind.DEAD_LETTERS_WAITING) == letters
