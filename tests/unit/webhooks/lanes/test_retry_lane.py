"""Leases start as endpoints, slots and memory allow; no micro-batch waits for late responses; each lease has one report."""

import asyncio

import pytest
from msgspec.structs import replace

from delivery.registry_model import Retrying, SubscriptionStatus
from delivery.webhooks.batching import segment
from delivery.webhooks.policy import retry_reasons
from delivery.webhooks.results import completed_work
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.routing import registries
from delivery.webhooks.scheduling import limits, outage_detection
from tests.support import builders, fakes
from tests.support.leases import NOW_MS, batch_registry, lease, registry, waiting
from tests.support.retry_lanes import Sender, deliver, lane_of, together


def test_a_retry_is_the_same_delivery_by_the_current_registry():
    sender, event = Sender(), builders.event()
    before = builders.delivery(event=event)
    retrying = Retrying(timeout_s=7.5)
    [report] = deliver(
        registry(url="https://moved.example.com/", retrying=retrying),
        lease(waiting(event, attempts=3)),
        sender=sender,
    ).reports
    [(delivery, number, timeout_s)] = sender.sent
    assert (delivery.webhook_id, delivery.body, delivery.signed) == (before.webhook_id, before.body, before.signed)
    assert (delivery.endpoint.url, number, timeout_s) == ("https://moved.example.com/", 4, 7.5)
    assert (report.lease, report.delivered, report.failed, report.blocked, report.requeued) == (1, 1, 0, None, [])


def test_an_endpoint_that_is_gone_is_reported_for_disabling():
    ended = deliver(registry(), lease(), sender=Sender(lambda _: "gone"))
    assert (ended.results.gone, ended.reports[0].failed) == ({builders.endpoint().as_attempted()}, 1)


def test_an_entry_given_up_is_not_sent_or_reported():
    sender = Sender()
    ended = deliver(registry(), lease(waiting(), number=0, given_up=retry_reasons.EXPIRED), sender=sender)
    assert (ended.reports, sender.sent, len(ended.results.outcomes)) == ([], [], 1)


def answering(**error_classes):
    """A sender whose endpoints are unreachable or accept, and the leases to each of them."""
    endpoints = [builders.endpoint(name, url=f"https://{name}.example/", retrying=Retrying()) for name in error_classes]
    subscriptions = [builders.subscription(f"s-{name}", endpoint_id=name) for name in error_classes]
    known = registries.WholeRegistry("base", builders.snapshot(*endpoints, *subscriptions))
    lane = lane_of(Sender(lambda delivery: error_classes[delivery.endpoint.endpoint_id]))

    async def micro_batch(*leases):
        first = await lane.start(map(retry_messages.encoded, leases), known, 10)
        assert first.results.reach == outage_detection.NOTHING_ASKED
        last = await lane.finish_task(10)
        return last.results.reach.asked, last.results.reach.unreachable

    return micro_batch, {name: lease(waiting(through=(f"s-{name}",)), endpoint=name) for name in error_classes}


def test_results_count_unreachable_destinations():
    """The judgement of our own network ignored the results of this lane."""
    micro_batch, to = answering(down="connect", unknown="dns", slow="timeout", fine=None, unset="configuration")

    async def main():
        assert await micro_batch(*to.values(), replace(to["fine"], order_key="k")) == (4, 3)
        assert await micro_batch() == (0, 0)
        assert await micro_batch(to["fine"]) == (1, 0)

    asyncio.run(main())


@pytest.mark.parametrize("known_by", ["the shard", "its last attempt"])
def test_endpoints_that_stay_unreachable_are_no_sign_of_an_outage(known_by):
    """Ten dead endpoints, probed in one micro-batch, would pause all lanes."""
    micro_batch, to = answering(**{f"dead{n}": "connect" for n in range(10)}, back=None)
    probes = {
        name: replace(down, is_probe=True)
        if known_by == "the shard"
        else replace(down, entries=[replace(down.entries[0], reason="timeout")])
        for name, down in to.items()
    }

    async def main():
        assert await micro_batch(*(probes[name] for name in probes if name != "back")) == (0, 0)
        assert await micro_batch(*probes.values()) == (1, 0)

    asyncio.run(main())


def test_ordered_entries_stop_after_a_failure():
    of = [builders.event(event_id=f"e{n}") for n in range(4)]
    sender = Sender(lambda delivery: "server_error" if delivery.event.event_id == "e2" else None)
    [report] = deliver(registry(), lease(*map(waiting, of), order_key="k"), sender=sender).reports
    assert (sender.ids(), sender.most) == (["e0", "e1", "e2"], {"ep1": 1})
    assert (report.order_key, report.delivered, report.failed) == ("k", 2, 1)
    assert [(back.place, len(back.attempts)) for back in report.requeued] == [(2, 1), (3, 0)]


def test_all_leases_of_an_endpoint_share_its_limit():
    sender = Sender()
    leases = [lease(*(waiting() for _ in range(5)), order_key=key) for key in "abcdefgh"]
    deliver(registry(max_in_flight=6), *leases, lease(*(waiting() for _ in range(20))), sender=sender, workers=2)
    assert (len(sender.sent), sender.most) == (60, {"ep1": 3})


def test_a_rate_requeues_entries_without_time_left():
    clock, sender, ended = fakes.PassingClock(NOW_MS / 1000), Sender(), []

    async def main():
        clock.install()
        lane, known = lane_of(sender, clock), registries.WholeRegistry("base", registry(max_per_second=0.2))
        for number in (1, 2):
            await lane.start([retry_messages.encoded(lease(*(waiting() for _ in range(10)), number=number))], known, 10)
            ended.append(await lane.finish_task(60))
        return clock.now

    assert asyncio.run(main()) == NOW_MS / 1000 + 60
    assert [report.delivered for drained in ended for report in drained.reports] == [7, 6]  # one each 5 s, in 30 s
    assert [[back.attempts for back in drained.reports[0].requeued] for drained in ended] == [[()] * 3, [()] * 4]


def test_a_request_that_waits_for_its_host_is_counted_once():
    """Regression: each check of the host's capacity counted as a wait."""

    async def main():
        clock, answers = fakes.PassingClock(NOW_MS / 1000), asyncio.Event()
        clock.install()
        asyncio.get_running_loop().call_later(2, answers.set)
        sender = Sender(lambda delivery: answers if delivery.endpoint.endpoint_id == "ep1" else None)
        lane = lane_of(sender, clock, max_per_host=1)
        other = builders.endpoint("ep2"), builders.subscription("s2", endpoint_id="ep2")
        known = registries.WholeRegistry("base", builders.snapshot(builders.endpoint(), builders.subscription(), *other))
        behind = lease(waiting(through=("s2",)), waiting(through=("s2",)), endpoint="ep2")
        await lane.start(map(retry_messages.encoded, [lease(), behind]), known, 10)
        ended = await lane.finish_task(10)
        return len(ended.results.outcomes), lane._runner._endpoint_slots._hosts.drain_delayed()

    assert asyncio.run(main()) == (3, 2)


def event_at(offset):
    return builders.event(event_id=f"e{offset}", record=builders.record(offset=offset))


def unreadable(monkeypatch, broken):
    unpack = segment.unpacked
    monkeypatch.setattr(segment, "unpacked", lambda packed: 1 / 0 if packed == broken.packed[0] else unpack(packed))


@pytest.mark.parametrize("subscriptions", [(), (builders.subscription(status=SubscriptionStatus.PAUSED),)])
def test_unreadable_entries_are_requeued_alone(monkeypatch, caplog, subscriptions):
    broken = waiting(retries=3)
    unreadable(monkeypatch, broken)
    ended = deliver(registry(*subscriptions), lease(waiting(), broken, waiting()))
    [report] = ended.reports
    [back] = report.requeued
    assert (back.place, back.reason, back.next_attempt) == (1, "unforeseen", (NOW_MS + 300_000, 3))
    assert [attempt.error_class for attempt in back.attempts] == ["local"]
    assert (report.failed, len(ended.results.outcomes)) == (0, 2)
    assert "unforeseen" in caplog.text


@pytest.mark.parametrize(
    ("through", "status", "was_accepted"),
    [
        (("gone", "s1"), SubscriptionStatus.PAUSED, False),
        (("s1", "gone"), SubscriptionStatus.ACTIVE, False),
        (("s1", "gone"), SubscriptionStatus.ACTIVE, True),
    ],
    ids=["ends in parts", "to be sent", "accepted before the lease ran again"],
)
def test_nothing_of_a_batch_with_an_unreadable_part_is_recorded(through, status, was_accepted):
    """Regression: such a batch is requeued whole, but the parts before the unreadable one were recorded, or even sent.

    They were recorded or sent again after the requeueing. A batch that was accepted before failed its whole lease.
    """

    async def main():
        batch, fine = waiting(event_at(1), event_at(2), through=through), waiting(event_at(3), event_at(4))
        broken = replace(batch, packed=[batch.packed[0], b"\xc1"])
        keys = {completed_work.key_of_packed(segment.unpacked(batch.packed[0]), "s1")} if was_accepted else frozenset()
        lane = lane_of(sender := Sender())
        known = registries.WholeRegistry("base", batch_registry(builders.subscription(status=status)))
        written = retry_messages.encoded(lease(broken, fine))
        ended = together(await lane.start([written], known, 5, keys), await lane.finish_task(5))
        [report] = ended.reports
        assert [(back.place, back.reason) for back in report.requeued] == [(0, "unforeseen")]
        of_fine = 1 if status is SubscriptionStatus.ACTIVE else 0
        assert (report.delivered, len(sender.sent), len(ended.results.batches)) == (of_fine, of_fine, 1)

    asyncio.run(main())


def test_an_unreadable_entry_is_requeued_alone_when_its_lease_runs_again():
    """Regression: the entry failed the lookup of accepted deliveries, so all entries of its lease waited until its expiry."""

    async def main():
        accepted, left = waiting(event_at(1)), waiting(event_at(2))
        keys = {completed_work.key_of_packed(segment.unpacked(accepted.packed[0]), "s1")}
        lane, known = lane_of(sender := Sender()), registries.WholeRegistry("base", registry())
        written = retry_messages.encoded(lease(accepted, waiting(packed=[b"\xc1"]), left))
        ended = together(await lane.start([written], known, 5, keys), await lane.finish_task(5))
        [report] = ended.reports
        assert (report.delivered, [(back.place, back.reason) for back in report.requeued]) == (2, [(1, "unforeseen")])
        assert sender.ids() == ["e2"]

    asyncio.run(main())


def test_unreadable_entries_given_up_do_not_fail_the_task(monkeypatch):
    broken = waiting()
    unreadable(monkeypatch, broken)
    ended = deliver(registry(), lease(waiting(), broken, number=0, given_up=retry_reasons.EXPIRED), lease(number=2))
    assert [outcome.kind for outcome in ended.results.outcomes] == ["dead_lettered", "delivered"]
    assert [rejection.reason for rejection in ended.results.rejections] == ["unreadable"]


def test_an_unforeseen_error_affects_one_lease_only(monkeypatch, caplog):
    leases = [lease(number=5), lease(order_key="k")]

    def in_flight_to(_, endpoint):
        if not surprised:
            surprised.append(endpoint)
            raise RuntimeError("a bug")
        return 1

    async def main():
        lane, known = lane_of(Sender()), registries.WholeRegistry("base", registry())
        monkeypatch.setattr(limits.Limits, "in_flight_to", in_flight_to)
        ended = together(await lane.start(map(retry_messages.encoded, leases), known, 5), await lane.finish_task(5))
        assert [report.order_key for report in ended.reports] == ["k"]
        assert "unforeseen" in caplog.text
        ended = together(await lane.start([retry_messages.encoded(leases[0])], known, 5), await lane.finish_task(5))
        assert [report.lease for report in ended.reports] == [5]

    surprised = []
    asyncio.run(main())


def test_a_reported_lease_is_left_out_of_the_next_run():
    async def main():
        lane, known = lane_of(sender := Sender()), registries.WholeRegistry("base", registry())
        leases = [lease(number=5), lease(waiting(builders.event(event_id="left")), order_key="k", number=6)]
        ended = {completed_work.key_of_lease("ep1", 5, 1)}
        drained = together(await lane.start(map(retry_messages.encoded, leases), known, 5, ended), await lane.finish_task(5))
        assert [report.lease for report in drained.reports] == [6]
        assert sender.ids() == ["left"]

    asyncio.run(main())


def test_accepted_deliveries_leave_before_their_lease_ends():
    """A process killed during a lease of a hundred entries would repeat all hundred."""
    hangs = asyncio.Event()
    events = [builders.event(event_id=f"e{n}") for n in range(3)]

    async def main():
        sender = Sender(lambda delivery: hangs if delivery.event.event_id == "e2" else None)
        lane, known = lane_of(sender), registries.WholeRegistry("base", registry())
        first = await lane.start([retry_messages.encoded(lease(*map(waiting, events)))], known, 0.01)
        assert not await lane.wait_for_leases(0.01)
        drained = together(first, lane.drain())
        assert ([outcome.delivery.event.event_id for outcome in drained.results.outcomes], drained.reports) == (
            ["e0", "e1"],
            [],
        )
        assert lane.drain() is None
        hangs.set()
        assert await lane.wait_for_leases(5)
        last = await lane.finish_task(5)
        assert [outcome.delivery.event.event_id for outcome in last.results.outcomes] == ["e2"]
        assert [report.delivered for report in last.reports] == [3]

    asyncio.run(main())
