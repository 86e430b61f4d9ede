"""One of three brokers is killed, then each is restarted in turn, under a running job: traffic goes on, and arrives once."""

import collections
import concurrent.futures
import threading

import orjson
import pytest
from confluent_kafka.admin import AdminClient

from fanout.kafka import publishing
from fanout.local import kafka_server as local_kafka
from tests.e2e.conftest import assert_eventually
from tests.e2e.test_batch_lane import in_batches
from tests.e2e.test_seen_from_outside import Outside

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
BROKERS = 3
EVENTS_PER_S = 50
SOON_S = 45
"""Sooner than Java's client gives up by itself, after a minute, to ask a broker that is gone."""


class Cluster:
    """Three brokers; every topic has a replica on each, and takes what two of them have."""

    def __init__(self, root, libraries):
        self.brokers = {
            seat.node_id: local_kafka.EmbeddedKafka(root / str(seat.node_id), libraries=libraries, seat=seat)
            for seat in local_kafka.seats(BROKERS)
        }
        self.bootstrap_servers = ",".join(broker.bootstrap_servers for broker in self.brokers.values())

    def start(self):
        with concurrent.futures.ThreadPoolExecutor() as pool:
            for started in [pool.submit(broker.start) for broker in self.brokers.values()]:
                started.result()

    def kill(self):
        for broker in self.brokers.values():
            broker.kill()

    def leads_most(self):
        return collections.Counter(partition.leader for partition in partitions(self.bootstrap_servers)).most_common(1)[0][0]

    def await_going_on_without(self, node_id):
        """Wait until each partition is led by another than this broker, and none waits for it."""
        others = [broker.bootstrap_servers for number, broker in self.brokers.items() if number != node_id]
        for servers in others:
            await_none(servers, lambda partition: partition.leader in (node_id, -1) or node_id in partition.isrs)

    def await_in_sync(self):
        """Wait until each broker says that no partition lacks a replica."""
        for broker in self.brokers.values():
            await_none(broker.bootstrap_servers, lambda partition: len(partition.isrs) < BROKERS)


def partitions(servers):
    topics = AdminClient({"bootstrap.servers": servers, "log_level": 0}).list_topics(timeout=30).topics
    return [partition for topic in topics.values() for partition in topic.partitions.values()]


def await_none(servers, lacks):
    assert_eventually(lambda: [partition for partition in partitions(servers) if lacks(partition)], lambda lacking: not lacking)


@pytest.fixture
def cluster(jars, tmp_path):
    cluster = Cluster(tmp_path / "kafka", jars)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()


class Traffic(threading.Thread):
    """A producer that goes on, whatever happens to the brokers; `ids` are those of what Kafka has confirmed."""

    def __init__(self, platform):
        super().__init__(daemon=True)
        self.ids = []
        self._topic = f"{platform.name}.order"
        self._publisher = publishing.Publisher(platform.config.kafka, on_placed=self._placed)
        self._published = 0
        self._enough = threading.Event()

    def run(self):
        while not self._enough.wait(1 / EVENTS_PER_S):
            value = orjson.dumps({"id": f"e{self._published}", "tenant_id": "t1"})
            self._publisher.publish(publishing.Message(topic=self._topic, value=value))
            self._published += 1

    def end(self):
        self._enough.set()
        self.join()
        self._publisher.flush()
        assert len(self.ids) == self._published

    def _placed(self, placed):
        self.ids.append(orjson.loads(placed.message.value)["id"])


def test_each_event_arrives_once_while_brokers_are_killed_and_restarted(platform, cluster):
    """One job, one story, because its start takes most of the time. One endpoint takes events, one batches, and one may fail.

    1. The broker that leads most is killed. All lanes continue with the other two brokers, also the idle lane, which was asking
       the killed broker. That broker is started again.
    2. Each in turn is stopped gracefully, when none lacks anything, and started again: all lanes continue.
    3. Traffic ends: nothing is left, and nothing came twice.
    """
    outside = Outside()
    platform._kafka = cluster
    platform.register([{}])
    platform.register([{"id": "b", "endpoint": "ep2"}], endpoints=("ep2",), **in_batches(max_events=20, max_wait_s=1))
    platform.register([{"id": "r", "endpoint": "ep3"}], endpoints=("ep3",), retry={"schedule_s": [1] * 20})
    platform.create_topic("order", partitions=BROKERS)
    job = platform.start(
        metrics=outside.settings,
        # An answer that comes too late on a busy machine is no answer: the event would be sent again.
        delivery={"result_partitions": BROKERS, "attempt_timeout_s": 20},
        retry={"probe_interval_s": 1, "max_probe_interval_s": 1},
    )
    assert_eventually(lambda: outside.probe("/readyz"), lambda got: got == (200, "running"))
    traffic = Traffic(platform)
    traffic.start()
    arrived = {"ep1": platform.accepted, "ep2": lambda: platform.accepted("ep2"), "ep3": lambda: platform.accepted("ep3")}

    def await_all(ids, endpoint):
        assert_eventually(lambda: set(ids) - set(arrived[endpoint]()), lambda left: not left, within_s=SOON_S)

    def await_traffic():
        """Wait until a second's events that Kafka takes from now on have arrived, by the direct lane and by the batch lane."""
        before = len(traffic.ids)
        ids = assert_eventually(lambda: traffic.ids[before:], lambda taken: len(taken) >= EVENTS_PER_S)
        await_all(ids, "ep1")
        await_all(ids, "ep2")

    await_traffic()
    lost = cluster.leads_most()
    cluster.brokers[lost].kill()
    cluster.await_going_on_without(lost)
    platform.statuses["ep3"] = 500
    await_traffic()
    assert_eventually(lambda: outside.sum("fanout_attempts_total", lane="retry"), bool, within_s=SOON_S)
    cluster.brokers[lost].start()
    platform.statuses["ep3"] = 200

    for number, broker in cluster.brokers.items():
        cluster.await_in_sync()
        await_traffic()
        broker.stop()
        cluster.await_going_on_without(number)
        await_traffic()
        broker.start()
    cluster.await_in_sync()
    await_traffic()

    traffic.end()
    for endpoint in arrived:
        await_all(traffic.ids, endpoint)
    assert_eventually(lambda: outside.sum("fanout_source_up"), lambda up: up == 3)  # one for each lane
    assert_eventually(lambda: outside.sum("fanout_lag_records"), lambda lag: lag == 0)
    assert outside.probe("/readyz") == (200, "running")
    assert platform.stop(job) == 0, platform.log()
    for endpoint, taken in arrived.items():
        assert collections.Counter(taken()) == collections.Counter(traffic.ids), endpoint
    platform.assert_adds_up()
