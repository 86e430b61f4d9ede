"""A fast lane defers deliveries that it must not attempt now. The retry entries have all that the retry lane needs."""

import asyncio
import math

import orjson
import pytest

from delivery import errors
from delivery.model import Attempt, NextAttempt, OutcomeKind
from delivery.registry_model import EndpointStatus, Retrying, SubscriptionStatus
from delivery.webhooks.batching import segment
from delivery.webhooks.events import parsing
from delivery.webhooks.lanes import direct_lane
from delivery.webhooks.policy import backoff, error_classes, retry_reasons
from delivery.webhooks.results import topic_rows
from delivery.webhooks.results.task_results import Results
from delivery.webhooks.retries import retry_messages, retry_records
from delivery.webhooks.routing import registries
from delivery.webhooks.scheduling import circuit_breaker
from delivery.webhooks.sending import payload
from tests.support import batches, builders, fakes
from tests.support.dispatching import fast_lane, new_memory
from tests.unit.webhooks.lanes.test_batch_lane import deliver as deliver_batches

NOW_S = 1_700_000_000.0
NOW_MS = 1_700_000_000_000
TOPICS = topic_rows.Topics(attempts="attempts", dead_letters="dead", rejected="rejected", retries="retries")
FAILING = Retrying(schedule_s=(5, 60))


def broken():
    opened = circuit_breaker.CircuitBreaker()
    for _ in range(circuit_breaker.OPENS_AFTER):
        opened.record(error_classes.SERVER_ERROR, NOW_S, NOW_S)
    return opened


def deliver(endpoint, *values, error_class=None, suppressed=(), breakers=None, bounds=None, **of_subscription):
    """Deliver an event of each value through the direct lane; return its results and the number of requests."""
    clock, breakers = fakes.Clock(NOW_S), {} if breakers is None else breakers
    snapshot = builders.snapshot(endpoint, builders.subscription(event_type="*", **of_subscription))
    sender = fakes.FakeSender(lambda *_: error_class, clock)
    records = [
        builders.record(offset=offset, value=orjson.dumps({"id": f"e{offset}", "tenant_id": "t1"} | value))
        for offset, value in enumerate(values)
    ]

    async def main():
        dispatcher, deferrals = fast_lane(
            sender,
            clock,
            suppressed=suppressed,
            memory=new_memory(clock, breakers=breakers),
            quick_retry=backoff.QuickRetry(first_wait_s=0),
            **(bounds or {}),
        )
        begun = direct_lane.DirectLane(registries.WholeRegistry("base", snapshot), dispatcher, deferrals, parsing.Layout())
        first, rest = await begun.submit(records), await begun.finish()
        rest.outcomes = first.outcomes + rest.outcomes
        return rest

    return asyncio.run(main()), len(sender.order)


def postponed(results):
    """Return the deferred deliveries of the results, as written to the retries topic."""
    deferred = topic_rows.deferral_rows(results, TOPICS, now_ms=NOW_MS)
    return [(row.key, retry_messages.message(row.value)) for row in deferred if row.value is not None]


def health(results):
    """Return the health hints of the results, as written to the retries topic."""
    return [(row.key, retry_messages.message(row.value)) for row in topic_rows.health_hint_rows(results, TOPICS, now_ms=NOW_MS)]


PAUSED, DISABLED = EndpointStatus.PAUSED, EndpointStatus.DISABLED


@pytest.mark.parametrize(
    ("fields", "suppressed", "reason"),
    [
        ({"status": PAUSED}, (), retry_reasons.ENDPOINT_PAUSED),
        ({"status": DISABLED}, (), retry_reasons.ENDPOINT_DISABLED),
        ({"order_by": "n"}, (), retry_reasons.ORDERED),
        ({"order_by": "n", "status": PAUSED}, (), retry_reasons.ENDPOINT_PAUSED),
        ({"fault": "a secret that does not open"}, (), retry_reasons.ENDPOINT_QUARANTINED),
        ({"fault": "a secret that does not open", "status": PAUSED}, ("ep1",), retry_reasons.ENDPOINT_QUARANTINED),
        ({}, ("other", "ep1"), retry_reasons.CIRCUIT_OPEN),
        ({"order_by": "n"}, ("ep1",), retry_reasons.ORDERED),
    ],
)
def test_a_blocked_endpoint_defers_even_without_a_schedule(fields, suppressed, reason):
    results, attempts = deliver(builders.endpoint(**fields), {"n": 1}, {"n": 2}, suppressed=suppressed)
    assert attempts == 0
    assert [(o.kind, o.reason, o.next_attempt) for o in results.outcomes] == [
        (OutcomeKind.POSTPONED, reason, NextAttempt(round(NOW_S * 1000), 0))
    ] * 2
    [log] = [orjson.loads(row.value) for row in topic_rows.rows(results, TOPICS, now_ms=NOW_MS)][:1]
    assert [(entry["kind"], entry["reason"], entry["event_id"]) for entry in log["entries"]] == [
        ("postponed", reason, "e0"),
        ("postponed", reason, "e1"),
    ]


def test_an_open_breaker_sends_nothing_and_builds_no_body(monkeypatch):
    monkeypatch.setattr(payload, "content", lambda *_: pytest.fail("a body was made"))
    results, attempts = deliver(builders.endpoint(), {}, breakers={"ep1": broken()})
    assert (attempts, [o.reason for o in results.outcomes]) == (0, [retry_reasons.CIRCUIT_OPEN])


def test_a_suppressed_endpoint_does_not_delay_the_others():
    results, attempts = deliver(builders.endpoint(), {}, {}, suppressed=["other"], breakers={"other": broken()})
    assert (attempts, {o.kind for o in results.outcomes}) == (2, {OutcomeKind.DELIVERED})


def test_a_skip_takes_precedence_over_a_deferral():
    results, _ = deliver(builders.endpoint(fault="a secret that does not open"), {}, status=SubscriptionStatus.PAUSED)
    assert [(o.kind, o.reason) for o in results.outcomes] == [(OutcomeKind.SKIPPED, "subscription_paused")]


def test_ordered_events_carry_their_key_in_arrival_order():
    values = [{"data": {"order": order}} for order in (7, "7", 7, None)] + [{}]
    results, _ = deliver(builders.endpoint(order_by="data.order"), *values)
    [(key, deferred)] = postponed(results)
    assert (key, deferred.endpoint_id, deferred.customer_id) == (b"ep1", "ep1", "c1")
    assert [(segment.unpacked(entry.packed[0]).event_id, entry.order_key) for entry in deferred.entries] == [
        ("e0", "7"),
        ("e1", '"7"'),
        ("e2", "7"),
        ("e3", "null"),
        ("e4", ""),
    ]


def test_the_lane_reports_an_accepting_endpoint_once():
    results, _ = deliver(builders.endpoint(), {}, {}, {})
    assert health(results) == [(b"ep1", retry_messages.Postponed("ep1", "c1", [], accepts=True, at_ms=NOW_MS))]


@pytest.mark.parametrize(
    ("error_class", "hints"),
    [
        (error_classes.REFUSED, [(b"ep1", retry_messages.Postponed("ep1", "c1", [], accepts=False, at_ms=NOW_MS))]),
        (error_classes.SERVER_ERROR, [(b"ep1", retry_messages.Postponed("ep1", "c1", [], accepts=False, at_ms=NOW_MS))]),
        (errors.LocalFailure.error_class, []),
    ],
)
def test_the_lane_reports_failures_that_leave_no_entry(error_class, hints):
    results, _ = deliver(builders.endpoint(retrying=Retrying(schedule_s=())), {}, error_class=error_class)
    assert {outcome.kind for outcome in results.outcomes} == {OutcomeKind.DEAD_LETTERED}
    assert (postponed(results), health(results)) == ([], hints)


def test_an_endpoint_that_accepts_some_events_is_accepting():
    endpoint = builders.endpoint(retrying=Retrying(schedule_s=()))
    delivered, _ = deliver(endpoint, {})
    given_up, _ = deliver(endpoint, {}, error_class=error_classes.REFUSED)
    delivered.outcomes += given_up.outcomes
    assert health(delivered) == [(b"ep1", retry_messages.Postponed("ep1", "c1", [], accepts=True, at_ms=NOW_MS))]


def test_an_entry_holds_all_fields_of_a_dead_letter():
    results, _ = deliver(
        builders.endpoint(retrying=FAILING),
        {"n": 1},
        error_class=error_classes.SERVER_ERROR,
        bounds={"response_deadline_s": math.inf},
    )
    [outcome], [(_, deferred)] = results.outcomes, postponed(results)
    [entry] = deferred.entries
    assert segment.unpacked(entry.packed[0]).event() == outcome.delivery.event._replace(
        content=None, record=outcome.delivery.event.record._replace(value=None)
    )
    assert (entry.subscriptions, entry.subscription_places, entry.left_by, entry.order_key) == (["s1"], [], None, None)
    assert (entry.reason, entry.retries, entry.again_at_ms) == ("server_error", 1, round(NOW_S * 1000) + 5000)
    assert (entry.attempts, entry.history) == (3, outcome.attempts)


def test_an_entry_names_the_newest_registry_of_its_match():
    results, _ = deliver(builders.endpoint(status=PAUSED), {})
    [row] = topic_rows.deferral_rows(results, TOPICS, now_ms=NOW_MS, revision=7)
    assert [entry.revision for entry in retry_messages.message(row.value).entries] == [7]


def test_the_wait_after_faults_of_ours_grows_with_their_number_here_too():
    deferrals = fakes.deferrals(clock := fakes.Clock(NOW_S), (), {}, fakes.unreported_background())
    local = [Attempt(number, NOW_MS, 5.0, None, errors.LocalFailure.error_class) for number in (1, 2, 3)]
    outcome = deferrals.failed(builders.delivery(endpoint=builders.endpoint(retrying=FAILING)), tuple(local))
    assert 12_000 <= outcome.next_attempt.at_ms - clock.now * 1000 <= 18_000, "5 s for each of three attempts, ±20 %"


def test_attempts_of_a_deferred_delivery_are_logged():
    results, _ = deliver(builders.endpoint(retrying=FAILING), {}, error_class=error_classes.REFUSED)
    written = [(row.topic, orjson.loads(row.value)) for row in topic_rows.rows(results, TOPICS, now_ms=NOW_MS)]
    assert [topic for topic, _ in written] == ["attempts", "attempts"]  # the log, and the receipt
    assert [(entry["kind"], entry["error_class"]) for entry in written[0][1]["entries"]] == [("attempt", "refused")]


def test_what_two_customers_gave_one_endpoint_id_is_kept_apart():
    """Regression: one record had the entries of both, under one customer. The other customer's were skipped later."""
    of_both = [deliver(builders.endpoint(customer_id=name, status=PAUSED), {})[0].outcomes[0] for name in ("c1", "c2")]
    assert [(found.customer_id, len(found.entries)) for _, found in postponed(Results(outcomes=of_both))] == [
        ("c1", 1),
        ("c2", 1),
    ]
    accepting = [outcome.delivery.endpoint for outcome in of_both]
    assert [found.customer_id for _, found in health(Results(accepting=accepting))] == ["c1", "c2"]
    ended = [(b"a", of_both[0]._replace(kind=OutcomeKind.DELIVERED)), (b"b", of_both[1])]
    completed = [retry_messages.message(row.value) for row in topic_rows.completion_rows(ended, TOPICS)]
    assert [(found.customer_id, found.settled, found.accepts) for found in completed] == [
        ("c1", [b"a"], True),
        ("c2", [b"b"], None),
    ]


def test_entries_of_an_endpoint_share_bounded_rows():
    results, _ = deliver(builders.endpoint(status=PAUSED), *[{"text": "x" * 20_000}] * 60)
    deferred = [row for row in topic_rows.deferral_rows(results, TOPICS, now_ms=NOW_MS) if row.value is not None]
    assert len(deferred) == 20  # three of them fit
    assert max(len(row.value) for row in deferred) < topic_rows.MAX_POSTPONED_BYTES == 64 * 1024
    entries = [entry for row in deferred for entry in retry_messages.message(row.value).entries]
    assert [segment.unpacked(entry.packed[0]).event_id for entry in entries] == [f"e{n}" for n in range(60)]


def test_retries_records_have_at_most_4_kib_on_average():
    """A micro-batch is bounded in records: 1,000 deferred batches could be 10 GB."""
    for payloads in ([{"text": "x" * 200_000}], [{"text": "x" * 20_000}] * 60, [{}] * 1000):
        results, _ = deliver(builders.endpoint(status=PAUSED), *payloads)
        rows = list(topic_rows.deferral_rows(results, TOPICS, now_ms=NOW_MS))
        assert len({(row.topic, row.key) for row in rows}) == 1  # all in one partition
        assert sum(len(row.value or b"") for row in rows) <= len(rows) * retry_records.PADDED_BYTES == len(rows) * 4096


def test_a_small_record_of_the_retries_topic_counts_once():
    results, _ = deliver(builders.endpoint(status=PAUSED), {})
    [row] = topic_rows.deferral_rows(results, TOPICS, now_ms=NOW_MS)
    assert 0 < len(row.value) < retry_records.PADDED_BYTES


def test_the_estimated_size_of_an_entry_is_close():
    """Rows are cut by the estimate; Kafka's bound is far above it."""
    results, _ = deliver(builders.endpoint(retrying=FAILING), {"n": "x" * 500}, error_class=error_classes.SERVER_ERROR)
    [row] = topic_rows.deferral_rows(results, TOPICS, now_ms=NOW_MS)
    [entry] = retry_messages.message(row.value).entries
    assert len(row.value) - 200 < entry.written_bytes < len(row.value) + 1000


@pytest.mark.parametrize(
    ("fields", "suppressed", "reason"),
    [
        ({"status": PAUSED}, (), "endpoint_paused"),
        ({"status": DISABLED}, (), "endpoint_disabled"),
        ({}, ("ep1",), "circuit_open"),
    ],
)
def test_a_batch_is_deferred_whole(fields, suppressed, reason):
    snapshot = builders.snapshot(batches.endpoint(**fields), builders.subscription("s1"), builders.subscription("s2"))
    events = batches.events(3)
    batch = batches.pending_batch(*events[:2], subscription="s1")
    batch.extend(batches.pending_batch(events[2], subscription="s2"))
    results, posted = deliver_batches(snapshot, batch, suppressed=suppressed)
    assert posted == []
    [entry] = orjson.loads(next(topic_rows.rows(results, TOPICS, now_ms=NOW_MS)).value)["entries"]
    assert (entry["kind"], entry["reason"], entry["count"]) == ("batch_postponed", reason, 3)
    [(_, deferred)] = postponed(results)
    [entry] = deferred.entries
    assert ([segment.unpacked(packed).event_id for packed in entry.packed], entry.subscription_places) == (
        [event.event_id for event in events],
        [0, 0, 1],
    )
    assert (entry.subscriptions, entry.left_by, entry.reason, entry.retries) == (["s1", "s2"], "count", reason, 0)


def test_a_deferred_batch_skips_events_without_a_subscription():
    batch = batches.pending_batch(*batches.events(2), subscription="s1")
    batch.extend(batches.pending_batch(*batches.events(3), subscription="gone"))
    snapshot = builders.snapshot(batches.endpoint(status=PAUSED), builders.subscription("s1"))
    results, _ = deliver_batches(snapshot, batch)
    assert [(b.outcome.kind, len(b.outcome.delivery.events)) for b in results.batches] == [
        (OutcomeKind.POSTPONED, 2),
        (OutcomeKind.SKIPPED, 3),
    ]


def test_a_failed_batch_keeps_its_id_and_attempt_history():
    events = batches.events(3)
    snapshot = builders.snapshot(batches.endpoint(retrying=FAILING), builders.subscription())
    results, _ = deliver_batches(snapshot, batches.pending_batch(*events), answers=(500,))
    assert [row.topic for row in topic_rows.rows(results, TOPICS, now_ms=NOW_MS)] == ["attempts"]
    [(_, deferred)] = postponed(results)
    [entry] = deferred.entries
    assert (entry.reason, entry.retries, [attempt.status for attempt in entry.history]) == ("server_error", 1, [500])
    assert entry.packed == segment.decoded_batch(batches.sent(batches.pending_batch(*events))).packed
