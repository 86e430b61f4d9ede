"""Read the real-time lane's topics. For the real-time trigger, add a filler row after each record.

Runs on the driver. Spark closes a full Arrow batch only after it has asked the source for the next row. Under the real-time
trigger the source blocks until the next row exists, so each record would wait for the following record. The filler follows at
once and closes the record's batch; then the filler waits instead (docs/adr/0040).
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that every PySpark codebase uses

from delivery.config import settings
from delivery.stages.kafka import topic_source
from delivery.webhooks.lanes.realtime_lane import Place

BUFFER_SIZE = "spark.sql.execution.pandas.udf.buffer.size"
RECORDS_OF_A_PARTITION = 1 << 33
"""In each task, `monotonically_increasing_id` starts at a multiple of this number."""
RECORD_BY_RECORD: Mapping[str, str] = {
    # A filler and a record. The batch goes to Python as soon as the record's own filler follows.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2",
    # Applies to this session; `spark.buffer.size` would apply to the whole application. Workers with another size have a daemon
    # of their own.
    BUFFER_SIZE: "256",
    # Generated code reads the next row before it passes the last one on.
    "spark.sql.codegen.wholeStage": "false",
    # Spark's list of allowed operators has neither `mapInArrow` nor the `noop` sink.
    "spark.sql.streaming.realTimeMode.allowlistCheck": "false",
    # Spark refuses `monotonically_increasing_id` in streams, because its numbers restart in each batch. The lane wants that
    # restart: it marks a task's first record.
    "spark.sql.streaming.unsupportedOperationCheck": "false",
}
"""Settings of Spark for the session in which the lane delivers record by record."""
CATCHING_UP: Mapping[str, str] = {
    # One less than the size of other lanes, so this session's workers have a daemon of their own. A stopped task of this lane
    # waits until Spark ends its process. In a shared process, tasks and background attempts of other lanes would end too.
    BUFFER_SIZE: "65535",
}
"""Settings of Spark for the session in which the lane delivers in micro-batches."""


def sessions(spark: SparkSession) -> tuple[SparkSession, SparkSession]:
    """Return two new sessions: one with the Spark settings RECORD_BY_RECORD, and one with the Spark settings CATCHING_UP."""
    return _session(spark, RECORD_BY_RECORD), _session(spark, CATCHING_UP)


def _session(spark: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    own = spark.newSession()
    for name, value in conf.items():
        own.conf.set(name, value)
    return own


def read_one_by_one(spark: SparkSession, config: settings.Settings, start_offsets: Mapping[Place, int]) -> DataFrame:
    """Return the stream of records at or after `start_offsets` for the real-time trigger, each followed by a filler.

    A filler is a row of nulls. One more filler comes before the first record of each task, so that each Arrow batch of two rows
    ends with a record. If a batch began with a record, the record's filler would fill it, and Spark would send it only after
    the next record came.
    """
    records = _from(topic_source.read_realtime(spark, config.kafka, config.source, at_most=None), start_offsets)
    record = F.struct(*records.columns)
    filler = F.struct(*(F.lit(None).cast(kind).alias(name) for name, kind in records.dtypes))
    is_first = F.monotonically_increasing_id() % RECORDS_OF_A_PARTITION == 0
    rows = F.when(is_first, F.array(filler, record, filler)).otherwise(F.array(record, filler))
    return records.select(F.explode(rows).alias("row")).select("row.*")


def read_in_micro_batches(spark: SparkSession, config: settings.Settings, start_offsets: Mapping[Place, int]) -> DataFrame:
    """Return the stream of records at or after `start_offsets` for micro-batches of at most `spark.parallelism` tasks.

    Used while the lane catches up or has too few slots, and with `--once`.
    """
    records = topic_source.read_realtime(spark, config.kafka, config.source, at_most=config.source.max_events_per_batch)
    return _from(records, start_offsets).coalesce(config.spark.parallelism)


def _from(records: DataFrame, start_offsets: Mapping[Place, int]) -> DataFrame:
    """Leave out the records before `start_offsets`. A partition without a start offset keeps all records.

    The filter runs in the JVM, because there may be many such records: all that were written in some minutes.
    """
    if not start_offsets:
        return records
    known = F.create_map(
        *(F.lit(value) for (topic, number), at in start_offsets.items() for value in (f"{topic}/{number}", at))
    )
    floor = F.element_at(known, F.concat_ws("/", "topic", "partition"))
    return records.where(F.col("offset") >= F.coalesce(floor, F.lit(0)))
