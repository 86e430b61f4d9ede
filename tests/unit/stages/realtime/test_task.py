"""A task of the real-time lane that is asked to stop, or to pause: what it does not deliver is not committed, and not begun."""

import signal
import uuid

import orjson
import pyarrow as pa
import pytest

from delivery import errors
from delivery.config import settings, worker_plans
from delivery.model import SubscriptionStatus
from delivery.stages.realtime import deliver_realtime, messages, realtime_task, task_server
from delivery.stages.tasks import deliver_events, task_context
from tests.support import builders
from tests.unit.stages.realtime.test_channel import assert_becomes

CONFIG = settings.Settings()


class Writing:
    """Remembers the receipts that it was handed, and how many rows."""

    def __init__(self):
        self.rows, self.receipts = 0, []

    def write(self, made):
        for row in made:
            self.rows += 1
            value = orjson.loads(row.value)
            if value.get("kind") == "receipt":
                self.receipts.append((value["first_offset"], value["last_offset"]))

    def flush(self, within_s):
        pass

    def finish(self):
        pass


class Driver:
    """The driver's end. `paused` says whether the lane is, in the answers that follow each other."""

    def __init__(self, *paused):
        self.writing, self.asked = Writing(), []
        self._paused, self._base_id = list(paused), uuid.uuid4().hex
        self.server = task_server.TaskServer(self._update_for, {}, bind="127.0.0.1", host="127.0.0.1")

    def _update_for(self, known):
        self.asked.append(self.writing.rows)
        paused_subscription = builders.subscription(event_type="*", status=SubscriptionStatus.PAUSED)
        base = builders.snapshot(builders.endpoint(), paused_subscription)
        is_new = known.base_id != self._base_id
        is_paused = self._paused.pop(0) if self._paused else False
        return messages.DriverUpdate(base_id=self._base_id, base=base if is_new else None, is_paused=is_paused)

    def run(self, given):
        tools = task_context.Tools(plan=worker_plans.of_realtime(CONFIG), observe=lambda _: None, sink=lambda: self.writing)
        return deliver_realtime.DeliverRealtime(tools=tools, driver=self.server.address, stop_within_s=0)(given)


@pytest.fixture
def driver(monkeypatch):
    monkeypatch.setattr(realtime_task, "STOPPED_S", 0.0)
    before, made = signal.getsignal(signal.SIGHUP), []

    def make(*paused):
        made.append(Driver(*paused))
        return made[-1]

    yield make
    signal.signal(signal.SIGHUP, before)
    for driver in made:
        driver.server.close()


def batch(offset):
    record = builders.record(offset=offset, value=b'{"tenant_id": "t1", "id": "e1"}')
    row = {name: getattr(record, name) for name in deliver_events.COLUMNS[:-1]} | {"headers": None}
    return pa.RecordBatch.from_pylist([row])


def test_a_task_whose_input_ends_is_done(driver):
    here = driver()
    assert list(here.run([batch(0), batch(1)])) == []
    assert here.writing.receipts == [(0, 1)]


def test_a_stopped_task_never_ends_well(driver):
    here = driver()

    def given():
        yield batch(0)
        here.server.stop_tasks()
        assert_becomes(lambda: here.server.running_tasks, 0)
        yield batch(1)  # which is dropped

    with pytest.raises(errors.Orphaned):
        here.run(given())
    assert (here.writing.receipts, here.server.fault()) == ([(0, 0)], None)


def test_a_task_that_begins_after_the_stop_never_ends_well(driver):
    here = driver()
    here.server.stop_tasks()
    with pytest.raises(errors.Orphaned):
        here.run([batch(0)])
    assert here.writing.receipts == []


def test_a_task_of_a_paused_lane_begins_nothing(driver):
    here = driver(True)
    here.run([batch(0)])
    assert here.asked[1] == 0
    assert here.writing.receipts == [(0, 0)]
