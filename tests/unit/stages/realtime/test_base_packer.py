"""The driver of the real-time lane packs a base of the registry, and its changes, once for all tasks that ask for them."""

import threading
from concurrent import futures
from types import SimpleNamespace

import pytest

from delivery.registry_model import Revision
from delivery.stages.realtime import channel, messages, realtime_query, task_server
from delivery.stages.registry import base_packer
from delivery.webhooks.routing.published_registry import Published
from delivery.webhooks.routing.registry_snapshot import SnapshotChanges
from delivery.webhooks.scheduling import unhealthy
from delivery.webhooks.state import pickling

TASKS = 6


class Base:
    """A snapshot that counts how often it is pickled, and that arrives as a text."""

    revision = Revision(7)

    def __init__(self, text, until=lambda: None):
        self.pickles, self._text, self._until = 0, text, until

    def __reduce__(self):
        self.pickles += 1
        self._until()
        return str, (self._text,)


def published(base, base_id="b1", changes=None):
    return Published(base_id=base_id, base=base, changes=changes, confirmed_at=0.0)


def asked_at_once(address, known, have_all_asked):
    """Return the driver's answers to TASKS tasks that have the same version of the registry."""

    def answer(number):
        link = channel.connect(address)
        try:
            link.send(messages.TaskReport(task=number, known=known))
            if number == TASKS - 1:
                have_all_asked.set()
            update = link.receive()
            link.send(messages.TaskReport(task=number, state=messages.TaskState.DONE))
            return update
        finally:
            link.close()

    with futures.ThreadPoolExecutor(TASKS) as pool:
        return list(pool.map(answer, range(TASKS)))


@pytest.fixture
def updates():
    """The answers of a driver, whose newest registry the test sets."""
    registry = SimpleNamespace(newest=None, pause_reason=lambda: None)
    context = SimpleNamespace(
        unhealthy=SimpleNamespace(current=lambda: unhealthy.NONE_UNHEALTHY), network=SimpleNamespace(is_paused=False)
    )
    lane = realtime_query.RealtimeLane.__new__(realtime_query.RealtimeLane)
    lane._registry, lane._context, lane._packer = registry, context, base_packer.BasePacker()
    return SimpleNamespace(update_for=lane._update_for, registry=registry)


@pytest.fixture
def server(updates):
    listening = task_server.TaskServer(updates.update_for, {}, bind="127.0.0.1", host="127.0.0.1")
    yield listening
    listening.close()


def test_a_base_that_all_tasks_ask_for_at_once_is_pickled_once(updates, server):
    """Regression: each task's answer pickled the snapshot under the GIL, and workers gave up before their first byte."""
    have_all_asked = threading.Event()
    updates.registry.newest = published(Base("tenants and endpoints", lambda: have_all_asked.wait(5.0)))

    answers = asked_at_once(server.address, messages.Known(), have_all_asked)
    assert {(update.base_id, pickling.unpacked(update.base)) for update in answers} == {("b1", "tenants and endpoints")}
    assert updates.registry.newest.base.pickles == 1


def test_changes_that_all_tasks_ask_for_at_once_are_pickled_once(updates, server):
    """Regression: each task's answer pickled the changes under the GIL. After a large `fanout apply`, workers gave up."""
    have_all_asked = threading.Event()
    changes = Base("a hundred thousand rows", lambda: have_all_asked.wait(5.0))
    updates.registry.newest = published(Base("x"), changes=changes)
    answers = asked_at_once(server.address, messages.Known(base_id="b1", revision=Revision(6)), have_all_asked)
    assert {(update.base, pickling.unpacked(update.changes)) for update in answers} == {(None, "a hundred thousand rows")}
    assert (changes.pickles, updates.registry.newest.base.pickles) == (1, 0)


def test_later_changes_take_the_place_of_the_packed_ones(updates):
    for revision in (8, 9):
        changes = SnapshotChanges(since=Revision(7), revision=Revision(revision))
        updates.registry.newest = published(Base("x"), changes=changes)
        update = updates.update_for(messages.Known(base_id="b1", revision=Revision(revision - 1)))
        assert pickling.unpacked(update.changes) == changes
    assert updates.update_for(messages.Known(base_id="b1", revision=Revision(9))).changes is None


def test_a_task_that_has_the_base_gets_no_base(updates):
    updates.registry.newest = published(Base("x"))
    update = updates.update_for(messages.Known(base_id="b1", revision=Revision(7)))
    assert (update.base_id, update.base, updates.registry.newest.base.pickles) == ("b1", None, 0)


def test_a_new_base_takes_the_place_of_the_packed_one(updates):
    for base_id in ("b1", "b2"):
        updates.registry.newest = published(Base(f"base {base_id}"), base_id)
        assert pickling.unpacked(updates.update_for(messages.Known(base_id="b0")).base) == f"base {base_id}"


@pytest.mark.parametrize(("idle_s", "pickles"), [(base_packer.KEEP_S - 1, 1), (base_packer.KEEP_S + 1, 2)])
def test_a_packed_base_is_kept_while_tasks_may_still_ask_for_it(idle_s, pickles):
    """A packed base that stayed for ever would take the driver's memory for nothing."""
    now = [0.0]
    packer, newest = base_packer.BasePacker(clock=lambda: now[0]), published(Base("x"))
    packer.packed(newest)
    now[0] = idle_s
    packer.forget_unused()
    packer.packed(newest)
    assert newest.base.pickles == pickles


def test_a_report_does_not_wait_for_a_base_that_is_being_packed():
    packer, begun, may_end = base_packer.BasePacker(), threading.Event(), threading.Event()

    def pause():
        begun.set()
        may_end.wait(10.0)

    packing = threading.Thread(target=packer.packed, args=(published(Base("x", pause)),))
    packing.start()
    assert begun.wait(10.0)
    packer.forget_unused()
    assert packing.is_alive()
    may_end.set()
    packing.join()
