"""The same records through the partition function in a real Spark, with the registry broadcast and looked up."""

import threading

import orjson
import pytest

from delivery.config import plan_builder, settings
from delivery.stages.lanes import telemetry
from delivery.stages.registry import registry_sources
from delivery.stages.tasks import task_context
from delivery.webhooks.routing import registries
from fanout.local import stack
from subscriptions_db.following import lookup_source
from subscriptions_db.following.postgres_registry import PostgresRegistry
from subscriptions_db.manifest import manifest
from subscriptions_db.postgres import connect
from subscriptions_db.registration import apply
from subscriptions_db.secrets import keyring
from tests.support import assignments, sinks

pytestmark = [
    pytest.mark.spark,
    # py4j leaves its sockets for the garbage collector to close.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
DOCUMENT = {
    "tenants": [{"id": "t0"}, {"id": "t1", "status": "suspended"}, {"id": "t2"}],
    "customers": [{"id": "c1"}],
    "endpoints": [{"id": "ep1", "customer": "c1", "url": "https://example.com/"}],
    "subscriptions": [
        # Paused, so that what is due shows without a request.
        {"id": "all", "endpoint": "ep1", "event_type": "order.*", "everything": True, "status": "paused"},
        {"id": "one", "endpoint": "ep1", "event_type": "order.created", "tenants": ["t2"], "status": "paused"},
    ],
}


def test_the_same_records_end_the_same_way_through_both_sources(spark, database, tmp_path):
    config = settings.Settings(database={"url": database}, keys={"ring": {"k1": stack.new_key()}})
    with connect.connect(config.database) as connection:
        wanted = manifest.check(DOCUMENT, plan_builder.guard_of(config.delivery))
        apply.apply(connection, wanted, keyring.KeyRing.from_settings(config.keys))
    events = [b'{"tenant_id":"t%d"}' % tenant for tenant in range(4)]
    observer = telemetry.Telemetry(spark.sparkContext, "direct", config.logs).observer
    stop = threading.Event()
    written, folder = {}, sinks.Folder(tmp_path)
    tools = task_context.Tools(plan=plan_builder.plan_of(config), observe=observer, sink=folder)
    for name, kind in (("broadcast", registries.BroadcastSource), ("lookup", lookup_source.LookupSource)):
        chosen = config.model_copy(update={"snapshot": settings.SnapshotSettings(source=name, lookup_ttl_s=0.5)})
        source = registry_sources.source(chosen, PostgresRegistry(chosen), stop).source(spark.sparkContext, "direct")
        assert isinstance(source, kind)
        rows = folder.take(assignments.made(spark, 200, tools, source, *events))
        values = [orjson.loads(row.value) for row in rows]
        written[name] = {
            "skipped": sorted(
                (entry["subscription_id"], entry["event_id"])
                for value in values
                for entry in value.get("entries", ())
                if entry["kind"] == "skipped"
            ),
            "rejected": sum(row.topic == config.delivery.rejected_topic for row in rows),
            "revisions": {value["revision"] for value in values if value.get("kind") == "receipt"},
        }
    stop.set()
    assert source.ttl_s == 0.5
    assert written["lookup"] == written["broadcast"]
    assert (len(written["lookup"]["skipped"]), written["lookup"]["rejected"]) == (50 + 2 * 50, 2 * 50)
