"""The account of the demo holds only when everything due ended as it may: each test breaks one thing."""

import dataclasses

import pytest

from delivery.webhooks.results.log_entries import Due
from fanout.demo import expected_account, over_http, scenario
from fanout.kafka import places, publishing
from fanout.local import receiver
from fanout.reconcile import ledger
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


def recorded(*, delivered=(1, 2), revision=1, lanes=expected_account.LANES):
    """What the job says of itself: everything delivered by both lanes, at 1,500 and 3,000 ms."""
    told = ledger.Ledger()
    for lane in lanes:
        told.receipts[lane, PLACE] = [records.receipt(lane=lane, revision=revision, due=2)]
    for offset in delivered:
        told.delivered[Due(TOPIC, 0, offset, "one")] = 1500
        told.delivered[Due(TOPIC, 0, offset, "many")] = 3000
    return told


def account(received, told=None, history=((1, DOCUMENT),), findings=(), *, given_up=(), polled=None):
    polled = polled or over_http.Polled()
    return expected_account.account(
        EVENTS, history, told or recorded(), received, given_up=set(given_up), polled=polled, findings=findings, wall_s=1.0
    )


ALL = (single(1), single(2), batch(1, 2))


def changed(**later):
    """A registry that is changed at revision 2."""
    rows = {"endpoints": [dict(row) for row in ENDPOINTS], "subscriptions": [dict(row) for row in SUBSCRIPTIONS]}
    return ((1, DOCUMENT), (2, rows | later))


def test_everything_delivered_holds_and_each_lane_is_counted():
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
def test_what_no_receiver_accepted_is_lost_whatever_the_job_says(missing):
    result = account(missing)
    assert not result.holds
    assert sum(len(lane.lost) for lane in result.lanes.values()) >= 1


def test_an_event_that_the_answer_rejects_ends_as_a_dead_letter():
    told = recorded()
    told.dead_letters["e2", "many"] = records.dead_letter(topic=TOPIC, offset=2, subscription_id="many")
    result = account((single(1), single(2), batch(1, 2, rejected=frozenset({1}))), told)
    assert result.holds
    assert (result.lanes["batch"].delivered, result.lanes["batch"].dead_lettered) == (1, 1)


def test_an_event_that_came_in_two_batches_came_twice():
    result = account((*ALL, batch(2)))
    assert result.holds
    assert (result.lanes["direct"].duplicates, result.lanes["batch"].duplicates) == (0, 1)


@pytest.mark.parametrize("stranger", [batch(3), batch(1, path="/single"), batch(1, path="/nobody"), single(3)])
def test_what_was_not_due_there_is_unexpected(stranger):
    result = account((*ALL, stranger))
    assert not result.holds
    assert len(result.unexpected) == 1


def test_what_the_topics_do_not_bear_out_breaks_the_account():
    result = account(ALL, findings=["a run has fewer outcomes than were due"])
    assert not result.holds
    assert result.document()["findings"] == ["a run has fewer outcomes than were due"]


def test_a_signature_that_does_not_verify_breaks_the_account():
    assert not account((single(1), single(2), batch(1, 2, is_verified=False))).holds


@pytest.mark.parametrize("lane", expected_account.LANES)
def test_what_one_lane_has_not_handled_is_pending(lane):
    told = recorded(lanes=[lane])
    result = account(ALL, told)
    assert not result.holds
    assert [of_lane.pending for name, of_lane in result.lanes.items() if name != lane] == [2]


def test_what_one_subscription_and_its_twin_of_the_same_endpoint_want_must_come_twice():
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
def test_what_waits_for_its_batch_may_be_skipped_for_a_later_change_and_for_no_other_reason(later, reason):
    told = recorded(delivered=[1])
    told.delivered[Due(TOPIC, 0, 2, "one")] = 1500
    told.skipped[Due(TOPIC, 0, 2, "many")] = reason
    came = (single(1), single(2), batch(1))
    assert account(came, told, changed(**later)).lanes["batch"].skipped == {reason: 1}
    assert account(came, told, changed(**later)).holds
    assert not account(came, told).holds


def test_a_single_event_may_wait_for_its_next_attempt_and_be_skipped_for_a_change_that_comes_meanwhile():
    told = recorded(delivered=[1])
    told.delivered[Due(TOPIC, 0, 2, "many")] = 3000
    told.skipped[Due(TOPIC, 0, 2, "one")] = "subscription_deleted"
    came = (single(1), batch(1, 2))
    assert account(came, told, changed(subscriptions=[SUBSCRIPTIONS[1]])).lanes["direct"].skipped == {"subscription_deleted": 1}
    assert account(came, told).lanes["direct"].lost == (("e2", "one"),)


@pytest.mark.parametrize("status", ["paused", "disabled"])
def test_a_pause_is_no_reason_to_skip_anything(status):
    told = recorded(delivered=[1])
    told.delivered[Due(TOPIC, 0, 2, "many")] = 3000
    told.skipped[Due(TOPIC, 0, 2, "one")] = f"endpoint_{status}"
    later = changed(endpoints=[ENDPOINTS[0] | {"status": status}, ENDPOINTS[1]])
    assert account((single(1), batch(1, 2)), told, later).lanes["direct"].lost == (("e2", "one"),)


def test_a_skip_of_what_was_delivered_is_no_second_ending():
    told = recorded()
    told.skipped[Due(TOPIC, 0, 2, "many")] = "subscription_deleted"
    later = changed(subscriptions=[SUBSCRIPTIONS[0]])
    assert account(ALL, told, later).lanes["batch"].skipped == {}


def test_a_lane_that_routed_by_the_later_registry_owes_what_that_says():
    later = changed(subscriptions=[SUBSCRIPTIONS[0], SUBSCRIPTIONS[1] | {"status": "paused"}])
    told = recorded(revision=2)
    assert not account(ALL, told, later).holds
    assert dataclasses.asdict(account(ALL, told, later).lanes["direct"])["lost"] == ()


LETTERS = {Due(TOPIC, 0, 1, "one"), Due(TOPIC, 0, 2, "many")}


def redriven(letters=LETTERS):
    """What the job says when these were given up, redriven, and delivered then."""
    told = recorded()
    told.redriven = dict.fromkeys(letters, 2000)
    for due in letters:
        told.dead_letters[f"e{due.offset}", due.subscription_id] = records.dead_letter(
            **due._asdict(), dead_lettered_at_ms=2000
        )
    return told


def over(told=None, *, given_up=LETTERS, **polled):
    """The account when all of the letters were polled, were intact, and were acknowledged, but for what `polled` says."""
    done = {"seen": set(LETTERS), "intact": set(LETTERS), "acknowledged": set(LETTERS)}
    return account(ALL, told or redriven(), given_up=given_up, polled=over_http.Polled(**done | polled))


def test_what_was_polled_redriven_and_delivered_is_counted_as_delivered_and_not_as_given_up():
    result = over()
    assert result.holds
    document = result.document()
    counts = ("dead_letters", "polled", "acknowledged", "redriven", "delivered")
    assert document["over_http"] == {"customer": "customer-8"} | dict.fromkeys(counts, 2)
    assert (document["delivered"], document["redriven"], document["dead_lettered"]) == (4, 2, 0)


def test_how_long_redriven_ones_waited_is_no_latency():
    document = over().document()
    assert document["latency_ms"]["direct"]["p50"] == 500  # of the other event: 1,500 - 1,000
    assert over(redriven(LETTERS | {Due(TOPIC, 0, 2, "one")})).document()["latency_ms"]["direct"]["p50"] == 0


@pytest.mark.parametrize("step", ["intact", "acknowledged"])
@pytest.mark.parametrize("letter", LETTERS)
def test_a_letter_that_misses_a_step_breaks_the_account(step, letter):
    assert not over(**{step: LETTERS - {letter}}).holds


@pytest.mark.parametrize("letter", LETTERS)
def test_a_letter_that_was_not_redriven_breaks_the_account(letter):
    assert not over(redriven(LETTERS - {letter})).holds


def test_a_letter_that_was_redriven_and_not_delivered_breaks_the_account():
    polled = over_http.Polled(set(LETTERS), set(LETTERS), set(LETTERS))
    result = account((single(2), batch(1, 2)), redriven(), given_up=LETTERS, polled=polled)
    assert result.lanes["direct"].lost == (("e1", "one"),)
    assert not result.over_http.holds


@pytest.mark.parametrize("letter", LETTERS)
def test_another_delivery_redriven_in_place_of_a_letter_breaks_the_account(letter):
    assert not over(redriven(LETTERS - {letter} | {Due(TOPIC, 0, 1, "many")})).holds


@pytest.mark.parametrize("extra", ["polled", "redriven"])
def test_what_was_no_letter_of_the_customer_must_neither_be_polled_nor_redriven(extra):
    stranger = Due(TOPIC, 0, 1, "many")
    if extra == "polled":
        assert not over(seen=LETTERS | {stranger}, intact=LETTERS | {stranger}, acknowledged=LETTERS | {stranger}).holds
    else:
        assert not over(redriven(LETTERS | {stranger})).holds
