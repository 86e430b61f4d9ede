"""Driver and workers of the real-time lane exchange messages over real sockets of this machine."""

import dataclasses
import socket
import struct
import threading
from types import SimpleNamespace

import pytest

from delivery import errors
from delivery.stages.realtime import channel, messages, task_server
from delivery.webhooks.results.counters import Counters
from tests.support.waiting import assert_becomes

FIRST = messages.TaskReport(task=3)
AGAIN, FURTHER = {"next_offsets": {("t", 0): 5}}, {"next_offsets": {("t", 0): 6}}


@pytest.fixture
def both_ends():
    """Makes the channels of a worker and of the driver; with `key` the worker's is another."""
    opened = []

    def make(key=None):
        worker, driver, wire = connected(key)
        opened.extend([wire, driver])
        return worker, driver, wire

    yield make
    for connection in opened:
        connection.close()


def connected(key):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
    right = channel.new_key()
    driver = channel.accepted(theirs, right)
    challenge = ours.recv(16)
    return channel.Channel(ours, key or right, challenge, is_driver=False), driver, ours


def test_a_message_arrives_in_both_directions(both_ends):
    worker, driver, _ = both_ends()
    worker.send("report")
    driver.send(["update"])
    assert (driver.receive(), worker.receive()) == ("report", ["update"])


def test_a_message_of_another_key_is_refused(both_ends):
    worker, driver, _ = both_ends(channel.new_key())
    worker.send("report")
    with pytest.raises(channel.ChannelBroken, match="not sealed for this connection"):
        driver.receive()


def test_a_message_that_is_sent_again_is_refused(both_ends):
    worker, driver, wire = both_ends()
    recorded = []
    worker._connection = Recording(wire, recorded)
    worker.send("report")
    wire.sendall(recorded[0])
    assert driver.receive() == "report"
    with pytest.raises(channel.ChannelBroken, match="not sealed for this connection"):
        driver.receive()


class Recording:
    """A socket that remembers what is sent."""

    def __init__(self, wire, recorded):
        self._wire, self._recorded = wire, recorded

    def sendall(self, data):
        self._recorded.append(data)
        self._wire.sendall(data)


@pytest.mark.parametrize("length", [0, 4, 12, channel.MAX_REPORT_BYTES + 1])
def test_a_strangers_message_of_a_wrong_length_is_refused_before_it_is_read(both_ends, length):
    """Regression: a message shorter than a nonce ended the driver's thread with a traceback, without the warning."""
    _, driver, wire = both_ends()
    wire.sendall(struct.pack(">I", length))
    with pytest.raises(channel.ChannelBroken, match=f"a message of {length} bytes"):
        driver.receive()


@pytest.fixture
def listen():
    """Start a server with these bounds."""
    started = []

    def start(**bounds):
        started.append(
            task_server.TaskServer(
                lambda known: messages.DriverUpdate(base_id="b1", is_paused=known.base_id == ""),
                {("t", 0): 5},
                **{"bind": "127.0.0.1", "host": "127.0.0.1", "clock": lambda: NOW[0]} | bounds,
            )
        )
        return started[-1]

    NOW[0] = 0.0
    yield start
    for server in started:
        server.close()


@pytest.fixture
def listening(listen):
    return listen()


NOW = [0.0]


@pytest.fixture
def linked(listening):
    """A task's end of a connection to the driver."""
    link = channel.connect(listening.address)
    yield link
    link.close()


def exchange(link, **fields):
    link.send(dataclasses.replace(FIRST, **fields))
    return link.receive()


def test_reports_add_up_and_news_come_back(listening, linked):
    first = exchange(linked)
    assert (first.is_paused, first.next_offsets) == (True, {("t", 0): 5})
    known = messages.Known(base_id="b1")
    again = exchange(linked, known=known, counters=Counters(retries=1), records=2, delay_s=0.5, next_offsets={("t", 1): 7})
    assert (again.is_paused, again.next_offsets) == (False, {})
    exchange(linked, counters=Counters(retries=2), records=1, delay_s=0.25)
    heard = listening.drain()
    assert (heard.counters.retries, heard.records, heard.delay_s) == (3, 3, 0.5)
    assert (listening.drain().records, listening.running_tasks, listening.fault()) == (0, 1, None)
    assert listening.positions == {"t": {0: 5, 1: 7}}


def test_a_task_that_ends_well_is_no_fault(listening, linked):
    exchange(linked)
    linked.send(dataclasses.replace(FIRST, state=messages.TaskState.DONE))
    linked.close()
    assert_becomes(lambda: listening.running_tasks, 0)
    assert listening.fault() is None


def test_a_worker_that_is_killed_is_noticed_at_once(listening, linked):
    exchange(linked)
    linked.close()
    assert_becomes(lambda: listening.running_tasks, 0)
    assert listening.fault() == "the worker of task 3 was lost: the other side is gone"


def test_a_task_says_why_it_fails(listening, linked):
    exchange(linked)
    linked.send(dataclasses.replace(FIRST, state=messages.TaskState.FAILED, failure="ValueError: x"))
    assert_becomes(lambda: listening.running_tasks, 0)
    assert listening.fault() == "task 3 failed: ValueError: x"


def test_a_task_that_is_silent_is_a_fault(listening, linked):
    exchange(linked)
    assert listening.fault() is None
    NOW[0] = task_server.UNRESPONSIVE_S + 1
    assert listening.fault() == "task 3 has not reported for 10 s"


def test_the_first_fault_stays_the_answer_after_the_end_of_the_query(listening, linked):
    """The lane then named a worker that the end of the query had lost, or no fault at all."""
    exchange(linked)
    NOW[0] = task_server.UNRESPONSIVE_S + 1
    assert listening.fault() == "task 3 has not reported for 10 s"
    linked.close()
    assert_becomes(lambda: listening.running_tasks, 0)
    listening.close()
    assert listening.fault() == "task 3 has not reported for 10 s"


def test_a_task_that_stops_may_be_silent(listen):
    connect_s = 0.05
    listening = listen(connect_s=connect_s)
    link = channel.connect(listening.address)
    listening.stop_tasks()
    assert exchange(link).is_stopping
    NOW[0] = task_server.UNRESPONSIVE_S + 1
    assert listening.fault() is None
    threading.Event().wait(4 * connect_s)  # longer than any other message may take
    link.send(dataclasses.replace(FIRST, state=messages.TaskState.STOPPED))
    assert_becomes(lambda: listening.running_tasks, 0)
    assert listening.fault() is None
    link.close()


@pytest.mark.parametrize(("fields", "has_advanced"), [({"records": 3}, False), (AGAIN, False), (FURTHER, True)])
def test_only_a_receipt_for_more_than_before_is_an_advance(listening, linked, fields, has_advanced):
    exchange(linked)
    exchange(linked, **fields)
    assert listening.has_advanced is has_advanced


def test_a_connection_above_the_bound_is_closed_and_logged(listen, caplog):
    """Regression: the driver closed such a connection without a line in its log."""
    with pytest.raises(channel.ChannelBroken):
        channel.connect(listen(max_connections=0).address)
    assert_becomes(
        lambda: ["from 127.0.0.1: the driver has more than 0 threads (MAX_CONNECTIONS)" in line for line in caplog.messages],
        [True],
    )


def test_tasks_are_asked_to_stop(listening, linked):
    assert not exchange(linked).is_stopping
    listening.stop_tasks()
    assert exchange(linked).is_stopping


def test_a_used_port_is_named_together_with_its_setting(listen):
    taken = listen().address.port
    with pytest.raises(errors.SettingsError, match=rf"cannot listen on 127\.0\.0\.1:{taken} .*choose another realtime\.port"):
        listen(port=taken)


@pytest.mark.parametrize("bind", ["::1", "::"])
@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_tasks_reach_the_driver_at_an_ipv6_address(listen, bind, host):
    """Regression: the server had a socket of IPv4 only, so the lane ended with an error and stopped all lanes."""
    conf = {"spark.driver.host": host, "spark.driver.bindAddress": f"[{bind}]"}
    context = SimpleNamespace(master="k8s://x", getConf=lambda: conf)
    reached, listens_on = task_server.addresses(context)
    link = channel.connect(listen(bind=listens_on, host=reached).address)
    assert not exchange(link).is_stopping
    link.close()


def test_an_address_of_another_machine_is_named_together_with_its_setting(listen):
    with pytest.raises(errors.SettingsError, match=r"cannot listen on 192\.0\.2\.1:0 .*correct spark\.driver\.bindAddress"):
        listen(bind="192.0.2.1")
