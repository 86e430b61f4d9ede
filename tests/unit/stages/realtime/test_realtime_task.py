"""A stopped or paused real-time task writes no receipt for records that it has not delivered, and starts no delivery."""

import base64
import functools
import signal
import threading
import time
import uuid

import orjson
import pyarrow as pa
import pytest

from delivery import errors
from delivery.config import plan_builder, settings
from delivery.registry_model import SubscriptionStatus
from delivery.stages.realtime import deliver_realtime, messages, realtime_task, task_server
from delivery.stages.tasks import deliver_events, task_context
from delivery.webhooks.events import parsing
from delivery.webhooks.formats import decoder
from delivery.webhooks.routing import paused_partitions
from delivery.webhooks.state import pickling
from tests.support import builders
from tests.support.waiting import assert_becomes

CONFIG = settings.Settings()


class Writing:
    """A writer to Kafka that keeps the offsets of confirmed receipts, and counts rows."""

    def __init__(self):
        self.rows, self.receipts = 0, []
        self.story = []

    def write(self, made):
        for row in made:
            self.rows += 1
            value = orjson.loads(row.value)
            if value.get("kind") == "receipt" and "unconfirmed" not in value:
                self.receipts.append((value["first_offset"], value["last_offset"]))
                self.story.append("receipt")

    def flush(self, within_s):
        pass

    def finish(self):
        pass


class TaskDriver:
    """A TaskServer in this process. `paused`: for each answer in turn, whether it pauses the lane; then never."""

    def __init__(self, *paused):
        self.writing, self.rows_at_report = Writing(), []
        self._paused, self._base_id = list(paused), uuid.uuid4().hex
        self.server = task_server.TaskServer(self._update_for, {}, bind="127.0.0.1", host="127.0.0.1")

    def _update_for(self, known):
        self.rows_at_report.append(self.writing.rows)
        # Its deliveries are skipped, so they end without a request.
        paused_subscription = builders.subscription(event_type="*", status=SubscriptionStatus.PAUSED)
        base = pickling.packed(builders.snapshot(builders.endpoint(), paused_subscription))
        is_new = known.base_id != self._base_id
        is_paused = self._paused.pop(0) if self._paused else False
        return messages.DriverUpdate(base_id=self._base_id, base=base if is_new else None, is_paused=is_paused)

    def run(self, batches, config=CONFIG, stopped_s=0.0):
        tools = task_context.Tools(
            plan=plan_builder.of_realtime(config),
            observe=lambda _: None,
            sink=lambda: self.writing,
            write_events=lambda records: self.writing.story.extend(event.value for event in records) or {},
        )
        address = self.server.address
        return deliver_realtime.DeliverRealtime(tools=tools, driver=address, stop_within_s=0, stopped_s=stopped_s)(batches)


@pytest.fixture
def start_driver():
    handler, drivers = signal.getsignal(signal.SIGHUP), []

    def start(*paused):
        drivers.append(TaskDriver(*paused))
        return drivers[-1]

    yield start
    signal.signal(signal.SIGHUP, handler)  # orphan.outlive has set another handler
    for driver in drivers:
        driver.server.close()


def batch(*offsets, appended_at_ms=(0,), partition=0):
    rows = []
    for offset, at_ms in zip(offsets, appended_at_ms, strict=True):
        record = builders.record(
            offset=offset, partition=partition, value=b'{"tenant_id": "t1", "id": "e1"}', appended_at_ms=at_ms
        )
        rows.append({name: getattr(record, name) for name in deliver_events.COLUMNS[:-1]} | {"headers": None})
    return pa.RecordBatch.from_pylist(rows)


def test_a_task_whose_input_ends_is_done(start_driver):
    task_driver = start_driver()
    assert list(task_driver.run([batch(0), batch(1)])) == []
    assert task_driver.writing.receipts == [(0, 1)]


def test_the_oldest_record_of_an_arrow_batch_says_how_far_behind_a_task_is(start_driver):
    """Regression: the first record said it, and may be the newest: a lane that catches up reads several partitions."""
    task_driver = start_driver()
    now_ms = round(time.time() * 1000)
    task_driver.run([batch(0, 1, appended_at_ms=(now_ms, now_ms - 60_000))])
    assert_becomes(lambda: task_driver.server.running_tasks, 0)  # the last report has arrived
    assert task_driver.server.drain().delay_s >= 60


def test_a_batch_record_is_taken_apart_before_its_receipt(start_driver):
    task_driver = start_driver()
    headers = [{"key": "content-type", "value": base64.b64encode(b"application/cloudevents-batch+json").decode()}]
    row = dict.fromkeys(deliver_events.COLUMNS) | {"topic": "events.order.created", "partition": 0, "offset": 0}
    row |= {"appended_at_ms": 0, "value": b"[1, 2]", "headers": orjson.dumps(headers).decode(), "key": b"k"}
    config = settings.Settings(source=settings.SourceSettings(batch_records="taken_apart"))
    task_driver.run([pa.RecordBatch.from_pylist([row])], config)
    assert task_driver.writing.story == [b"1", b"2", "receipt"]


def test_a_stopped_task_never_ends_well(start_driver):
    task_driver = start_driver()

    def batches():
        yield batch(0)
        task_driver.server.stop_tasks()
        assert_becomes(lambda: task_driver.server.running_tasks, 0)
        yield batch(1)  # the stopped task drops this record

    with pytest.raises(errors.Orphaned):
        task_driver.run(batches())
    assert (task_driver.writing.receipts, task_driver.server.fault()) == ([(0, 0)], None)


def test_a_task_that_begins_after_the_stop_never_ends_well(start_driver):
    task_driver = start_driver()
    task_driver.server.stop_tasks()
    with pytest.raises(errors.Orphaned):
        task_driver.run([batch(0)])
    assert task_driver.writing.receipts == []


class Refusing:
    """A decoder of a worker: records of one partition need a schema that cannot be read, until `is_readable`."""

    is_readable = False

    async def event(self, record):
        if record.partition == 1 and not self.is_readable:
            raise errors.SchemaRegistryUnavailable("http://schemas:8081 does not answer")
        return parsing.parse(record, parsing.Layout())

    async def can_read(self, record):
        return record.partition != 1 or self.is_readable


@pytest.fixture
def start_refusing(start_driver, monkeypatch):
    """Return a function that runs a task whose worker has a new Refusing, until the driver has stopped the query."""
    formats, is_ended = Refusing(), threading.Event()
    quick = functools.partial(paused_partitions.PausedPartitions, ask_s=0.001)
    monkeypatch.setattr(paused_partitions, "PausedPartitions", quick)
    monkeypatch.setattr(decoder, "decoder_of", lambda *_: formats)
    monkeypatch.setattr(realtime_task.RealtimeTask, "is_orphan", property(lambda _: is_ended.is_set()))
    task_driver = start_driver()

    def stop_when_asked():
        assert_becomes(lambda: task_driver.server.asks_for_restart, True)
        task_driver.server.stop_tasks()
        assert_becomes(lambda: task_driver.server.running_tasks, 0)
        is_ended.set()

    def run(batches):
        stopping = threading.Thread(target=stop_when_asked)
        stopping.start()
        of_no_other_worker = settings.Settings(source=settings.SourceSettings(topic_prefix=uuid.uuid4().hex))
        with pytest.raises(errors.Orphaned):
            task_driver.run(batches(formats, task_driver.server), of_no_other_worker, stopped_s=60)
        stopping.join()
        return task_driver

    return run


def test_a_task_with_a_paused_partition_asks_for_a_restart_at_its_end(start_refusing):
    """Regression: it failed, and all other partitions waited until the schema registry answered.

    It must not end well either: Spark would commit the records that it has dropped.
    """
    task_driver = start_refusing(lambda *_: [batch(0, partition=1), batch(0), batch(1, partition=1), batch(1)])
    assert task_driver.server.paused == {("events.order.created", 1)}
    assert (task_driver.writing.receipts, task_driver.server.fault()) == ([(0, 1)], None)


def test_a_task_asks_for_a_restart_when_a_schema_can_be_read(start_refusing):
    def batches(formats, server):
        yield batch(0, partition=1)
        assert_becomes(lambda: server.paused, {("events.order.created", 1)})
        assert not server.asks_for_restart
        formats.is_readable = True
        assert_becomes(lambda: server.running_tasks, 0)

    task_driver = start_refusing(batches)
    assert (task_driver.writing.receipts, task_driver.server.fault()) == ([], None)


def test_a_task_begins_nothing_until_its_lane_is_resumed(start_driver):
    task_driver = start_driver(True)
    task_driver.run([batch(0)])
    assert task_driver.rows_at_report[1] == 0  # the second report: the first answer had paused the lane
    assert task_driver.writing.receipts == [(0, 0)]  # the second answer ended the pause
