"""The real-time lane in a worker delivers records as they arrive; a receipt follows when all its records have an outcome."""

import asyncio
import collections
import dataclasses
import threading

import orjson
import pytest

from delivery import errors
from delivery.webhooks.events import parsing
from delivery.webhooks.lanes import direct_lane, drain_gate, realtime_lane
from delivery.webhooks.policy import backoff
from delivery.webhooks.routing import paused_partitions, registries
from tests.support import builders, fakes
from tests.support.dispatching import fast_lane
from tests.support.waiting import assert_becomes


class Answering:
    """A sender that responds when the test allows it. It responds at once for the offsets in `always`."""

    def __init__(self):
        self.is_asked, self.may_answer = threading.Event(), threading.Event()
        self.always = set()
        self._sender = fakes.FakeSender(lambda *_: None, fakes.Clock())

    async def attempt(self, delivery, number):
        self.is_asked.set()
        while not self.may_answer.is_set() and delivery.event.record.offset not in self.always:  # noqa: ASYNC110  # a test's thread sets it
            await asyncio.sleep(0.001)
        return await self._sender.attempt(delivery, number)


@pytest.fixture
def loop():
    running = asyncio.new_event_loop()
    thread = threading.Thread(target=running.run_forever)
    thread.start()
    yield running
    running.call_soon_threadsafe(running.stop)
    thread.join()
    running.close()


class Formats:
    """A decoder that waits, as for a schema, at each record of one offset until the test allows it."""

    def __init__(self, offset):
        self.is_waiting, self.may_decode = threading.Event(), threading.Event()
        self._offset = offset

    async def event(self, record):
        if record.offset == self._offset:
            self.is_waiting.set()
            await asyncio.to_thread(self.may_decode.wait)
        return parsing.parse(record, parsing.Layout())


class Refusing:
    """A decoder that cannot read the schema of records of one topic until the test allows it."""

    def __init__(self, topic):
        self.may_decode = threading.Event()
        self._topic = topic

    async def event(self, record):
        if record.topic == self._topic and not self.may_decode.is_set():
            raise errors.SchemaRegistryUnavailable("the schema is refused")
        return parsing.parse(record, parsing.Layout())


class Lane:
    """A lane with a registry of one endpoint."""

    def __init__(self, loop, *, next_offsets=None, slice_s=0.0, answers=True, formats=None, complete=lambda results: results):
        self._formats = formats
        self.sender = Answering()
        if answers:
            self.sender.may_answer.set()
        self.registry = registries.WholeRegistry(
            "base", builders.snapshot(builders.endpoint(), builders.subscription(event_type="*"))
        )
        self.begun = 0
        paused = paused_partitions.PausedPartitions(self._can_read, ask_s=0.001)
        self.itself = realtime_lane.RealtimeSlices(loop, self._begin, next_offsets or {}, complete, paused, slice_s=slice_s)

    async def _can_read(self, record):
        try:
            await self._formats.event(record)
        except errors.SchemaRegistryUnavailable:
            return False
        return True

    def _begin(self):
        self.begun += 1
        door = drain_gate.DrainGate(self.sender)
        dispatcher, deferrals = fast_lane(door, asyncio.get_running_loop().time, quick_retry=backoff.QuickRetry())
        lane = direct_lane.DirectLane(self.registry, dispatcher, deferrals, parsing.Layout(), formats=self._formats)
        return realtime_lane.Slice(lane, door)

    def feed(self, *offsets, topic="events.a"):
        value = orjson.dumps({"id": "e1", "tenant_id": "t1"})
        return self.itself.feed([builders.record(topic=topic, offset=offset, value=value) for offset in offsets])

    def taken(self, receipts):
        """Read results until there are this many receipts; return (outcomes, receipts)."""
        outcomes, found = [], []
        while len(found) < receipts:
            ended = self.itself.next_results()
            outcomes += ended.results.outcomes
            found += [(receipt.first_offset, receipt.last_offset, receipt.records, receipt.due) for receipt in ended.receipts]
        return outcomes, found


def test_records_are_delivered_during_the_task(loop):
    lane = Lane(loop)
    lane.feed(7)
    outcomes, receipts = lane.taken(1)
    assert ([outcome.kind.value for outcome in outcomes], receipts) == (["delivered"], [(7, 7, 1, 1)])
    lane.feed(8, 9)
    assert lane.taken(1)[1] == [(8, 9, 2, 2)]
    assert lane.begun == 2
    lane.itself.finish()
    assert lane.itself.next_results() is None


def test_a_receipt_covers_offsets_without_a_record(loop):
    lane = Lane(loop, next_offsets={("events.a", 0): 5})
    lane.feed(7)
    assert lane.taken(1)[1] == [(5, 7, 1, 1)]
    lane.feed(10)
    assert lane.taken(1)[1] == [(8, 10, 1, 1)]
    lane.itself.finish()


def test_a_receipt_waits_for_the_responses(loop):
    lane = Lane(loop, slice_s=1e9, answers=False)
    lane.feed(7)
    finishing = threading.Thread(target=lane.itself.finish)
    finishing.start()
    assert lane.itself._ended.empty()
    lane.sender.may_answer.set()
    outcomes, receipts = lane.taken(1)
    assert (len(outcomes), receipts) == (1, [(7, 7, 1, 1)])
    finishing.join()


def test_a_new_registry_ends_the_slice_at_once(loop):
    lane = Lane(loop, slice_s=1e9)
    lane.feed(7)
    lane.itself.end_slice()
    assert lane.taken(1)[1] == [(7, 7, 1, 1)]
    lane.itself.finish()


def test_a_partition_waits_for_its_schema_and_no_other_does(loop):
    """Regression: the whole real-time lane waited, and restarted its query each few seconds."""
    formats = Refusing("events.framed")
    lane = Lane(loop, formats=formats, slice_s=1e9)
    lane.feed(3, 4, topic="events.framed")
    lane.feed(7)
    assert_becomes(lambda: lane.itself.paused.places, {("events.framed", 0)})
    lane.feed(5, topic="events.framed")
    lane.feed(8)
    assert not lane.itself.paused.are_readable
    formats.may_decode.set()
    assert_becomes(lambda: lane.itself.paused.are_readable, True)
    lane.feed(6, topic="events.framed")  # dropped too: the records before it were not delivered
    lane.itself.finish()
    outcomes, receipts = lane.taken(1)
    assert [outcome.delivery.event.record.offset for outcome in outcomes] == [7, 8]
    assert receipts == [(7, 8, 2, 2)]


@pytest.mark.parametrize("end", ["slice", "task"])
def test_a_slice_that_waits_for_a_schema_does_not_end(loop, end):
    """Regression: the slice ended amid its records. The later ones had no outcome, and the receipts left them out."""
    formats = Formats(offset=8)
    lane = Lane(loop, formats=formats, slice_s=0.0 if end == "slice" else 1e9)
    lane.feed(7, 8, 9, 10)
    assert formats.is_waiting.wait(60)
    finishing = threading.Thread(target=lane.itself.finish)
    if end == "task":
        finishing.start()
    checked = asyncio.run_coroutine_threadsafe(asyncio.sleep(3 * realtime_lane.CHECK_EVERY_S), loop)
    checked.result()
    formats.may_decode.set()
    outcomes, receipts = lane.taken(1)
    assert sorted(outcome.delivery.event.record.offset for outcome in outcomes) == [7, 8, 9, 10]
    assert receipts == [(7, 10, 4, 4)]
    if end == "slice":
        finishing.start()
    finishing.join()


def test_a_slice_ends_while_records_arrive_without_a_pause(loop):
    """The slice ends between two chunks: the checks in between never find it without records to take."""
    lane = Lane(loop)
    lane.feed(*range(realtime_lane.MAX_WAITING))
    covered = 0
    while covered < realtime_lane.MAX_WAITING:
        ended = lane.itself.next_results()
        covered += sum(receipt.records for receipt in ended.receipts)
    assert lane.begun > 1
    lane.itself.finish()


def test_after_a_stop_no_attempt_begins(loop):
    lane = Lane(loop)
    lane.feed(7)
    lane.taken(1)
    lane.itself.stop()
    assert not lane.feed(8)
    lane.itself.finish()
    assert lane.itself.next_results() is None


def test_no_receipt_covers_a_dropped_record(loop):
    lane, may_go_on = Lane(loop, next_offsets={("events.a", 0): 7}), threading.Event()

    class Stopping(collections.deque):
        def extend(self, arrived):
            """Stop the lane between the check of `is_over` and the append."""
            if arrived[0].offset == 8:
                lane.itself.stop()
                may_go_on.set()
                for _ in range(3):
                    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()
            super().extend(arrived)

    lane.itself._waiting = Stopping()
    loop.call_soon_threadsafe(may_go_on.wait)
    lane.feed(7)
    lane.feed(8)
    lane.itself.finish()
    assert (lane.itself.next_results(), lane.itself.is_over) == (None, True)


def test_receipts_are_in_the_order_of_their_slices(loop):
    lane = Lane(loop, slice_s=1e9, answers=False)
    lane.sender.always = {8}
    lane.feed(7)
    lane.itself.end_slice()
    while not lane.itself._finishing:
        pass
    lane.feed(8)
    lane.itself.end_slice()
    outcomes = lane.itself.next_results().results.outcomes
    assert [outcome.delivery.event.record.offset for outcome in outcomes] == [8]
    while len(lane.itself._finishing) < 2:
        pass
    lane.sender.may_answer.set()
    assert lane.taken(2)[1] == [(7, 7, 1, 1), (8, 8, 1, 1)]
    lane.itself.finish()


def test_a_slice_reports_its_totals_when_its_outcomes_have_left(loop):
    """Regression: behind an unfinished slice, the totals of a slice whose outcomes had all left were dropped."""
    lane = Lane(loop, slice_s=1e9, answers=False, complete=lambda results: dataclasses.replace(results, own_delay_s=1.0))
    lane.sender.always = {8}
    lane.feed(7)
    lane.itself.end_slice()
    while not lane.itself._finishing:
        pass
    lane.feed(8)
    assert len(lane.itself.next_results().results.outcomes) == 1
    lane.itself.end_slice()
    while len(lane.itself._finishing) < 2:
        pass
    lane.sender.may_answer.set()
    lane.itself.finish()
    assert sum(ended.results.own_delay_s for ended in iter(lane.itself.next_results, None)) == 2.0


def test_a_paused_lane_reads_on_after_the_pause(loop):
    lane = Lane(loop)
    lane.itself.pause(is_paused=True)
    feeding = threading.Thread(target=lane.feed, args=(7,))
    feeding.start()
    lane.itself.pause(is_paused=False)
    feeding.join()
    assert lane.taken(1)[1] == [(7, 7, 1, 1)]
    lane.itself.finish()


def test_a_failed_task_reports_results_without_a_receipt(loop):
    lane = Lane(loop, slice_s=1e9)
    lane.feed(7)
    first = lane.itself.next_results()
    lane.itself.close(0.1)
    assert [outcome.kind.value for outcome in first.results.outcomes] == ["delivered"]
    assert lane.itself.next_results() is None


def test_a_failed_task_logs_the_attempts_that_it_cancels(loop, caplog):
    """Regression: attempts that outlasted the time of `close` were cancelled without a log line."""
    lane = Lane(loop, slice_s=1e9, answers=False)
    lane.feed(7)
    assert lane.sender.is_asked.wait(60)
    lane.itself.close(0.01)
    assert "has attempts in flight (1)" in caplog.text


def test_an_unforeseen_error_fails_the_task(loop):
    lane = Lane(loop)
    lane.itself.fail(ValueError("x"))
    with pytest.raises(ValueError, match="x"):
        lane.feed(7)
    with pytest.raises(ValueError, match="x"):
        lane.itself.finish()


def test_a_lane_that_has_finished_is_not_checked(loop):
    """Regression: a task that waited for Kafka at its end failed, as if its event loop were blocked."""
    lane = Lane(loop)
    lane.feed(0)
    lane.itself.finish()
    lane.itself._checked_at -= 100
    assert lane.itself.unchecked_s() == 0
