"""A backlog waits in its shard until the endpoint's rate allows a request, and is not leased in vain meanwhile."""

import asyncio

import pytest

from delivery.registry_model import Retrying
from delivery.webhooks.leases import lease_runner
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.routing import registries
from delivery.webhooks.routing.registry_snapshot import SnapshotChanges
from tests.support import builders, fakes
from tests.support.leases import lease, registry, waiting
from tests.support.retries import NOW, Shard, entry, events_of, postponed
from tests.support.retry_lanes import Sender, lane_of

CAP_MS = round(lease_runner.MAX_RATE_WAIT_S * 1000)


class Timed(Sender):
    """A sender that knows when each attempt began, in seconds since the first micro-batch."""

    def __init__(self, clock, answer=lambda _: None):
        super().__init__(answer)
        self.clock = clock
        self.begun = []

    async def attempt(self, delivery, number, timeout_s=None):
        self.begun.append(self.clock() - NOW / 1000)
        return await super().attempt(delivery, number, timeout_s)


def retried(*entries, max_per_second, within_s):
    """Run the retry lane with a micro-batch each second. Return the sender and the leases."""

    async def main():
        clock = fakes.PassingClock(NOW / 1000)
        clock.install()
        sender, shard, leases = Timed(clock), Shard(), []
        lane, known = lane_of(sender, clock), registries.WholeRegistry("base", registry(max_per_second=max_per_second))
        messages = [postponed(*entries)]
        while clock() < NOW / 1000 + within_s:
            decided = shard.step(*messages, now_ms=round(clock() * 1000))
            leases += decided
            first = await lane.start(map(retry_messages.encoded, decided), known, 0.5)
            last = await lane.finish_task(0.5)
            messages = [retry_messages.encoded(report) for report in (*first.reports, *last.reports)]
            await asyncio.sleep(1)
        await lane.close()
        return sender, leases

    return asyncio.run(main())


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize(
    ("max_per_second", "begun"),
    [
        (1 / 20, [0, 20, 40, 60, 80, 100, 120, 140, 160, 180]),
        (1 / 100, [0, 100]),
        (1 / 1000, [0]),
    ],
)
def test_a_low_rate_leases_the_backlog_a_few_times_for_each_request(key, max_per_second, begun):
    """Regression: the backlog was leased, and requeued at once, in each micro-batch: 746 MB for a single attempt."""
    entries = [entry(order_key=key) for _ in range(20)]
    sender, leases = retried(*entries, max_per_second=max_per_second, within_s=199)
    assert sender.begun == pytest.approx(begun, abs=3 * len(begun))
    assert sender.ids() == events_of(entries)[: len(begun)]
    checks = max(lease_runner.CHECKS_PER_REQUEST * max_per_second, 1 / lease_runner.MAX_RATE_WAIT_S)
    assert len(leases) <= 199 * checks + 1


def test_a_backlog_soon_finds_a_worker_with_a_free_share_of_the_rate():
    """Regression: it waited by the share of the worker that had it last, up to 30 s, while other workers had theirs free."""

    async def main():
        clock = fakes.PassingClock(NOW / 1000)
        clock.install()
        sender, shard = Sender(), Shard()
        lanes = [lane_of(sender, clock, workers=8) for _ in range(8)]
        known = registries.WholeRegistry("base", registry(max_per_second=0.2))
        messages = [postponed(*[entry() for _ in range(100)])]
        for number in range(100):
            decided = [retry_messages.encoded(lease) for lease in shard.step(*messages, now_ms=round(clock() * 1000))]
            messages = []
            for place, lane in enumerate(lanes):
                first = await lane.start(decided if place == number % 8 else [], known, 0.5)
                last = await lane.finish_task(0.01)
                messages += [retry_messages.encoded(report) for report in (*first.reports, *last.reports)]
            await asyncio.sleep(1)
        for lane in lanes:
            await lane.close()
        return len(sender.sent)

    assert asyncio.run(main()) >= 10  # of 20 that the rate allows


def test_each_order_key_is_leased_at_most_twice_a_minute():
    entries = [entry(order_key=f"k{number}") for number in range(40)]
    sender, leases = retried(*entries, max_per_second=1 / 1000, within_s=89)
    assert len(sender.sent) == 1
    assert len(leases) <= 3 * 40


def requeued(max_per_second, attempts_s=(), then=lambda *_: None):
    """Deliver a lease of four entries. Return the milliseconds from its start to the next attempt of each requeued entry.

    `attempts_s`: how long an attempt of each entry takes, by the order of the attempts. `then` is called after a second.
    """

    async def main():
        clock = fakes.PassingClock(NOW / 1000)
        clock.install()
        answers = [asyncio.Event() for _ in attempts_s]
        for wait_s, answer in zip(attempts_s, answers, strict=True):
            asyncio.get_running_loop().call_later(wait_s, answer.set)
        given = iter(answers)
        lane = lane_of(Timed(clock, lambda _: next(given, None)), clock)
        known = registries.WholeRegistry("base", registry(max_per_second=max_per_second))
        of = lease(*(waiting() for _ in range(4)))
        reports = (await lane.start([retry_messages.encoded(of)], known, 0.5)).reports
        await asyncio.sleep(1)
        then(lane, known)
        reports += (await lane.finish_task(100)).reports
        [report] = reports
        return [back.next_attempt.at_ms - NOW for back in report.requeued]

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("max_per_second", "at_ms"),
    [(1 / 20, [25_000] * 2), (1 / 40, [10_000] * 3), (1 / 1000, [CAP_MS] * 3)],
    ids=["second slot is the last in time", "slot is after the lease", "wait is bounded"],
)
def test_entries_wait_for_the_rate_but_no_longer_than_the_bound(max_per_second, at_ms):
    assert requeued(max_per_second) == at_ms


def test_entries_that_the_rate_let_wait_are_due_at_once_in_a_next_process():
    """The next process has tokens of its own, and its leases may have another rate."""

    def stop(lane, _):
        lane.stop()

    assert requeued(1 / 1000, attempts_s=[10], then=stop) == [10_000] * 3


def test_entries_that_the_rate_let_wait_are_due_at_once_after_a_change():
    def lift(_, known):
        row = builders.endpoint(retrying=Retrying())
        known.advance(SnapshotChanges(since=1, revision=2, endpoints={"ep1": row}))

    assert requeued(1 / 1000, attempts_s=[10], then=lift) == [10_000] * 3
