"""No micro-batch of the retry lane waits for a late response, nor does the end of the process: a later one reports it."""

import asyncio

from delivery.webhooks.leases import memory_budget
from delivery.webhooks.policy import retry_reasons
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.routing import registries
from tests.support import builders
from tests.support.leases import NOW_MS, lease, registry, waiting
from tests.support.retry_lanes import Sender, lane_of, together


class Hanging:
    """A lane with an endpoint that responds when the test says so."""

    def __init__(self, **bounds):
        self.answers = asyncio.Event()
        self.sender = Sender(lambda delivery: self.answers if delivery.endpoint.endpoint_id == "ep1" else None)
        self.lane = lane_of(self.sender, **bounds)
        other = [builders.endpoint("ep2"), builders.subscription("s2", endpoint_id="ep2")]
        self.registry = registries.WholeRegistry(
            "base", builders.snapshot(builders.endpoint(), builders.subscription(), *other)
        )

    async def micro_batch(self, *leases, settle_s=0.01, room_s=None):
        """Run leases as a micro-batch. `room_s` bounds the wait for memory, by default `settle_s`."""
        within_s = settle_s if room_s is None else room_s
        taken = await self.lane.start(map(retry_messages.encoded, leases), self.registry, within_s)
        for _ in range(500):  # turns of the event loop, not time: a response that comes at all has come by then
            await asyncio.sleep(0)
        return together(taken, await self.lane.finish_task(settle_s))


def test_a_later_micro_batch_reports_a_late_response():
    async def main():
        hanging = Hanging()
        first = await hanging.micro_batch(lease(), lease(waiting(through=("s2",)), endpoint="ep2"))
        assert [report.endpoint_id for report in first.reports] == ["ep2"]
        assert (await hanging.micro_batch()).reports == []
        hanging.answers.set()
        late = await hanging.micro_batch(lease(waiting(through=("s2",)), endpoint="ep2", number=2))
        assert {(report.endpoint_id, report.delivered) for report in late.reports} == {("ep1", 1), ("ep2", 1)}
        assert len(late.results.outcomes) == 2
        assert (await hanging.micro_batch()).results.outcomes == []

    asyncio.run(main())


def test_a_late_result_is_returned_once():
    async def main():
        hanging = Hanging()
        await hanging.micro_batch(lease())
        assert hanging.lane.drain() is None
        hanging.answers.set()
        await asyncio.wait(hanging.lane._book._tasks)
        late = hanging.lane.drain()
        assert [(report.endpoint_id, report.delivered) for report in late.reports] == [("ep1", 1)]
        assert len(late.results.outcomes) == 1
        assert hanging.lane.drain() is None
        assert (await hanging.micro_batch()).reports == []

    asyncio.run(main())


def test_a_lease_in_flight_is_not_started_twice():
    async def main():
        hanging = Hanging()
        await hanging.micro_batch(lease())
        await hanging.micro_batch(lease())
        hanging.answers.set()
        ended = await hanging.micro_batch(lease(), settle_s=5)
        assert [report.lease for report in ended.reports] == [1]
        assert len(hanging.sender.sent) == 1

    asyncio.run(main())


def test_a_lease_takes_over_from_an_expired_one():
    of = [waiting(builders.event(event_id=f"e{n}")) for n in range(3)]

    async def main():
        hanging = Hanging()
        await hanging.micro_batch(lease(*of, order_key="k"))
        await hanging.micro_batch(lease(*of, order_key="k", number=2))
        hanging.answers.set()
        await asyncio.wait(hanging.lane._book._tasks)
        ended = await hanging.micro_batch()
        assert {report.lease: len(report.requeued) for report in ended.reports} == {1: 2, 2: 0}
        assert hanging.sender.ids() == ["e0", "e0", "e1", "e2"]

    asyncio.run(main())


def test_a_stopping_lane_requeues_unattempted_entries():
    async def main():
        hanging = Hanging(max_in_flight_per_endpoint=1)
        await hanging.micro_batch(lease(waiting(), waiting()))
        hanging.lane.stop()
        hanging.answers.set()
        await asyncio.wait(hanging.lane._book._tasks)
        [report] = hanging.lane.drain().reports
        assert (report.delivered, [(back.place, back.attempts) for back in report.requeued]) == (1, [(1, ())])
        assert (len(hanging.sender.sent), hanging.lane.is_busy) == (1, False)

    asyncio.run(main())


def test_a_stopping_lane_waits_for_no_rate():
    async def main():
        known = registries.WholeRegistry("base", registry(max_per_second=0.05))
        lane = lane_of(sender := Sender())
        await lane.start([retry_messages.encoded(lease(waiting(), waiting()))], known, 0)
        await lane.finish_task(0.01)
        lane.stop()
        ended, going_on = await asyncio.wait(lane._book._tasks, timeout=5)
        assert (len(ended), len(going_on), len(sender.sent)) == (1, 0, 1)
        [report] = lane.drain().reports
        assert (report.delivered, [back.place for back in report.requeued]) == (1, [1])

    asyncio.run(main())


def test_a_lease_after_the_stop_is_requeued_at_once():
    """Regression: a lease of an endpoint with a rate kept the event loop busy for up to 30 s, because no wait took any time."""

    async def main():
        known = registries.WholeRegistry("base", registry(max_per_second=0.05))
        lane = lane_of(sender := Sender())
        lane.stop()
        began = await lane.start([retry_messages.encoded(lease(waiting(), waiting()))], known, 0)
        ended = together(began, await lane.finish_task(5))
        assert [[back.place for back in report.requeued] for report in ended.reports] == [[0, 1]]
        assert sender.sent == []

    asyncio.run(main())


def test_leases_beyond_the_memory_bound_are_requeued():
    others = [lease(waiting(through=("s2",)), endpoint="ep2", order_key=str(n)) for n in range(20)]

    async def main():
        hanging = Hanging(max_in_flight_bytes=3 * memory_budget.ENTRY_BYTES)
        first = await hanging.micro_batch(lease(), *others, room_s=60)  # a lease of `others` ends at once, on any machine
        assert sum(report.delivered for report in first.reports) == 20
        refused = await hanging.micro_batch(lease(waiting(), waiting(), order_key="k", number=3))
        [report] = refused.reports
        assert (report.blocked, report.failed, [len(back.attempts) for back in report.requeued]) == (None, 0, [0, 0])
        assert all(back.next_attempt.at_ms > NOW_MS for back in report.requeued)
        given_up = await hanging.micro_batch(lease(waiting(), waiting(), number=0, given_up=retry_reasons.NO_ROOM))
        assert len(given_up.results.outcomes) == 2
        await hanging.lane.close()

    asyncio.run(main())
