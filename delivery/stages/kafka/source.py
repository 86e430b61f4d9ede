"""Read event topics, and the retries topic, from Kafka.

Runs on the driver. Guarantee relied upon: Spark writes the offsets of a micro-batch before it runs, and reads exactly those
again after a crash.
"""

from __future__ import annotations

import re

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that every PySpark codebase uses

from delivery.config import kafka_clients, settings, topic_pattern

FETCH_WAIT_MS = "0"
"""A broker answers at once. Spark asks for records that are there, and then for the partition's first and last offsets, behind
the consumer's request for records that are not there yet: each partition would take so long each time (docs/adr/0026)."""

ASK_TIMEOUT_MS, ASK_TIMES = "20000", "10"
"""So long an answer is waited for, and so often asked. Of a broker that was killed Java's client for administration, by which
Spark asks how far topics go, may wait for ever (KAFKA-20673), though others have taken its place: after its minute by default
the lane went on. No shorter: in the tasks the same time has to last until others have, 9 s by Kafka's default. Together as long
as by the defaults, 3 minutes."""


REALTIME_FETCH_WAIT_MS = "5"
"""Milliseconds for which a broker keeps a request of the real-time lane that finds no record. The lane's source asks again by
itself, one consumer for each partition: with 0 it would ask all the time, with more a batch would end later."""


def read(
    spark: SparkSession,
    kafka: settings.Kafka,
    source: settings.Source,
    *,
    at_most: int,
    beside: str = "",
    without_realtime: bool = False,
) -> DataFrame:
    """Return the stream of records on all topics that match, those created later included, and on the topic `beside`.

    A micro-batch has no more than `at_most` of them. `without_realtime` leaves out the topics of the real-time lane.
    """
    wanted = whole(source.topic_pattern, *([re.escape(beside)] if beside else []))
    if without_realtime and source.realtime_pattern:
        wanted = f"^(?!(?:{source.realtime_pattern})$)(?:{wanted})"
    return _events(spark, kafka, {"subscribePattern": wanted, "maxOffsetsPerTrigger": str(at_most)}, source)


def read_realtime(spark: SparkSession, kafka: settings.Kafka, source: settings.Source, *, at_most: int | None) -> DataFrame:
    """Return the stream of records on the topics of the real-time lane. With `at_most`, for micro-batches."""
    options = {"subscribePattern": f"^(?={whole(source.topic_pattern)})(?:{source.realtime_pattern})$"}
    if at_most is None:
        options["kafka.fetch.max.wait.ms"] = REALTIME_FETCH_WAIT_MS
    else:
        options["maxOffsetsPerTrigger"] = str(at_most)
    return _events(spark, kafka, options, source)


def is_realtime(source: settings.Source, topic: str) -> bool:
    """Tell whether a topic is one of the real-time lane's."""
    return (
        bool(source.realtime_pattern)
        and topic_pattern.matches(source.realtime_pattern, topic)
        and topic_pattern.matches(source.topic_pattern, topic)
    )


def _events(spark: SparkSession, kafka: settings.Kafka, options: dict[str, str], source: settings.Source) -> DataFrame:
    options = {"startingOffsets": source.starting_offsets, "includeHeaders": "true", **options}
    return _stream(spark, kafka, options).select(
        "topic",
        "partition",
        "offset",
        F.unix_millis("timestamp").alias("appended_at_ms"),
        "value",
        # As text: of an array, Spark's Arrow writer sums up all offsets again for every row that it adds, which was 40 % of the
        # JVM's work (docs/benchmarks/). Most records have no headers.
        F.to_json("headers").alias("headers"),
    )


def whole(*patterns: str) -> str:
    """Return the pattern of what is wholly one of these. Spark also takes a topic of whose name a pattern matches a part."""
    return f"^(?:{'|'.join(f'(?:{pattern})' for pattern in patterns)})$"


def read_retries(spark: SparkSession, config: settings.Settings, *, executors: int = 1) -> DataFrame:
    """Return the stream of records on the retries topic, from its first one, and on the topic of the retry lane's ticks.

    A micro-batch has as many records as one of events may have for so many `executors`, and no more bytes than 4 KiB for each
    record (retries.retry_records): 80 MB by default, of which a task has the share of one shard in memory, and 64 MiB of Arrow
    (spark.sql.execution.arrow.maxBytesPerBatch). Of each partition one record may come besides, of up to 10 MiB.
    """
    options = {
        "subscribe": f"{config.delivery.retries_topic},{config.retry.ticks_topic}",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(config.source.max_events_per_batch * executors),
    }
    return _stream(spark, config.kafka, options).select("topic", "partition", "offset", "key", "value")


def _stream(spark: SparkSession, kafka: settings.Kafka, options: dict[str, str]) -> DataFrame:
    always = {
        "kafka.fetch.max.wait.ms": FETCH_WAIT_MS,
        "kafka.request.timeout.ms": ASK_TIMEOUT_MS,  # which the next may not be below
        "kafka.default.api.timeout.ms": ASK_TIMEOUT_MS,
        "fetchOffset.numRetries": ASK_TIMES,
        **kafka_clients.for_spark(kafka),
        # Records that are gone before they were read stop the job loudly: they are lost events.
        "failOnDataLoss": "true",
    }
    return spark.readStream.format("kafka").options(**{**always, **options}).load()
