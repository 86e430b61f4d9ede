"""Read the real-time lane's topics, and give each record a filler behind it.

Runs on the driver. Spark closes an Arrow batch of one record when it has asked the source for the next one. Under the real-time
trigger the source waits for that, so each record would wait for the one after it. The filler follows at once, closes the
record's batch, and is what waits (docs/adr/0040).
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that every PySpark codebase uses

from delivery.config import settings
from delivery.stages.kafka import source
from delivery.stages.tasks import deliver_events
from delivery.webhooks.lanes.realtime_lane import Place

RECORD_BY_RECORD: Mapping[str, str] = {
    # Each record is a batch, and leaves for Python at once. Both are of this lane's session only.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
    # In place of `spark.buffer.size`, which is the whole application's. Workers with another size have a daemon of their own.
    "spark.sql.execution.pandas.udf.buffer.size": "256",
    # Generated code reads ahead of what it has passed on.
    "spark.sql.codegen.wholeStage": "false",
    # The list has no `mapInArrow`, and not the sink that discards.
    "spark.sql.streaming.realTimeMode.allowlistCheck": "false",
}


def session(spark: SparkSession) -> SparkSession:
    """Return a session of the lane's own, for records that are delivered one by one."""
    own = spark.newSession()
    for name, value in RECORD_BY_RECORD.items():
        own.conf.set(name, value)
    return own


def one_by_one(spark: SparkSession, config: settings.Settings, floors: Mapping[Place, int]) -> DataFrame:
    """Return the records for the real-time trigger, each with a filler of nulls behind it."""
    records = _behind(source.read_realtime(spark, config.kafka, config.source, at_most=None), floors)
    record = F.struct(*deliver_events.COLUMNS)
    filler = F.struct(*(F.lit(None).cast(kind).alias(name) for name, kind in records.dtypes))
    return records.select(F.explode(F.array(record, filler)).alias("row")).select("row.*")


def in_micro_batches(spark: SparkSession, config: settings.Settings, floors: Mapping[Place, int]) -> DataFrame:
    """Return the records for micro-batches, as the direct lane has them."""
    records = source.read_realtime(spark, config.kafka, config.source, at_most=config.source.max_events_per_batch)
    return _behind(records, floors).coalesce(config.spark.parallelism)


def _behind(records: DataFrame, floors: Mapping[Place, int]) -> DataFrame:
    """Leave out what is handled: `floors` are the first offsets that are not. In the JVM, for it may be minutes of records."""
    if not floors:
        return records
    known = F.create_map(*(F.lit(value) for (topic, number), at in floors.items() for value in (f"{topic}/{number}", at)))
    floor = F.element_at(known, F.concat_ws("/", "topic", "partition"))
    return records.where(F.col("offset") >= F.coalesce(floor, F.lit(0)))
