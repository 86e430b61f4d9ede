"""The account of the demo holds only if every due delivery ended in a permitted way: each test breaks one condition."""

import dataclasses

import pytest

from delivery.webhooks.results.log_entries import Due
from fanout.demo import expected_account, over_http, scenario
from fanout.kafka import places, publishing
from fanout.local import receiver
from fanout.reconcile import accounting, ledger
from tests.support import records

TOPIC = "events.order.created"
PLACE = places.Place(TOPIC, 0)
ENDPOINTS = [{"id": "single"}, {"id": "batched", "mode": "batch"}]
SUBSCRIPTIONS = [
    {"id": "one", "endpoint": "single", "event_type": "order.*", "everything": True},
    {"id": "many", "endpoint": "batched", "event_type": "order.created", "everything": True},
]
DOCUMENT = {"endpoints": ENDPOINTS, "subscriptions": SUBSCRIPTIONS}


def event(offset):
    made = scenario.PublishedEvent(
        event_id=f"e{offset}",
        source="/demo",
        event_type="order.created",
        tenant_id="t1",
        sub_tenant_id=None,
        time="2026-01-01T00:00:00Z",
        content={},
        payload=b"{}",
        message=publishing.Message(topic=TOPIC, value=b""),
    )
    return expected_account.PlacedEvent(event=made, partition=0, offset=offset, appended_at_ms=1000)


EVENTS = [event(1), event(2)]


def single(offset, status=200, **fields):
    webhook_id = expected_account.webhook_id("/demo", f"e{offset}", "one")
    return received("/single", webhook_id, status=status, **fields)


def batch(*offsets, path="/batched", **fields):
    named = tuple(receiver.BatchEvent("/demo", f"e{offset}") for offset in offsets)
    return received(path, "batch_1", batch=named, **fields)


def received(path, webhook_id, **fields):
    defaults = {"body": b"", "headers": {}, "is_verified": True, "status": 200}
    return receiver.Received(path=path, webhook_id=webhook_id, **defaults | fields)


def recorded(*, delivered=(1, 2), revision=1, lanes=accounting.LANES):
    """Return the job's records: everything delivered, by lane direct at 1,500 ms and by lane batch at 3,000 ms."""
    job_ledger = ledger.Ledger()
    for lane in lanes:
        job_ledger.receipts[lane, PLACE] = [records.receipt(lane=lane, revision=revision, due=2)]
    for offset in delivered:
        job_ledger.delivered[Due(TOPIC, 0, offset, "one")] = 1500
        job_ledger.delivered[Due(TOPIC, 0, offset, "many")] = 3000
    return job_ledger


def account(received, job_ledger=None, history=((1, DOCUMENT),), findings=(), *, given_up=(), polled=None):
    polled = polled or over_http.Polled()
    return expected_account.account(
        EVENTS,
        history,
        job_ledger or recorded(),
        received,
        given_up=set(given_up),
        polled=polled,
        findings=findings,
        wall_s=1.0,
    )


ALL = (single(1), single(2), batch(1, 2))


def changed(**later):
    """Return the history of a registry that changes at revision 2."""
    rows = {"endpoints": [dict(row) for row in ENDPOINTS], "subscriptions": [dict(row) for row in SUBSCRIPTIONS]}
    return ((1, DOCUMENT), (2, rows | later))


def test_the_account_of_a_run_without_faults_holds():
    result = account(ALL)
    assert result.holds
    document = result.document()
    counts = {
        "due": 2,
        "delivered": 2,
        "redriven": 0,
        "dead_lettered": 0,
        "skipped": 0,
        "pending": 0,
        "lost": 0,
        "duplicates": 0,
    }
    assert document["lanes"] == {"direct": counts, "batch": counts}
    assert (document["due"], document["delivered"]) == (4, 4)
    assert document["latency_ms"]["direct"]["p50"] == 500  # 1,500 - 1,000
    assert document["latency_ms"]["batch"]["p50"] == 2000


@pytest.mark.parametrize(
    "missing",
    [
        (single(1), single(2), batch(1)),
        (single(1), single(2), batch(1, 2, status=500)),
        (single(1), single(2), batch(1, 2, rejected=frozenset({1}))),
        (single(1), batch(1, 2)),
        (single(1), single(2, status=503), batch(1, 2)),
    ],
)
def test_a_delivery_that_no_receiver_accepted_is_lost(missing):
    result = account(missing)
    assert not result.holds
    assert sum(len(lane.lost) for lane in result.lanes.values()) >= 1


def test_an_event_rejected_in_an_answer_is_a_dead_letter():
    job_ledger = recorded()
    job_ledger.dead_letters["e2", "many"] = records.dead_letter(topic=TOPIC, offset=2, subscription_id="many")
    result = account((single(1), single(2), batch(1, 2, rejected=frozenset({1}))), job_ledger)
    assert result.holds
    assert (result.lanes["batch"].delivered, result.lanes["batch"].dead_lettered) == (1, 1)


def test_an_event_accepted_in_two_batches_is_a_duplicate():
    result = account((*ALL, batch(2)))
    assert result.holds
    assert (result.lanes["direct"].duplicates, result.lanes["batch"].duplicates) == (0, 1)


@pytest.mark.parametrize("stranger", [batch(3), batch(1, path="/single"), batch(1, path="/nobody"), single(3)])
def test_an_accepted_event_that_was_not_due_is_unexpected(stranger):
    result = account((*ALL, stranger))
    assert not result.holds
    assert len(result.unexpected) == 1


def test_a_finding_of_reconcile_breaks_the_account():
    result = account(ALL, findings=["a run has fewer outcomes than were due"])
    assert not result.holds
    assert result.document()["findings"] == ["a run has fewer outcomes than were due"]


def test_a_wrong_signature_breaks_the_account():
    assert not account((single(1), single(2), batch(1, 2, is_verified=False))).holds


@pytest.mark.parametrize("lane", accounting.LANES)
def test_events_that_a_lane_has_not_handled_are_pending(lane):
    job_ledger = recorded(lanes=[lane])
    result = account(ALL, job_ledger)
    assert not result.holds
    assert [of_lane.pending for name, of_lane in result.lanes.items() if name != lane] == [2]


def test_an_event_due_to_two_subscriptions_must_come_twice():
    twin = SUBSCRIPTIONS[1] | {"id": "twin"}
    history = ((1, DOCUMENT | {"subscriptions": [*SUBSCRIPTIONS, twin]}),)
    assert account((*ALL, batch(1, 2)), history=history).holds
    assert account(ALL, history=history).lanes["batch"].lost == (("e1", "twin"), ("e2", "twin"))


@pytest.mark.parametrize(
    ("later", "reason"),
    [
        ({"subscriptions": [SUBSCRIPTIONS[0], SUBSCRIPTIONS[1] | {"status": "paused"}]}, "subscription_paused"),
        ({"subscriptions": [SUBSCRIPTIONS[0]]}, "subscription_deleted"),
        ({"endpoints": [ENDPOINTS[0]], "subscriptions": [SUBSCRIPTIONS[0]]}, "endpoint_deleted"),
    ],
)
def test_a_pending_batch_may_be_skipped_for_a_later_change_only(later, reason):
    job_ledger = recorded(delivered=[1])
    job_ledger.delivered[Due(TOPIC, 0, 2, "one")] = 1500
    job_ledger.skipped[Due(TOPIC, 0, 2, "many")] = reason
    came = (single(1), single(2), batch(1))
    assert account(came, job_ledger, changed(**later)).lanes["batch"].skipped == {reason: 1}
    assert account(came, job_ledger, changed(**later)).holds
    assert not account(came, job_ledger).holds


def test_a_retry_may_be_skipped_for_a_later_change_only():
    job_ledger = recorded(delivered=[1])
    job_ledger.delivered[Due(TOPIC, 0, 2, "many")] = 3000
    job_ledger.skipped[Due(TOPIC, 0, 2, "one")] = "subscription_deleted"
    came = (single(1), batch(1, 2))
    assert account(came, job_ledger, changed(subscriptions=[SUBSCRIPTIONS[1]])).lanes["direct"].skipped == {
        "subscription_deleted": 1
    }
    assert account(came, job_ledger).lanes["direct"].lost == (("e2", "one"),)


@pytest.mark.parametrize("status", ["paused", "disabled"])
def test_a_paused_endpoint_is_no_reason_to_skip(status):
    job_ledger = recorded(delivered=[1])
    job_ledger.delivered[Due(TOPIC, 0, 2, "many")] = 3000
    job_ledger.skipped[Due(TOPIC, 0, 2, "one")] = f"endpoint_{status}"
    later = changed(endpoints=[ENDPOINTS[0] | {"status": status}, ENDPOINTS[1]])
    assert account((single(1), batch(1, 2)), job_ledger, later).lanes["direct"].lost == (("e2", "one"),)


def test_a_skip_after_a_delivery_is_not_counted():
    job_ledger = recorded()
    job_ledger.skipped[Due(TOPIC, 0, 2, "many")] = "subscription_deleted"
    later = changed(subscriptions=[SUBSCRIPTIONS[0]])
    assert account(ALL, job_ledger, later).lanes["batch"].skipped == {}


def test_a_lane_is_judged_by_the_revision_it_routed_by():
    later = changed(subscriptions=[SUBSCRIPTIONS[0], SUBSCRIPTIONS[1] | {"status": "paused"}])
    job_ledger = recorded(revision=2)
    assert not account(ALL, job_ledger, later).holds
    assert dataclasses.asdict(account(ALL, job_ledger, later).lanes["direct"])["lost"] == ()


LETTERS = {Due(TOPIC, 0, 1, "one"), Due(TOPIC, 0, 2, "many")}


def redriven(letters=LETTERS):
    """Return the job's records after these deliveries were given up, redriven and delivered."""
    job_ledger = recorded()
    job_ledger.redriven = dict.fromkeys(letters, 2000)
    for due in letters:
        job_ledger.dead_letters[f"e{due.offset}", due.subscription_id] = records.dead_letter(
            **due._asdict(), dead_lettered_at_ms=2000
        )
    return job_ledger


def over(job_ledger=None, *, given_up=LETTERS, **polled):
    """Return the account after all dead letters were polled, intact and acknowledged. `polled` overrides these sets."""
    done = {"seen": set(LETTERS), "intact": set(LETTERS), "acknowledged": set(LETTERS)}
    return account(ALL, job_ledger or redriven(), given_up=given_up, polled=over_http.Polled(**done | polled))


def test_a_redriven_delivery_counts_as_delivered_not_dead_lettered():
    result = over()
    assert result.holds
    document = result.document()
    counts = ("dead_letters", "polled", "acknowledged", "redriven", "delivered")
    assert document["over_http"] == {"customer": "customer-8"} | dict.fromkeys(counts, 2)
    assert (document["delivered"], document["redriven"], document["dead_lettered"]) == (4, 2, 0)


def test_the_latency_leaves_redriven_deliveries_out():
    document = over().document()
    assert document["latency_ms"]["direct"]["p50"] == 500  # of the other event: 1,500 - 1,000
    assert over(redriven(LETTERS | {Due(TOPIC, 0, 2, "one")})).document()["latency_ms"]["direct"]["p50"] == 0


@pytest.mark.parametrize("step", ["intact", "acknowledged"])
@pytest.mark.parametrize("letter", LETTERS)
def test_a_dead_letter_that_misses_a_step_breaks_the_account(step, letter):
    assert not over(**{step: LETTERS - {letter}}).holds


@pytest.mark.parametrize("letter", LETTERS)
def test_a_dead_letter_without_redrive_breaks_the_account(letter):
    assert not over(redriven(LETTERS - {letter})).holds


def test_a_redriven_letter_without_delivery_breaks_the_account():
    polled = over_http.Polled(set(LETTERS), set(LETTERS), set(LETTERS))
    result = account((single(2), batch(1, 2)), redriven(), given_up=LETTERS, polled=polled)
    assert result.lanes["direct"].lost == (("e1", "one"),)
    assert not result.over_http.holds


@pytest.mark.parametrize("letter", LETTERS)
def test_a_redrive_of_another_delivery_breaks_the_account(letter):
    assert not over(redriven(LETTERS - {letter} | {Due(TOPIC, 0, 1, "many")})).holds


@pytest.mark.parametrize("extra", ["polled", "redriven"])
def test_a_strangers_dead_letter_breaks_the_account(extra):
    stranger = Due(TOPIC, 0, 1, "many")
    if extra == "polled":
        assert not over(seen=LETTERS | {stranger}, intact=LETTERS | {stranger}, acknowledged=LETTERS | {stranger}).holds
    else:
        assert not over(redriven(LETTERS | {stranger})).holds
