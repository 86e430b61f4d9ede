"""The same records through the partition function in a real Spark, with the registry broadcast and looked up."""

import threading

import orjson
import pytest

from delivery import plan, settings
from delivery.stages import deliver, lookup, snapshot, tasks, telemetry
from fanout.local import stack
from subscriptions_db import apply, connect, keyring, manifest, migrate
from tests import sinks

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
        migrate.migrate(connection)
        wanted = manifest.check(DOCUMENT, plan.guard_of(config.delivery))
        apply.apply(connection, wanted, keyring.KeyRing.from_settings(config.keys))
    records = spark.range(0, 200, 1, 4).selectExpr(
        "'events.order.created' AS topic",
        "CAST(id % 7 AS INT) AS partition",
        "id AS offset",
        "id AS appended_at_ms",
        "CAST('{\"tenant_id\":\"t' || (id % 4) || '\"}' AS BINARY) AS value",
        "CAST(NULL AS STRING) AS headers",
    )
    observer = telemetry.Telemetry(spark.sparkContext, "direct", config.logs).observer
    stop = threading.Event()
    written, folder = {}, sinks.Folder(tmp_path)
    tools = tasks.Tools(plan=plan.of(config), observe=observer, sink=folder)
    for kind in (snapshot.Broadcasts, lookup.Lookups):
        source = kind(config, stop=stop).source(spark.sparkContext, "direct")
        rows = folder.take(deliver.deliver(records, tools, source, 2))
        values = [orjson.loads(row.value) for row in rows]
        written[kind] = {
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
    assert written[lookup.Lookups] == written[snapshot.Broadcasts]
    assert (len(written[lookup.Lookups]["skipped"]), written[lookup.Lookups]["rejected"]) == (50 + 2 * 50, 2 * 50)
