"""The current registry and the responses decide what happens to each entry of a lease; the report has all of it."""

import asyncio
import base64
import itertools

import msgspec
import orjson
import pytest

from delivery import errors
from delivery.model import Attempt, OutcomeKind
from delivery.registry_model import PLATFORM, EndpointStatus, Retrying, SubscriptionStatus
from delivery.webhooks.batching import segment
from delivery.webhooks.leases.lease_in_flight import LeaseInFlight
from delivery.webhooks.leases.lease_triage import RegistryView
from delivery.webhooks.policy import retry_reasons
from delivery.webhooks.results import completed_work, counters, topic_rows
from delivery.webhooks.routing import registries, revalidation
from delivery.webhooks.routing.registry_snapshot import SnapshotChanges
from delivery.webhooks.sending import batch_payload, payload
from tests.support import builders, fakes
from tests.support.leases import LATER_MS, NOW_MS, batch_registry, lease, registry, waiting

MAX_AGE_S = 3600.0
TOPICS = topic_rows.Topics(attempts="attempts", dead_letters="dead", rejected="rejected", retries="retries")
FAILED = Attempt(number=1, started_at_ms=0, duration_ms=1.0, status=500, error_class="server_error")


class Delivered:
    """A lease that was delivered to its end, one entry after the other. Each attempt got `error_class`, and the fields in
    `answer`."""

    def __init__(self, snapshot, of, error_class=None, ended=frozenset(), **answer):
        tenants = revalidation.tenant_ids(packed for waits in of.entries for packed in waits.packed)
        known = registries.WholeRegistry("", snapshot)
        destination = asyncio.run(known.destination(of.endpoint_id, tenants))
        lease = LeaseInFlight(of, RegistryView(destination, known.revision, MAX_AGE_S), until=0.0, ended=ended)
        lease.begin(NOW_MS)
        self.sent = []
        while lease.waiting and lease.until >= 0.0:
            made = lease.prepare(lease.waiting.popleft())
            if made is not None:
                self.sent.append(made)
                attempt = Attempt(made.number, NOW_MS, 5.0, None, error_class, **answer)
                lease.record_attempt(made, attempt, now_ms=NOW_MS, rng=fakes.Middle())
        lease.finish(NOW_MS)
        self.report, self.results = lease.report.build(NOW_MS), lease.report.results
        lease.report.move_accepted(self.results)

    def written(self):
        rows = sorted(topic_rows.rows(self.results, TOPICS, now_ms=NOW_MS), key=lambda row: row.topic)
        return {
            topic: [orjson.loads(row.value) for row in of] for topic, of in itertools.groupby(rows, key=lambda row: row.topic)
        }

    def deliveries(self):
        return counters.count(self.results, cpu_s=0).deliveries


def test_an_accepted_entry_is_not_requeued():
    report = Delivered(registry(), lease(waiting(), waiting())).report
    assert (report.lease, report.delivered, report.failed, report.blocked, report.requeued) == (1, 2, 0, None, [])


def test_a_dead_letter_has_the_whole_attempt_history():
    delivered = Delivered(registry(), lease(waiting(attempts=1, retries=7, history=(FAILED,))), "server_error")
    written = delivered.written()
    [entry] = written["attempts"][0]["entries"]
    assert (entry["kind"], entry["attempt"]) == ("attempt", 2)
    [letter] = written["dead"]
    assert (letter["reason"], [attempt["attempt"] for attempt in letter["attempts"]]) == ("server_error", [1, 2])
    assert delivered.report.requeued == []
    assert delivered.report.failed == 1
    counted = counters.count(delivered.results, cpu_s=0)
    assert (counted.attempts, counted.deliveries) == ({"server_error": 1}, {("dead_lettered", "server_error"): 1})


def test_a_failed_entry_is_requeued_by_the_current_schedule():
    known = registry(retrying=Retrying(schedule_s=(1, 100, 1000)))
    delivered = Delivered(known, lease(waiting(attempts=2, retries=1)), "unavailable", retry_after_s=500.0)
    [back] = delivered.report.requeued
    assert (back.place, back.reason, back.next_attempt.retries) == (0, "unavailable", 2)
    assert back.next_attempt.at_ms == NOW_MS + 550_000  # the middle of 500 s and a fifth more
    assert [attempt.number for attempt in back.attempts] == [3]
    report = delivered.report
    assert (report.delivered, report.failed, report.retry_after_s) == (0, 1, 500.0)
    assert [outcome.kind for outcome in delivered.results.outcomes] == [OutcomeKind.POSTPONED]


def test_a_retry_after_the_expiry_is_a_dead_letter_now():
    delivered = Delivered(registry(), lease(waiting(expires_ms=NOW_MS + 10)), "timeout")
    assert [outcome.kind for outcome in delivered.results.outcomes] == [OutcomeKind.DEAD_LETTERED]


@pytest.mark.parametrize("error_class", ["refused", "redirect"])
def test_only_unhealthy_error_classes_count_as_failed(error_class):
    report = Delivered(registry(), lease(), error_class).report
    assert (report.delivered, report.failed, report.refused) == (0, 0, 1)


def test_our_own_fault_is_no_failure_of_the_endpoint():
    report = Delivered(registry(), lease(), errors.LocalFailure.error_class).report
    assert (report.failed, len(report.requeued)) == (0, 1)


def test_ordered_entries_are_not_attempted_after_a_failure():
    delivered = Delivered(registry(), lease(waiting(), waiting(), waiting(), order_key="k"), "server_error")
    assert len(delivered.sent) == 1
    assert (delivered.report.order_key, delivered.report.failed) == ("k", 1)
    assert [(back.place, len(back.attempts)) for back in delivered.report.requeued] == [(0, 1), (1, 0), (2, 0)]


ELSEWHERE = builders.subscription(endpoint_id="ep2")


@pytest.mark.parametrize("of", [1, 2])
@pytest.mark.parametrize(
    ("snapshot", "reason"),
    [
        (lambda _: builders.snapshot(), "endpoint_deleted"),
        (lambda made: made(customer_id="c2"), "endpoint_deleted"),
        # Regression: the log had the mode of the new endpoint, so `fanout reconcile` missed the end of this delivery.
        (lambda made: {registry: batch_registry, batch_registry: registry}[made](), "endpoint_deleted"),
        (lambda made: builders.snapshot(*made().endpoints.values()), "subscription_deleted"),
        (
            lambda made: builders.snapshot(*made().endpoints.values(), builders.endpoint("ep2"), ELSEWHERE),
            "subscription_deleted",
        ),
        (lambda made: made(builders.subscription(status=SubscriptionStatus.PAUSED)), "subscription_paused"),
        (lambda made: made(builders.subscription(fault="a filter that is none")), "quarantined"),
    ],
)
@pytest.mark.parametrize("given_up", [{}, {"given_up": retry_reasons.EXPIRED, "number": 0}])
def test_deleted_or_paused_meanwhile_is_skipped_with_a_reason(of, snapshot, reason, given_up):
    made = registry if of == 1 else batch_registry
    delivered = Delivered(snapshot(made), lease(waiting(*(builders.event() for _ in range(of))), **given_up))
    assert delivered.sent == []
    assert delivered.deliveries() == {("skipped", reason): of}
    assert (delivered.report.requeued, delivered.report.delivered) == ([], 0)
    [record] = delivered.written()["attempts"]
    assert record["mode"] == ("direct" if of == 1 else "batch")
    [entry] = record["entries"]
    assert (entry["kind"], entry["reason"]) == ("skipped" if of == 1 else "batch_skipped", reason)


@pytest.mark.parametrize(
    ("row", "reason"),
    [(builders.subscription(status=SubscriptionStatus.PAUSED), "subscription_paused"), (None, "subscription_deleted")],
)
def test_a_subscription_paused_while_its_entry_waits_is_skipped(row, reason):
    """Regression: the pause was logged as an unforeseen error, and stopped the whole order key for five minutes."""
    known = registries.WholeRegistry("", registry(builders.subscription(), builders.subscription("s2")))
    of = lease(waiting(), waiting(through=("s2",)), order_key="k")
    view = RegistryView(asyncio.run(known.destination("ep1", ())), known.revision, MAX_AGE_S)
    in_flight = LeaseInFlight(of, view, until=0.0)
    in_flight.begin(NOW_MS)
    known.advance(SnapshotChanges(since=1, revision=2, subscriptions={"s1": row}))
    assert in_flight.prepare(in_flight.waiting.popleft()) is None
    assert [(outcome.kind, outcome.reason) for outcome in in_flight.report.results.outcomes] == [("skipped", reason)]
    assert in_flight.report.build(NOW_MS).requeued == []
    assert in_flight.prepare(in_flight.waiting.popleft()).delivery.subscription.subscription_id == "s2"


def of_tenants(*tenants):
    return [builders.event(tenant_id=tenant) for tenant in tenants]


def test_events_of_a_deleted_tenant_are_skipped_alone():
    alone = lease(*(waiting(event) for event in of_tenants("t1", "deleted", PLATFORM)))
    delivered = Delivered(registry(), alone)
    assert [made.delivery.event.tenant_id for made in delivered.sent] == ["t1", PLATFORM]
    assert delivered.deliveries() == {("delivered", "none"): 2, ("skipped", "tenant_deleted"): 1}

    in_batch = Delivered(batch_registry(), lease(waiting(*of_tenants("deleted", "t1", "deleted"))))
    assert [event.tenant_id for made in in_batch.sent for event in made.delivery.events] == ["t1"]
    assert in_batch.deliveries() == {("delivered", "none"): 1, ("skipped", "tenant_deleted"): 2}


@pytest.mark.parametrize(
    ("fields", "hold"),
    [
        ({"status": EndpointStatus.PAUSED}, retry_reasons.ENDPOINT_PAUSED),
        ({"status": EndpointStatus.DISABLED}, retry_reasons.ENDPOINT_DISABLED),
        ({"fault": "a secret that does not open"}, retry_reasons.ENDPOINT_QUARANTINED),
        ({"fault": "a refused URL", "status": EndpointStatus.PAUSED}, retry_reasons.ENDPOINT_QUARANTINED),
    ],
)
def test_entries_of_a_stopped_endpoint_are_requeued(fields, hold):
    delivered = Delivered(registry(**fields), lease(waiting(retries=2), waiting(retries=0)))
    report = delivered.report
    assert (report.blocked, report.delivered, report.failed) == (hold, 0, 0)
    assert [(back.place, back.reason, back.next_attempt.retries, back.attempts) for back in report.requeued] == [
        (0, hold, 2, ()),
        (1, hold, 0, ()),
    ]
    assert (delivered.sent, delivered.results.outcomes) == ([], [])


@pytest.mark.parametrize("fields", [*({"status": status} for status in EndpointStatus), {"fault": "a refused URL"}])
@pytest.mark.parametrize("reason", [retry_reasons.NO_ROOM, retry_reasons.EXPIRED])
def test_an_entry_given_up_is_a_dead_letter_with_its_history(fields, reason):
    delivered = Delivered(registry(**fields), lease(waiting(attempts=1, history=(FAILED,)), number=0, given_up=reason))
    assert delivered.sent == []
    written = delivered.written()
    assert [(letter["reason"], len(letter["attempts"])) for letter in written["dead"]] == [(reason, 1)]
    assert [entry["kind"] for entry in written["attempts"][0]["entries"]] == ["dead_lettered"]


def test_a_retried_batch_is_sent_as_by_the_batch_lane():
    of = [builders.event() for _ in range(3)]
    rejecting = b'{"rejected": [{"index": 1, "reason": "no such order"}]}'
    delivered = Delivered(batch_registry(), lease(waiting(*of, attempts=1, history=(FAILED,))), response=rejecting)
    [made] = delivered.sent
    assert (made.number, [message["id"] for message in orjson.loads(made.delivery.body)]) == (
        2,
        [event.event_id for event in of],
    )
    assert made.delivery.webhook_id.startswith("batch_")
    [letter] = delivered.written()["dead"]
    assert (letter["event_id"], letter["reason"]) == (of[1].event_id, "rejected_by_endpoint")
    assert letter["webhook_id"] == payload.webhook_id(of[1], "s1")
    assert (delivered.report.delivered, delivered.report.requeued) == (1, [])


def test_skipped_events_of_a_batch_are_recorded_at_its_end():
    of = [builders.event() for _ in range(3)]
    entries = waiting(*of, through=("s1", "gone", "s1"))
    failed = Delivered(batch_registry(), lease(entries), "server_error")
    assert failed.deliveries() == {("postponed", "server_error"): 2}
    [back] = failed.report.requeued
    ended = Delivered(batch_registry(), lease(entries.requeued(back)))
    assert ended.deliveries() == {("delivered", "none"): 2, ("skipped", "subscription_deleted"): 1}


LATER = 2
"""A revision after that of `registry`."""


@pytest.mark.parametrize(
    ("snapshot", "of"),
    [
        (builders.snapshot(), waiting(revision=LATER)),
        (registry(), waiting(revision=LATER, subscriptions=["s-new"])),
        (registry(), waiting(builders.event(tenant_id="t-new"), revision=LATER)),
    ],
    ids=["endpoint", "subscription", "tenant"],
)
@pytest.mark.parametrize(("waited_ms", "wait_ms"), [(0, 5000), (20_000, 20_000), (3_599_999, 300_000)])
def test_an_entry_of_a_newer_registry_waits_for_it(snapshot, of, waited_ms, wait_ms):
    behind = msgspec.structs.replace(of, since_ms=NOW_MS - waited_ms, retries=1)
    delivered = Delivered(snapshot, lease(behind, *([waiting(revision=LATER)] if snapshot.endpoints else [])))
    [back] = delivered.report.requeued
    assert (back.place, back.reason, back.next_attempt, back.attempts) == (0, "registry_behind", (NOW_MS + wait_ms, 1), ())
    assert len(delivered.sent) == len(snapshot.endpoints)
    assert not any(kind == "skipped" for kind, _ in delivered.deliveries())


def test_an_entry_missing_in_its_own_registry_is_skipped():
    for fields in ({"revision": 0}, {"revision": 1}, {"revision": LATER, "since_ms": NOW_MS - 3_600_000}):
        delivered = Delivered(registry(), lease(waiting(subscriptions=["s-old"], **{"since_ms": NOW_MS} | fields)))
        assert delivered.deliveries() == {("skipped", "subscription_deleted"): 1}


def test_ordered_entries_wait_behind_one_for_the_registry():
    key = {"order_key": "a"}
    delivered = Delivered(
        registry(), lease(waiting(revision=LATER, subscriptions=["s-new"], since_ms=NOW_MS, **key), waiting(**key), **key)
    )
    assert (len(delivered.sent), [back.place for back in delivered.report.requeued]) == (0, [0, 1])


@pytest.mark.parametrize(
    ("snapshot", "of"),
    [
        (builders.snapshot(), waiting(revision=LATER, since_ms=NOW_MS)),
        (registry(), waiting(revision=LATER, since_ms=NOW_MS, subscriptions=["s-new"])),
        (registry(), waiting(builders.event(tenant_id="t-new"), revision=LATER, since_ms=NOW_MS)),
        (
            batch_registry(),
            waiting(builders.event(), builders.event(), revision=LATER, since_ms=NOW_MS, through=("s-new", "s1")),
        ),
    ],
    ids=["endpoint", "subscription", "tenant", "subscription of a part"],
)
@pytest.mark.parametrize("reason", [retry_reasons.NO_ROOM, retry_reasons.EXPIRED])
def test_an_entry_given_up_behind_the_registry_is_a_dead_letter(snapshot, of, reason):
    """Regression: rows that the worker did not have yet counted as deleted. The customer never saw these events."""
    delivered = Delivered(snapshot, lease(of, number=0, given_up=reason))
    assert delivered.deliveries() == {("dead_lettered", reason): len(of.packed)}
    assert [letter["reason"] for letter in delivered.written()["dead"]] == [reason] * len(of.packed)
    assert (delivered.sent, delivered.report.requeued) == ([], [])


def test_an_entry_given_up_does_not_wait_for_the_registry():
    """It ends at once. Once it is older than any registry, what the registry lacks was deleted, and is skipped."""
    of = lease(waiting(revision=LATER, subscriptions=["s-new"]), number=0, given_up=retry_reasons.EXPIRED)
    assert Delivered(registry(), of).deliveries() == {("skipped", "subscription_deleted"): 1}


def test_a_refused_lease_is_requeued_unchanged():
    view = RegistryView(registries.Destination(None, {}), 1, MAX_AGE_S)
    refused = LeaseInFlight(lease(waiting(retries=2), waiting()), view, until=0.0)
    refused.refuse(NOW_MS)
    report = refused.report.build(NOW_MS)
    assert (report.blocked, report.failed, [len(back.attempts) for back in report.requeued]) == (None, 0, [0, 0])
    assert [(back.reason, *back.next_attempt) for back in report.requeued] == [
        ("server_error", NOW_MS + 5000, 2),
        ("server_error", NOW_MS + 5000, 0),
    ]


def test_unreadable_entries_are_requeued_alone(monkeypatch, caplog):
    broken, unpack = waiting(retries=3), segment.unpacked
    monkeypatch.setattr(segment, "unpacked", lambda packed: 1 / 0 if packed == broken.packed[0] else unpack(packed))
    paused = registry(builders.subscription(status=SubscriptionStatus.PAUSED))
    delivered = Delivered(paused, lease(waiting(), broken, waiting()))
    [back] = delivered.report.requeued
    assert (back.place, back.reason, back.next_attempt) == (1, "unforeseen", (NOW_MS + 300_000, 3))
    assert [attempt.error_class for attempt in back.attempts] == ["local"]
    assert (delivered.report.failed, len(delivered.results.outcomes)) == (0, 2)
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("subscriptions", [(), (builders.subscription(status=SubscriptionStatus.PAUSED),)])
def test_unreadable_entries_given_up_are_quarantined(caplog, subscriptions):
    """Regression: an unreadable entry failed its task for ever, because its shard had deleted it and it had no dead letter."""
    broken = b"\xc1" * 2 * topic_rows.MAX_REJECTED_BYTES  # no event
    given_up = lease(waiting(), waiting(packed=[broken], since_ms=5), waiting(), number=0, given_up=retry_reasons.EXPIRED)
    delivered = Delivered(registry(*subscriptions), given_up)
    assert len(delivered.results.outcomes) == 2
    [row] = delivered.written()["rejected"]
    assert (row["reason"], row["topic"], row["appended_at_ms"]) == ("unreadable", "(retry lane)", 5)
    assert base64.b64decode(row["value_base64"]) == broken
    assert all(word in row["detail"] for word in ("ep1", "c1", "s1", retry_reasons.EXPIRED))
    assert "cannot be read" in caplog.text


def test_unreadable_events_of_a_batch_are_quarantined():
    good = waiting(builders.event(), builders.event(), through=("gone", "s1"))
    broken = msgspec.structs.replace(good, packed=[good.packed[0], b"\xc1"])
    delivered = Delivered(batch_registry(), lease(broken, number=0, given_up=retry_reasons.NO_ROOM))
    assert delivered.deliveries() == {("skipped", "subscription_deleted"): 1}
    assert [rejection.record.value for rejection in delivered.results.rejections] == [b"\xc1"]


def test_content_that_cannot_be_built_is_a_dead_letter(monkeypatch, caplog):
    monkeypatch.setattr(payload, "content", lambda *_: 1 / 0)
    delivered = Delivered(registry(), lease(waiting(expires_ms=LATER_MS)))
    assert delivered.deliveries() == {("dead_lettered", "unforeseen"): 1}
    assert "unforeseen" in caplog.text


def test_a_batch_that_cannot_be_built_records_its_skipped_events(monkeypatch):
    """Regression: reconcile found such events lost, because only the others became dead letters."""
    monkeypatch.setattr(batch_payload, "content", lambda *_: 1 / 0)
    batch = waiting(builders.event(), builders.event(), through=("gone", "s1"))
    delivered = Delivered(batch_registry(), lease(batch))
    assert delivered.deliveries() == {("dead_lettered", "unforeseen"): 1, ("skipped", "subscription_deleted"): 1}


def ended_of(*entries):
    """The keys of deliveries that an earlier run has written as accepted."""
    return {
        completed_work.key_of_packed(segment.unpacked(packed), name)
        for entry in entries
        for packed, name in zip(entry.packed, revalidation.subscription_ids(entry, range(len(entry.packed))), strict=True)
    }


def event(number):
    return builders.event(event_id=f"e{number}", record=builders.record(offset=number))


def test_an_entry_accepted_in_an_earlier_run_is_not_sent():
    before, left = waiting(event(1)), waiting(event(2))
    delivered = Delivered(registry(), lease(before, left), ended=ended_of(before))
    assert [made.place for made in delivered.sent] == [1]
    assert (delivered.report.delivered, delivered.report.requeued) == (2, [])
    assert [outcome.delivery.event.event_id for outcome in delivered.results.outcomes] == ["e2"]


def test_a_partly_accepted_batch_is_sent_whole():
    batch, part = waiting(event(1), event(2)), waiting(event(1))
    assert len(Delivered(batch_registry(), lease(batch), ended=ended_of(part)).sent) == 1
    assert Delivered(batch_registry(), lease(batch), ended=ended_of(batch)).sent == []


def test_a_replay_is_sent_despite_an_earlier_delivery():
    replayed = waiting(event(1), replay="rpl_1")
    assert len(Delivered(registry(), lease(replayed), ended=ended_of(replayed)).sent) == 1


def test_an_entry_given_up_always_has_a_dead_letter():
    given_up = waiting(event(1))
    delivered = Delivered(registry(), lease(given_up, number=0, given_up=retry_reasons.EXPIRED), ended=ended_of(given_up))
    assert [outcome.kind for outcome in delivered.results.outcomes] == [OutcomeKind.DEAD_LETTERED]
