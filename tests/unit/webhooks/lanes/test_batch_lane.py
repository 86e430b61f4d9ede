"""The batch lane sends a batch by the current registry. Each event ends as delivered, dead-lettered or skipped."""

import asyncio
import base64
import collections
import dataclasses
import datetime as dt
import gzip
import hmac

import orjson
import pytest
from cloudevents.v1.http import from_json
from standardwebhooks import Webhook

from delivery.model import OutcomeKind
from delivery.registry_model import PLATFORM, Batching, ContentMode, DeliveryMode, SigningKey, SubscriptionStatus
from delivery.secret import Secret
from delivery.webhooks.batching import segment
from delivery.webhooks.http import guard
from delivery.webhooks.http.transport import Response
from delivery.webhooks.lanes import batch_lane
from delivery.webhooks.policy import backoff
from delivery.webhooks.results import counters, dead_letter_records, dead_letter_rows, topic_rows
from delivery.webhooks.routing import lookup_registry, registries
from delivery.webhooks.sending import batch_payload, sender
from tests.support import builders, fakes
from tests.support.batches import endpoint, events, pending_batch, sent
from tests.support.dispatching import fast_lane

NO_RETRY = backoff.QuickRetry(max_attempts=1)
TOPICS = topic_rows.Topics(attempts="attempts", dead_letters="dead", rejected="rejected", retries="retries")


def deliver(snapshot, *batches, answers=(200,), quick_retry=NO_RETRY, network=None, suppressed=(), looked_up=None, **options):
    """Deliver each pending batch as a batch, by the registry `looked_up` if given, else by the snapshot.

    `options` are the lane's own. Return the results and the requests that were sent.
    """
    clock, network = fakes.Clock(), network or fakes.FakeTransport(*answers)

    async def main():
        posting = sender.Sender(network, guard.Guard(), timeout_s=2, clock=clock)
        dispatcher, deferrals = fast_lane(posting, clock, suppressed=suppressed, quick_retry=quick_retry)
        known = looked_up or registries.WholeRegistry("base", snapshot)
        lane = batch_lane.BatchLane(known, dispatcher, deferrals, **options)
        first = await lane.submit([sent(batch) for batch in batches])
        rest = await lane.finish()
        return dataclasses.replace(rest, batches=first.batches + rest.batches)

    return asyncio.run(main()), network.posted


def registry(*subscriptions, **fields):
    return builders.snapshot(endpoint(**fields), *(subscriptions or [builders.subscription()]))


def headers_of(posted):
    return dict(line.split(": ", 1) for line in posted[1].decode().splitlines())


def test_a_batch_is_one_signed_request_with_all_payloads():
    of = [builders.event(data=b'{ "n" : %d.50 }' % n, sub_tenant_id="7") for n in range(3)]
    results, [(to, _, body, _)] = deliver(registry(), pending_batch(*of))
    assert to.endpoint.endpoint_id == "ep1"
    assert all(event.data in body for event in of)
    counted = orjson.loads(body)
    assert [message["id"] for message in counted] == [event.event_id for event in of]
    assert set(counted[0]) == {"type", "timestamp", "id", "source", "tenant_id", "sub_tenant_id", "data"}
    [(outcome, rejected)] = results.batches
    assert (outcome.kind, len(outcome.attempts), rejected) == (OutcomeKind.DELIVERED, 1, {})


@pytest.mark.parametrize("is_gzipped", [False, True])
def test_the_signature_is_over_the_uncompressed_body(is_gzipped):
    key = SigningKey(secret=Secret(b"another-key-0123456789abcdefghij"))
    sent = deliver(registry(signing_keys=(key,), batching=Batching(is_gzipped=is_gzipped)), pending_batch(*events(3)))[1][0]
    headers, body = headers_of(sent), gzip.decompress(sent[2]) if is_gzipped else sent[2]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.digest(key.secret.reveal(), signed, "sha256")).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert headers.get("content-encoding") == ("gzip" if is_gzipped else None)
    assert len(orjson.loads(body)) == 3


def test_the_public_library_verifies_a_batch():
    sent = deliver(registry(), pending_batch(*events(3)))[1][0]
    headers = headers_of(sent)
    signed_at = dt.datetime.fromtimestamp(int(headers["webhook-timestamp"]), dt.UTC)
    webhook = Webhook(base64.b64encode(builders.KEY.secret.reveal()).decode())
    assert webhook.sign(headers["webhook-id"], signed_at, sent[2].decode()) == headers["webhook-signature"]


def test_the_public_library_reads_a_batch_of_cloudevents():
    of = [builders.event(content={"n": n}, source="/s") for n in range(3)]
    [sent] = deliver(registry(content_mode=ContentMode.CLOUDEVENTS_STRUCTURED), pending_batch(*of))[1]
    assert headers_of(sent)["content-type"] == "application/cloudevents-batch+json"
    read = [from_json(orjson.dumps(event)) for event in orjson.loads(sent[2])]
    assert [(event["id"], event["tenantid"], event.data) for event in read] == [(e.event_id, "t1", e.content) for e in of]


def test_a_batch_id_depends_on_its_events_only():
    of = events(3)
    [first], [again], [other] = (deliver(registry(), pending_batch(*due))[1] for due in (of, of, of[:2]))
    assert headers_of(first)["webhook-id"] == headers_of(again)["webhook-id"] != headers_of(other)["webhook-id"]
    assert "." not in headers_of(first)["webhook-id"]


def test_a_batch_goes_to_the_current_url():
    [(to, head, _, _)] = deliver(
        registry(url="https://moved.example.com/", headers=(("X-A", "b"),)), pending_batch(*events(2))
    )[1]
    assert to.origin.url == "https://moved.example.com"
    assert b"X-A: b" in to.head + head


ELSEWHERE = builders.subscription(endpoint_id="ep2")


@pytest.mark.parametrize(
    ("snapshot", "reason"),
    [
        (builders.snapshot(), "endpoint_deleted"),
        (registry(customer_id="c2"), "endpoint_deleted"),
        (registry(mode=DeliveryMode.DIRECT, batching=None), "endpoint_deleted"),
        (builders.snapshot(endpoint()), "subscription_deleted"),
        (builders.snapshot(endpoint(), endpoint("ep2"), ELSEWHERE), "subscription_deleted"),
        (registry(builders.subscription(status=SubscriptionStatus.PAUSED)), "subscription_paused"),
        (registry(builders.subscription(fault="a filter that is none")), "quarantined"),
    ],
)
def test_deleted_or_paused_meanwhile_is_skipped_with_a_reason(snapshot, reason):
    results, posted = deliver(snapshot, pending_batch(*events(3)))
    assert posted == []
    counted = counters.count(results, cpu_s=0)
    assert (counted.deliveries, counted.batches) == ({("skipped", reason): 3}, {})
    record = orjson.loads(next(topic_rows.rows(results, TOPICS, now_ms=0)).value)
    assert (record["customer_id"], record["mode"]) == ("c1", "batch")
    [entry] = record["entries"]
    assert (entry["kind"], entry["reason"], entry["count"]) == ("batch_skipped", reason, 3)


def test_events_of_a_deleted_tenant_are_skipped_alone():
    of = [builders.event(event_id=tenant, tenant_id=tenant) for tenant in ("t1", "deleted", PLATFORM)]
    results, [sent] = deliver(registry(), pending_batch(*of))
    assert [event["id"] for event in orjson.loads(sent[2])] == ["t1", PLATFORM]
    assert counters.count(results, cpu_s=0).deliveries == {("delivered", "none"): 2, ("skipped", "tenant_deleted"): 1}


def test_nothing_is_sent_if_every_tenant_was_deleted():
    results, posted = deliver(builders.snapshot(endpoint(), builders.subscription(), tenants=()), pending_batch(*events(3)))
    assert (posted, counters.count(results, cpu_s=0).deliveries) == ([], {("skipped", "tenant_deleted"): 3})


def test_events_of_a_deleted_subscription_are_skipped_alone():
    stays, goes = pending_batch(*events(2), subscription="s1"), pending_batch(*events(3), subscription="s2")
    stays.extend(goes)
    results, [sent] = deliver(registry(), stays)
    assert len(orjson.loads(sent[2])) == 2
    counted = counters.count(results, cpu_s=0)
    assert counted.deliveries == {("delivered", "none"): 2, ("skipped", "subscription_deleted"): 3}
    assert counted.batches == {"count": 1}


class Postgres:
    """A Reader that answers from a snapshot in memory."""

    snapshot = builders.snapshot()
    losses = 0

    def endpoint(self, _):
        return self.snapshot

    def tenants(self, _):
        return self.snapshot


@pytest.mark.parametrize(
    "before",
    [
        builders.snapshot(),
        builders.snapshot(endpoint()),
        registry(mode=DeliveryMode.DIRECT, batching=None),
        registry(builders.subscription(status=SubscriptionStatus.PAUSED)),
        builders.snapshot(endpoint(), builders.subscription(), tenants=()),
    ],
)
def test_no_event_is_skipped_by_an_answer_from_before_it_was_due(before):
    """Regression: a worker skipped a new subscription's events by an answer that was looked up before the subscription."""
    reader = Postgres()
    looked_up = lookup_registry.LookupRegistry(reader, ttl_s=30, max_answers=10, clock=fakes.Clock())
    reader.snapshot = before
    asyncio.run(looked_up.destination("ep1", ["t1"]))
    reader.snapshot = registry()
    results, posted = deliver(None, pending_batch(*events(3)), looked_up=looked_up)
    assert (len(posted), counters.count(results, cpu_s=0).deliveries) == (1, {("delivered", "none"): 3})


def test_a_failed_batch_is_a_dead_letter_for_each_event():
    of = events(3)
    results, posted = deliver(
        registry(), pending_batch(*of), answers=(500,), quick_retry=backoff.QuickRetry(max_attempts=2, first_wait_s=0)
    )
    assert len({headers_of(request)["webhook-id"] for request in posted}) == 1
    log, *letters = [(row.topic, orjson.loads(row.value)) for row in topic_rows.rows(results, TOPICS, now_ms=0)]
    assert [entry["attempt"] for entry in log[1]["entries"]] == [1, 2]
    assert log[1]["entries"][0]["offsets"] == {"s1": {"events.order.created": {"0": [7, 7, 7]}}}
    assert [(topic, letter["event_id"], letter["reason"]) for topic, letter in letters] == [
        ("dead", event.event_id, "server_error") for event in of
    ]
    outcome = batch_lane.Outcome(
        builders.delivery(event=of[0]), OutcomeKind.DEAD_LETTERED, results.batches[0].outcome.attempts, "x"
    )
    alone = orjson.loads(dead_letter_records.encode(dead_letter_rows.dead_letter(outcome, now_ms=0)))
    assert letters[0][1].keys() == alone.keys() | {"batch_webhook_id"}
    same = set(alone) - {"reason", "dead_lettered_at_ms"}
    assert {name: letters[0][1][name] for name in same} == {name: alone[name] for name in same}


def accepted(body, count=3):
    answer = Response(status=200, headers={}, body=body)
    return deliver(registry(), pending_batch(*events(count)), answers=(answer,))[0]


def test_rejected_events_of_a_batch_are_dead_letters():
    results = accepted(b'{"rejected": [{"index": 1, "reason": "no such order"}], "more": 1}')
    counted = counters.count(results, cpu_s=0)
    assert counted.deliveries == {("delivered", "none"): 2, ("dead_lettered", "rejected_by_endpoint"): 1}
    assert counted.latencies.total() == 2
    log, letter = [orjson.loads(row.value) for row in topic_rows.rows(results, TOPICS, now_ms=0)]
    assert log["entries"][0]["rejected"] == {"s1": {"events.order.created": {"0": [7]}}}
    assert (letter["reason"], letter["attempts"][0]["detail"]) == ("rejected_by_endpoint", "no such order")
    assert letter["event_id"] == results.batches[0].outcome.delivery.events[1].event_id


@pytest.mark.parametrize(
    "body",
    [
        b"ok",
        b'{"rejected": [{"index": 1}',
        b'{"rejected": 3}',
        b'{"rejected": [1]}',
        b'{"rejected": [{"reason": "x"}]}',
        b'{"rejected": [{"index": 3}]}',
        b'{"rejected": [{"index": -1}]}',
        b'{"rejected": [{"index": true}]}',
        b'{"rejected": [{"index": 1.0}]}',
        b'{"rejected": [{"index": [1]}]}',
        b'{"rejected": [{"index": 0}, {"index": 99}]}',
        b'{"rejected": [{"index": 0, "reason": 5}]}',
        b'[{"rejected": []}]',
        b'"rejected"',
        b'\xff"rejected"',
    ],
)
def test_a_response_of_another_form_rejects_nothing(body):
    assert accepted(body).batches[0].rejected == {}


def test_reasons_of_rejected_events_are_bounded():
    assert len(batch_payload.rejected_events(b'{"rejected":[{"index":0,"reason":"%s"}]}' % (b"x" * 5000), 1)[0]) == 200
    named = orjson.dumps({"rejected": [{"index": n, "reason": "no such order"} for n in range(350)]})
    assert len(named) <= 16 * 1024
    assert len(accepted(named, 400).batches[0].rejected) == 350


@pytest.mark.parametrize("step", ["content", "webhook_id"])
def test_an_unforeseen_error_affects_one_batch_only(step, monkeypatch, caplog):
    make = getattr(batch_payload, step)

    def with_a_bug(*args):
        if any(isinstance(argument, list) and len(argument) == 2 for argument in args):
            raise RuntimeError("a bug")
        return make(*args)

    monkeypatch.setattr(batch_payload, step, with_a_bug)
    counted = counters.count(deliver(registry(), pending_batch(*events(2)), pending_batch(*events(3)))[0], cpu_s=0)
    assert counted.deliveries == {("delivered", "none"): 3, ("dead_lettered", "unforeseen"): 2}
    assert "unforeseen" in caplog.text


def test_unreadable_events_of_a_batch_fail_the_task(monkeypatch):
    monkeypatch.setattr(segment, "unpacked", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        deliver(registry(), pending_batch(*events(2)))


def test_waiting_bodies_are_bounded_and_all_are_sent(monkeypatch):
    network, waiting = fakes.FakeTransport(200), []
    make = batch_payload.content

    def counted(*args, **options):
        waiting.append(len(waiting) - len(network.posted))
        return make(*args, **options)

    post = network.post

    async def post_late(*args):
        for _ in range(50):
            await asyncio.sleep(0)
        return await post(*args)

    monkeypatch.setattr(batch_payload, "content", counted)
    monkeypatch.setattr(network, "post", post_late)
    batches = [pending_batch(*events(5)) for _ in range(30)]
    results, posted = deliver(registry(), *batches, network=network, max_unsettled_bytes=3500)
    assert (len(posted), len(results.batches)) == (30, 30)
    assert 1 < max(waiting) < 6  # of some 700 bytes each


@pytest.mark.parametrize(
    ("events_each", "data_bytes", "fewest", "most"),
    [
        (10, 100, 12, 24),  # some 3 KB, and 4 for the request; after each one would take a fifth more CPU
        (10, 2_000, 4, 7),
        (1, 300_000, 1, 1),
    ],
)
def test_the_loop_runs_about_each_millisecond(events_each, data_bytes, fewest, most):
    made = sent(pending_batch(*events(events_each, data=b'"%s"' % (b"x" * data_bytes))))
    network, answered_by = fakes.FakeTransport(200), []

    def written():
        for _ in range(50):
            answered_by.append(len(network.posted))
            yield made

    async def main():
        clock = fakes.Clock()
        dispatcher, deferrals = fast_lane(sender.Sender(network, guard.Guard(), timeout_s=2, clock=clock), clock)
        lane = batch_lane.BatchLane(registries.WholeRegistry("base", registry()), dispatcher, deferrals)
        await lane.submit(written())
        await lane.finish()

    asyncio.run(main())
    *made_in_a_turn, _ = collections.Counter(answered_by).values()
    assert made_in_a_turn
    assert all(fewest <= count <= most for count in made_in_a_turn), made_in_a_turn


def test_a_batch_round_trips_through_its_bytes():
    of = builders.event(
        sub_tenant_id="7", record=builders.record(headers=(("a", b"\xff"), ("a", b"")), partition=3, offset=2**40)
    )
    [packed] = segment.decoded_batch(sent(pending_batch(of))).packed
    assert segment.unpacked(packed).event() == of._replace(content=None, record=of.record._replace(value=None))
