"""Plan or read the topics of events, and the retries topic, as streaming frames.

Runs on the driver; `fanout accept-loss` uses only `is_realtime`. Guarantee relied upon: Spark writes the offsets of a
micro-batch before the micro-batch runs. After a crash Spark plans exactly the same offsets again. In the direct and batch
lanes, the tasks read the records at these offsets. In the other lanes, Spark reads them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that every PySpark codebase uses

from delivery.config import kafka_clients, settings, topic_pattern

FETCH_WAIT_MS = "0"
"""Milliseconds for which a broker keeps a fetch that finds no record: with 0 the broker answers at once. Spark fetches the
existing records and then asks for the partition's first and last offsets. That request waits behind the consumer's next fetch.
A longer time would be added to each micro-batch, for each partition (docs/adr/0026)."""

ASK_TIMEOUT_MS, ASK_TIMES = "20000", "10"
"""Milliseconds to wait for one answer of Kafka, and the number of tries. Spark asks for the end offsets by Java's admin client.
The client may wait for a killed broker although other brokers have taken its place (KAFKA-20673). With the default of one
minute the lane continued only after that minute. The timeout cannot be much shorter: in tasks it must cover a change of
leaders, 9 s by Kafka's default. All tries together take as long as with the defaults, about 3 minutes."""


PRUNED_SOURCE: Mapping[str, str] = {
    # This check refuses `limit` on a stream, and the union of a stream with a static frame.
    "spark.sql.streaming.unsupportedOperationCheck": "false",
}
"""Settings of Spark that a session needs for a plan with `task_numbers`."""
REALTIME_FETCH_WAIT_MS = "50"
"""Milliseconds for which a broker keeps a fetch of the real-time lane that finds no record. A record that comes ends the
fetch at once. Each partition has a consumer, which fetches again at once: with 5 ms, an idle consumer fetched up to 200
times a second. A task may end later by this time."""


def read(
    spark: SparkSession,
    kafka: settings.KafkaSettings,
    source: settings.SourceSettings,
    *,
    at_most: int,
    beside: str = "",
    without_realtime: bool = False,
    without: Collection[str] = (),
) -> DataFrame:
    """Return the stream of records on the topics of `source.topic_pattern`, and on the topic `beside`, if one is named.

    Spark plans and commits the stream's offsets. The tasks read the records (`record_reader`), so a lane must not use the rows
    of this frame: the direct lane ignores the rows, and the batch lane removes them by `task_numbers`. Topics that are created
    later are included. A micro-batch has at most about `at_most` records: Spark takes at least one record of each partition
    with records. `without_realtime` leaves out the topics of the real-time lane. `without` names further topics to leave out.
    """
    wanted = whole(source.topic_pattern, *([re.escape(beside)] if beside else []))
    if without_realtime and source.realtime_pattern:
        wanted = f"^(?!(?:{source.realtime_pattern})$)(?:{wanted})"
    if without:
        wanted = f"^(?!(?:{'|'.join(map(re.escape, sorted(without)))})$)(?:{wanted})"
    options = {"subscribePattern": wanted, "maxOffsetsPerTrigger": str(at_most)}
    return _stream(spark, kafka, {"startingOffsets": source.starting_offsets, **options})


def task_numbers(offsets: DataFrame, tasks: int) -> DataFrame:
    """Return a frame with one row for each task: its number, from 0 to `tasks` - 1, in the only column.

    The frame has no records. Spark still plans and commits the offsets of the stream `offsets`. Queries with state need such a
    frame, because a plan made in `foreachBatch` cannot use the query's state. The session needs the settings PRUNED_SOURCE.
    """
    # Spark plans the offsets first. Then its optimizer removes a stream with `limit(0)`, so Spark's source reads nothing. With
    # `where("false")` Spark would keep the stream, and read all records.
    none = offsets.limit(0).select(F.lit(0).cast("long").alias("id"))
    return none.union(offsets.sparkSession.range(0, tasks, 1, tasks))


def read_realtime(
    spark: SparkSession, kafka: settings.KafkaSettings, source: settings.SourceSettings, *, at_most: int | None
) -> DataFrame:
    """Return the stream of records on the topics of the real-time lane.

    A micro-batch has at most about `at_most` records, as in `read`. None: the stream is for the real-time trigger, which has no
    such limit.
    """
    options = {"subscribePattern": f"^(?={whole(source.topic_pattern)})(?:{source.realtime_pattern})$"}
    if at_most is None:
        options["kafka.fetch.max.wait.ms"] = REALTIME_FETCH_WAIT_MS
    else:
        options["maxOffsetsPerTrigger"] = str(at_most)
    options |= {"startingOffsets": source.starting_offsets, "includeHeaders": "true"}
    return _stream(spark, kafka, options).select(
        "topic",
        "partition",
        "offset",
        F.unix_millis("timestamp").alias("appended_at_ms"),
        "value",
        # As text, because for an array Spark's Arrow writer adds up all offsets again for every row. That took 40 % of the
        # JVM's CPU (docs/benchmarks/). Most records have no headers.
        F.to_json("headers").alias("headers"),
        *(["key"] if source.batch_records == "taken_apart" else []),  # the records of a batch's events get the batch's key
    )


def is_realtime(source: settings.SourceSettings, topic: str) -> bool:
    """Return True if a topic belongs to the real-time lane: `realtime_pattern` and `topic_pattern` of `source` match it."""
    return (
        bool(source.realtime_pattern)
        and topic_pattern.matches(source.realtime_pattern, topic)
        and topic_pattern.matches(source.topic_pattern, topic)
    )


def whole(*patterns: str) -> str:
    """Return a pattern that matches a topic name if one of `patterns` matches the whole name.

    Spark would also accept a name of which only a part matches.
    """
    return f"^(?:{'|'.join(f'(?:{pattern})' for pattern in patterns)})$"


def read_retries(spark: SparkSession, config: settings.Settings, *, executors: int = 1) -> DataFrame:
    """Return the stream of records on the retries topic and on the retry lane's wake-up topic.

    A new checkpoint begins at the first record of each topic.

    A micro-batch has at most about `source.max_events_per_batch` times `executors` records. Behind a large record come padding
    records without a value, one for every full 4 KiB (retry_records.records). So the records have at most about 4 KiB on
    average, and by default a micro-batch has at most about 80 MB for each executor. Each partition may add one record of up to
    10 MiB to the micro-batch. A task holds in memory the micro-batch's records for one shard (a key of the lane's state), and
    64 MiB of Arrow (spark.sql.execution.arrow.maxBytesPerBatch).
    """
    options = {
        "subscribe": f"{config.delivery.retries_topic},{config.retry.ticks_topic}",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(config.source.max_events_per_batch * executors),
    }
    appended_at_ms = F.unix_millis("timestamp").alias("appended_at_ms")
    return _stream(spark, config.kafka, options).select("topic", "partition", "offset", appended_at_ms, "key", "value")


def _stream(spark: SparkSession, kafka: settings.KafkaSettings, options: dict[str, str]) -> DataFrame:
    always = {
        "kafka.fetch.max.wait.ms": FETCH_WAIT_MS,
        "kafka.request.timeout.ms": ASK_TIMEOUT_MS,  # Kafka refuses a smaller value in the next line
        "kafka.default.api.timeout.ms": ASK_TIMEOUT_MS,
        "fetchOffset.numRetries": ASK_TIMES,
        **kafka_clients.for_spark(kafka),
        # Records that expired before they were read are lost events, so they fail the query. In the direct and batch lanes,
        # `record_reader` finds expired records, and `offset_ranges` finds partitions that are gone or end too early.
        "failOnDataLoss": "true",
    }
    return spark.readStream.format("kafka").options(**{**always, **options}).load()
