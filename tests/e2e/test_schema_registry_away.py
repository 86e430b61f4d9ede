"""The schema registry is away when the job starts, and again later: its topics wait, and no other topic does."""

import json

import orjson
import pytest
from confluent_kafka import schema_registry
from confluent_kafka.schema_registry import avro
from confluent_kafka.serialization import MessageField, SerializationContext

from delivery.config import settings
from fanout.local import kafka_server as local_kafka
from fanout.reconcile import proving
from tests.e2e.conftest import assert_eventually, metric
from tests.support.schema_registry import SchemaRegistry

pytestmark = pytest.mark.e2e

FIELDS = [{"name": name, "type": "string"} for name in ("id", "tenant_id", "type")]
ORDER = {"type": "record", "name": "Order", "fields": FIELDS}
NEWER = {"type": "record", "name": "Order", "fields": [*FIELDS, {"name": "amount", "type": "int", "default": 0}]}


def framed(registry, schema, *ids):
    """Return events as Confluent's serializer writes them. It registers the schema."""
    with schema_registry.SchemaRegistryClient({"url": registry.url}) as client:
        serialize = avro.AvroSerializer(client, json.dumps(schema))
        context = SerializationContext("framed", MessageField.VALUE)
        return [serialize({"id": event_id, "tenant_id": "t1", "type": "order"}, context) for event_id in ids]


@pytest.mark.slow
def test_topics_wait_for_their_schemas_and_no_other_topic_does(platform):
    """One job, one story, because its start takes most of the time.

    1. The registry is away at the start: the topic waits in both lanes, and the other topic is delivered.
    2. It is back: the topic is delivered.
    3. It is away for a newer schema, and the job is killed meanwhile: the next job delivers everything.
    4. The account holds: `fanout reconcile` decodes these records too.
    """
    platform.register([{}])
    platform.register(
        [{"id": "b", "endpoint": "ep2"}],
        endpoints=("ep2",),
        mode="batch",
        batch={"max_events": 100, "max_wait_s": 1},
    )
    port = local_kafka.free_port()

    def collected():
        bodies = [orjson.loads(request.body) for request in list(platform.received) if request.path == "/ep2"]
        return {event["id"] for batch in bodies for event in batch}

    def of_lane(name, lane):
        return metric(port, f'{name}{{lane="{lane}"}}')

    def paused():
        return [of_lane("paused_topics", lane) for lane in ("direct", "batch")]

    def all_have(*ids):
        return lambda _: set(platform.accepted()) >= set(ids) and collected() >= set(ids)

    with SchemaRegistry() as registry:
        topic = f"{platform.name}.framed"
        formats = {"topic_pattern": topic.replace(".", "[.]"), "url": registry.url, "wait_s": 1}
        first, newer = framed(registry, ORDER, "a1", "a2", "a3"), framed(registry, NEWER, "b1", "b2")
        registry.stop()
        platform.publish_raw("framed", *first)
        platform.publish(2)
        overrides = {"schema_registry": formats, "metrics": {"port": port, "lag_interval_s": 0.5}}
        job = platform.start(**overrides)
        assert_eventually(collected, all_have("e0", "e1"))
        assert_eventually(paused, lambda counts: counts == [1, 1])
        waiting = f'lag_records{{lane="direct",topic="{topic}"}}'
        assert_eventually(lambda: metric(port, waiting), lambda lag: lag == len(first))
        assert metric(port, 'ready{lane="direct"}') == 1
        platform.publish(1, first=2)
        assert_eventually(collected, all_have("e2"))
        assert not set(platform.accepted()) & {"a1", "a2", "a3"}

        registry.start()
        assert_eventually(collected, all_have("a1", "a2", "a3"))
        assert_eventually(paused, lambda counts: counts == [0, 0])

        registry.stop()
        platform.publish_raw("framed", *newer)
        platform.publish(1, first=3)
        assert_eventually(paused, lambda counts: counts == [1, 1])
        assert_eventually(collected, all_have("e3"))
        platform.kill(job)
        registry.start()
        job = platform.start(**overrides)
        assert_eventually(collected, all_have("b1", "b2"))
        assert platform.stop(job) == 0
        assert not platform.ledger().rejected
        account = proving.reconcile(settings.Settings.model_validate(platform.settings(**overrides)), settle_s=0).account
    assert account.holds, [finding.text() for finding in account.findings.kept]
    assert [(lane.counts.due, lane.counts.delivered, lane.counts.lost) for lane in account.lanes.values()] == [(9, 9, 0)] * 2


@pytest.mark.slow
def test_a_real_time_topic_waits_for_its_schema_and_no_other_does(platform):
    """Regression: the whole real-time lane waited for the schema registry.

    1. The registry is away when a job starts that has committed before. One topic waits, the other is delivered, also by
       later queries: batches last 5 s, and each ends without a commit.
    2. The registry is back: the topic is delivered, and nothing is repeated.
    3. The account holds.
    """
    platform.register([{}])
    platform.create_topic("framed")
    port = local_kafka.free_port()
    with SchemaRegistry() as registry:
        formats = {"topic_pattern": f"{platform.name}[.]framed", "url": registry.url, "wait_s": 1}
        overrides = {
            "source": {"topic_pattern": f"{platform.name}[.].+", "realtime_pattern": f"{platform.name}[.](order|framed)"},
            "spark": {"checkpoint": str(platform.folder / "checkpoint"), "driver_memory": "1g", "master": "local[6,4]"},
            "realtime": {"batch_s": 5},
            "schema_registry": formats,
            "metrics": {"port": port, "lag_interval_s": 0.5},
        }
        waiting = framed(registry, ORDER, "a1", "a2", "a3")

        def accepted(*ids):
            assert_eventually(lambda: set(platform.accepted()), lambda got: got >= set(ids))

        def log_has(text, times):
            assert_eventually(lambda: platform.log(whole=True).count(text), lambda count: count >= times)

        job = platform.start("--lanes", "realtime", **overrides)
        platform.publish(2)
        accepted("e0", "e1")
        log_has("micro-batch committed", 1)
        registry.stop()
        platform.publish_raw("framed", *waiting)
        restarts = "restarts its query, to read its paused partitions again"
        for number in (2, 3, 4):
            platform.publish(1, first=number)
            accepted(f"e{number}")
            log_has(restarts, number)
        assert_eventually(lambda: metric(port, 'paused_topics{lane="realtime"}'), lambda count: count == 1)
        assert not set(platform.accepted()) & {"a1", "a2", "a3"}

        registry.start()
        accepted("a1", "a2", "a3")
        assert_eventually(lambda: metric(port, 'paused_topics{lane="realtime"}'), lambda count: count == 0)
        platform.publish(1, first=5)
        accepted("e5")
        assert platform.stop(job) == 0
        got = platform.accepted()
        assert len(got) == len(set(got))
        assert not platform.ledger().rejected
        account = proving.reconcile(settings.Settings.model_validate(platform.settings(**overrides)), settle_s=0).account
    assert account.holds, [finding.text() for finding in account.findings.kept]
