"""Measure how long micro-batches take with the checkpoint in a folder and on an S3-compatible store, in turns in one session.

    python -m pytest -s tests/benchmarks/checkpoint_on_a_store.py

A query without state and one with state (RocksDB, two partitions), 20 micro-batches each, without deliveries: what differs is
what Spark does for the checkpoint. Prints medians in milliseconds and the machine's load.
"""

import os
import statistics

import pytest
from pyspark.sql import functions as F  # noqa: N812

from delivery.stages.checkpoint import object_store, shards
from tests.e2e.conftest import assert_eventually
from tests.k8s import s3
from tests.k8s.test_object_store import spark, store  # noqa: F401  # fixtures

BATCHES = 20
PARTS = ("triggerExecution", "walCommit", "commitOffsets", "addBatch")
pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def medians(session, checkpoint, *, has_state):
    for name, value in object_store.session_settings(checkpoint).items():
        if name == object_store.FILE_MANAGER:
            session.conf.set(name, value)
    rows = session.readStream.format("rate").option("rowsPerSecond", 20).load()
    if has_state:
        rows = rows.groupBy(F.col("value") % 10).count()
    writer = rows.writeStream.outputMode("update" if has_state else "append").option("checkpointLocation", checkpoint)
    query = writer.foreachBatch(lambda batch, _: batch.write.format("noop").mode("append").save()).start()

    def done():
        return [progress for progress in query.recentProgress if progress["numInputRows"]]

    assert_eventually(lambda: len(done()), lambda count: count >= BATCHES - 2, within_s=300)
    taken = [progress["durationMs"] for progress in done()[2:]]  # the first ones compile
    query.stop()
    return {part: statistics.median(durations[part] for durations in taken) for part in PARTS}


def test_checkpoint_on_a_store_costs_this(spark, store, tmp_path):  # noqa: F811, ARG001
    for turn in range(2):
        for has_state in (False, True):
            for place in (str(tmp_path), f"s3a://{s3.BUCKET}/bench"):
                checkpoint = f"{place}/{turn}-{has_state}"
                found = medians(shards.session(spark, 2), checkpoint, has_state=has_state)
                print("state" if has_state else "plain", place[:3], found, "load", round(os.getloadavg()[0]), flush=True)
