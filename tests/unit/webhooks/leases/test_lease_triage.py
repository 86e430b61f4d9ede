"""Each entry of a lease has one decision before its attempt, and one after it."""

import dataclasses

import pytest

from delivery import errors
from delivery.model import Attempt, NextAttempt, OutcomeKind, SkipReason
from delivery.registry_model import DeliveryMode, EndpointStatus, Retrying
from delivery.registry_model import SubscriptionStatus as Status
from delivery.webhooks.batching import segment
from delivery.webhooks.leases import lease_triage
from delivery.webhooks.leases.lease_triage import RegistryView, ToAttempt, ToEnd, ToRequeue, WasDelivered
from delivery.webhooks.policy import retry_reasons
from delivery.webhooks.results import completed_work
from delivery.webhooks.routing import registries
from tests.support import builders, fakes
from tests.support.leases import NOW_MS, lease, waiting

REVISION, NEWER = 5, 6
MAX_AGE_S = 100.0
ENDPOINT = builders.endpoint(retrying=Retrying(schedule_s=(10, 100)))
GIVEN_UP = {"number": 0, "given_up": retry_reasons.EXPIRED}
BROUGHT_FORWARD = {"number": 0, "given_up": SkipReason.BROUGHT_FORWARD}
FIRST, SECOND = builders.event(event_id="e1"), builders.event(event_id="e2", record=builders.record(offset=1))


def view(*subscriptions, endpoint=ENDPOINT, deleted_tenants=(), **fields):
    """Return a registry that knows ep1: by default an active endpoint with the active subscription s1."""
    known = {row.subscription_id: row for row in subscriptions or [builders.subscription()]}
    endpoint = endpoint and dataclasses.replace(endpoint, **fields)
    return RegistryView(registries.Destination(endpoint, known, deleted_tenants), REVISION, MAX_AGE_S)


def decided(of, known, ended=frozenset()):
    return lease_triage.triage(of, known, ended, NOW_MS)


PAUSED = builders.subscription(status=Status.PAUSED)
ALL = range(1)


@pytest.mark.parametrize(
    ("known", "fields", "entry", "decision"),
    [
        pytest.param(view(), {}, {}, ToAttempt(), id="known"),
        pytest.param(view(endpoint=None), {}, {}, ToEnd({SkipReason.ENDPOINT_DELETED: ALL}), id="endpoint deleted"),
        pytest.param(
            view(customer_id="c2", status=EndpointStatus.PAUSED), {}, {}, ToEnd({SkipReason.ENDPOINT_DELETED: ALL}),
            id="endpoint of another customer, even if paused",
        ),
        pytest.param(view(mode=DeliveryMode.BATCH), {}, {}, ToEnd({SkipReason.ENDPOINT_DELETED: ALL}), id="another mode"),
        pytest.param(view(PAUSED), {}, {}, ToEnd({SkipReason.SUBSCRIPTION_PAUSED: ALL}), id="subscription paused"),
        pytest.param(
            view(deleted_tenants={"t1"}), {}, {}, ToEnd({SkipReason.TENANT_DELETED: [0]}), id="tenant deleted",
        ),
        pytest.param(view(), GIVEN_UP, {}, ToEnd({None: ALL}), id="given up"),
        pytest.param(view(status=EndpointStatus.PAUSED), GIVEN_UP, {}, ToEnd({None: ALL}), id="given up, endpoint paused"),
        pytest.param(view(PAUSED), GIVEN_UP, {}, ToEnd({SkipReason.SUBSCRIPTION_PAUSED: ALL}), id="given up, to be skipped"),
        pytest.param(view(), BROUGHT_FORWARD, {}, ToEnd({SkipReason.BROUGHT_FORWARD: ALL}), id="a resend of what waits"),
        pytest.param(
            view(endpoint=None), BROUGHT_FORWARD, {}, ToEnd({SkipReason.BROUGHT_FORWARD: ALL}),
            id="a resend of what waits, endpoint deleted",
        ),
        pytest.param(
            view(endpoint=None), {}, {"revision": NEWER, "since_ms": NOW_MS, "retries": 1},
            ToRequeue(NextAttempt(NOW_MS + 5000, 1), "registry_behind"), id="registry behind: at least 5 s",
        ),
        pytest.param(
            view(endpoint=None), {}, {"revision": NEWER, "since_ms": NOW_MS - 99_999},
            ToRequeue(NextAttempt(NOW_MS + 99_999, 0), "registry_behind"), id="registry behind: as long as it waited",
        ),
        pytest.param(
            view(endpoint=None), {}, {"revision": NEWER, "since_ms": NOW_MS - 100_000},
            ToEnd({SkipReason.ENDPOINT_DELETED: ALL}), id="older than any registry",
        ),
        pytest.param(
            view(endpoint=None), {}, {"revision": REVISION, "since_ms": NOW_MS},
            ToEnd({SkipReason.ENDPOINT_DELETED: ALL}), id="of this registry",
        ),
        pytest.param(
            view(endpoint=None), GIVEN_UP, {"revision": NEWER, "since_ms": NOW_MS},
            ToEnd({None: ALL}), id="given up, registry behind",
        ),
        pytest.param(
            view(endpoint=None), GIVEN_UP, {"revision": REVISION, "since_ms": NOW_MS},
            ToEnd({SkipReason.ENDPOINT_DELETED: ALL}), id="given up, of this registry",
        ),
        pytest.param(
            view(endpoint=None), BROUGHT_FORWARD, {"revision": NEWER, "since_ms": NOW_MS},
            ToEnd({SkipReason.BROUGHT_FORWARD: ALL}), id="a resend of what waits, registry behind",
        ),
        pytest.param(
            view(PAUSED), {}, {"revision": NEWER, "since_ms": NOW_MS},
            ToEnd({SkipReason.SUBSCRIPTION_PAUSED: ALL}), id="paused in an old registry",
        ),
    ],
)  # fmt: skip
def test_an_entry_has_one_decision(known, fields, entry, decision):
    assert decided(lease(waiting(**entry), **fields), known) == (None, [decision])


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"status": EndpointStatus.PAUSED}, "endpoint_paused"),
        ({"status": EndpointStatus.DISABLED}, "endpoint_disabled"),
        ({"status": EndpointStatus.DISABLED, "fault": "no secret"}, "endpoint_quarantined"),
    ],
)
def test_a_stopped_endpoint_requeues_the_whole_lease(fields, reason):
    """Nothing else is asked: neither deleted subscriptions nor the completed-work log matter."""
    of = lease(waiting(again_at_ms=7, retries=2), waiting(subscriptions=["gone"], again_at_ms=8))
    expected = [ToRequeue(NextAttempt(7, 2), reason), ToRequeue(NextAttempt(8, 0), reason)]
    assert decided(of, view(**fields)) == (reason, expected)


@pytest.mark.parametrize("status", [EndpointStatus.PAUSED, EndpointStatus.DISABLED])
def test_entries_of_another_mode_do_not_wait_for_a_stopped_endpoint(status):
    """Their endpoint was deleted. Its id belongs to another one now, which is stopped."""
    stopped = view(mode=DeliveryMode.BATCH, status=status)
    paused = f"endpoint_{status}"
    reason, decisions = decided(lease(waiting(), waiting(FIRST, SECOND)), stopped)
    assert decisions == [ToEnd({SkipReason.ENDPOINT_DELETED: ALL}), ToRequeue(NextAttempt(0, 0), paused)]
    assert reason is None  # with a reason, the shard would keep the entry that has ended
    assert decided(lease(waiting(FIRST, SECOND)), stopped) == (paused, [ToRequeue(NextAttempt(0, 0), paused)])


def accepted(*events):
    """The completed-work log in which s1 has accepted these events."""
    return {completed_work.key_of_packed(segment.unpacked(waiting(event).packed[0]), "s1") for event in events}


@pytest.mark.parametrize(
    ("ended", "entry", "decision"),
    [
        pytest.param((), {}, ToAttempt(), id="nothing was accepted"),
        pytest.param((FIRST,), {}, ToAttempt(), id="a part was accepted"),
        pytest.param((FIRST, SECOND), {}, WasDelivered({}), id="all was accepted"),
        pytest.param((FIRST, SECOND), {"replay": "rpl_1"}, ToAttempt(), id="a replay"),
        pytest.param(
            (FIRST,), {"through": ("s1", "gone")}, WasDelivered({SkipReason.SUBSCRIPTION_DELETED: [1]}),
            id="all but the skipped event was accepted",
        ),
        pytest.param((SECOND,), {"through": ("s1", "gone")}, ToAttempt(), id="only the skipped event was accepted"),
    ],
)  # fmt: skip
def test_an_accepted_batch_is_not_attempted(ended, entry, decision):
    known = view(mode=DeliveryMode.BATCH)
    assert decided(lease(waiting(FIRST, SECOND, **entry)), known, accepted(*ended)) == (None, [decision])


def test_an_unreadable_entry_is_attempted():
    """The entry's attempt meets the same error and defers it alone. An error here would end the whole lease."""
    broken = lease(waiting(FIRST), waiting(packed=[b"\xc1"]), waiting(SECOND))
    assert decided(broken, view(), accepted(FIRST)) == (None, [WasDelivered({}), ToAttempt(), ToAttempt()])


NEXT, LAST = NextAttempt(NOW_MS + 10_000, 1), NextAttempt(NOW_MS + 100_000, 2)
OURS = NextAttempt(NOW_MS + 5000, 0)


@pytest.mark.parametrize(
    ("error_class", "entry", "settled"),
    [
        (None, {}, (OutcomeKind.DELIVERED, None, False, False)),
        ("server_error", {}, (OutcomeKind.POSTPONED, NEXT, True, False)),
        ("server_error", {"retries": 1}, (OutcomeKind.POSTPONED, LAST, True, False)),
        ("server_error", {"retries": 2}, (OutcomeKind.DEAD_LETTERED, None, True, False)),
        ("server_error", {"expires_ms": NOW_MS + 10_000}, (OutcomeKind.POSTPONED, NEXT, True, False)),
        ("server_error", {"expires_ms": NOW_MS + 9_999}, (OutcomeKind.DEAD_LETTERED, None, True, False)),
        ("refused", {}, (OutcomeKind.POSTPONED, LAST, False, True)),
        (errors.LocalFailure.error_class, {}, (OutcomeKind.POSTPONED, OURS, False, False)),
        ("gone", {}, (OutcomeKind.POSTPONED, OURS, True, False)),
    ],
)
def test_an_attempt_settles_its_entry(error_class, entry, settled):
    attempt = Attempt(1, NOW_MS, 5.0, None, error_class)
    disposition = lease_triage.settle(waiting(**entry), ENDPOINT, attempt, accepted_ms=0, now_ms=NOW_MS, rng=fakes.Middle())
    assert disposition == (*settled, False)


def test_each_further_fault_of_ours_in_a_row_makes_the_wait_longer():
    """Without that, an endpoint whose attempts all end by our own fault would get one each five seconds."""
    local, other = (Attempt(1, NOW_MS, 5.0, None, error_class) for error_class in (errors.LocalFailure.error_class, "dns"))
    waits = []
    for history in [(), (local,), (local, other), (other, local, local)]:
        settled = lease_triage.settle(
            waiting(history=history), ENDPOINT, local, accepted_ms=0, now_ms=NOW_MS, rng=fakes.Middle()
        )
        waits.append(settled.next_attempt.at_ms - NOW_MS)
    assert waits == [5000, 10_000, 5000, 15_000]


def test_a_response_may_ask_for_a_longer_wait():
    attempt = Attempt(1, NOW_MS, 5.0, 503, "unavailable", retry_after_s=50.0)
    settled = lease_triage.settle(waiting(), ENDPOINT, attempt, accepted_ms=0, now_ms=NOW_MS, rng=fakes.Middle())
    assert settled.next_attempt == NextAttempt(NOW_MS + 55_000, 1)  # the middle of 50 s and a fifth more


@pytest.mark.parametrize(
    ("before", "error_class", "is_poison"),
    [
        pytest.param([("server_error", 10)], "server_error", True, id="poison"),
        pytest.param([("timeout", 10)], "unavailable", True, id="poison that fails in different ways"),
        pytest.param([("server_error", 0)], "server_error", False, id="nothing accepted since"),
        pytest.param([("server_error", 10), ("server_error", 0)], "server_error", False, id="nothing accepted since the last"),
        pytest.param([], "server_error", False, id="a first failure"),
        pytest.param([("server_error", 10)], "throttled", False, id="the endpoint asks for fewer requests"),
        pytest.param([("server_error", 10)], "connect", False, id="no connection"),
        pytest.param([("connect", 10)], "server_error", False, id="no connection before"),
    ],
)
def test_a_repeated_failure_of_poison_says_nothing_about_the_endpoint(before, error_class, is_poison):
    """Each attempt before has its error class, and the milliseconds from its end to the endpoint's last acceptance."""
    history = tuple(Attempt(1, NOW_MS - 1000 - ago_ms, 5.0, None, known) for known, ago_ms in before)
    settled = lease_triage.settle(
        waiting(history=history),
        ENDPOINT,
        Attempt(2, NOW_MS, 5.0, None, error_class),
        accepted_ms=NOW_MS - 995,
        now_ms=NOW_MS,
        rng=fakes.Middle(),
    )
    assert (settled.is_poison, settled.is_unhealthy, settled.kind) == (is_poison, True, OutcomeKind.POSTPONED)
