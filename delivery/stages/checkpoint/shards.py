"""Find a key for each shard of a lane's state, and refuse a number of shards that the checkpoint does not have.

Runs on the driver. A shard holds the waiting items of some endpoints, and is one key of Spark's state. Spark assigns a key to a
partition by the key's hash. With the keys 0 to 15 some shards would share a partition, and other partitions would stay empty.
"""

from __future__ import annotations

import functools
import json

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that every PySpark codebase uses

from delivery import errors

PARTITIONS = "spark.sql.shuffle.partitions"
"""Spark's setting for the number of partitions of a lane's state: one for each shard."""


def session(spark: SparkSession, shards: int) -> SparkSession:
    """Return a session for a lane whose state has this many shards: the session sets the number of shuffle partitions."""
    own = spark.newSession()
    own.conf.set(PARTITIONS, str(shards))
    return own


@functools.cache  # lanes with equally many shards have the same keys
def keys(spark: SparkSession, shards: int) -> tuple[int, ...]:
    """Return one key for each of `shards` shards. Spark's hash assigns each key to a partition of its own."""
    found: dict[int, int] = {}
    tried = 0
    while len(found) < shards:
        numbers = spark.range(tried, tried + 32 * shards, 1, 1).select(F.col("id").cast("int").alias("key"))
        for key, partition in numbers.select("key", F.pmod(F.hash("key"), F.lit(shards))).collect():
            found.setdefault(partition, key)
        tried += 32 * shards
    return tuple(found[partition] for partition in range(shards))


def require_kept(spark: SparkSession, checkpoint: str, lane: str, shards: int) -> None:
    """Raise SettingsError if the state in a lane's checkpoint has another number of shards than `shards`.

    Spark would keep the old number of partitions. Events that wait in the old shards would never be delivered, because no task
    would read those shards.
    """
    context = spark.sparkContext
    folder = f"{checkpoint.rstrip('/')}/{lane}/offsets"
    path = context._jvm.org.apache.hadoop.fs.Path(folder)  # type: ignore[union-attr]  # noqa: SLF001  # no public way
    files = path.getFileSystem(context._jsc.hadoopConfiguration())  # noqa: SLF001
    if not files.exists(path):
        return
    logs = spark.read.text(folder).where(F.col("value").startswith('{"batchWatermarkMs"')).limit(1).collect()
    began_with = json.loads(logs[0][0])["conf"].get(PARTITIONS) if logs else None
    if began_with is not None and int(began_with) != shards:
        raise errors.SettingsError(
            f"setting {lane}.shards is {shards}, but the state in {checkpoint}/{lane} has {began_with} shards: set "
            f"{lane}.shards to {began_with}. The job did not start. The number of shards of a checkpoint cannot change"
        )
