"""Read event topics from Kafka.

Runs on the driver. Guarantee relied upon: Spark writes the offsets of a micro-batch before it runs, and reads exactly those
again after a crash.
"""

from __future__ import annotations

import re

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that every PySpark codebase uses

from delivery import kafka_options, settings

FETCH_WAIT_MS = "10"
"""The Java client's default of 500 shows up as 600 ms spikes of latency in micro-batches (docs/architecture.md)."""


def read(spark: SparkSession, kafka: settings.Kafka, source: settings.Source, *, beside: str = "") -> DataFrame:
    """Return the stream of records on all topics that match, those created later included, and on the topic `beside`."""
    options = {
        "kafka.fetch.max.wait.ms": FETCH_WAIT_MS,
        **kafka_options.for_spark(kafka),
        "subscribePattern": f"(?:{source.topic_pattern})|{re.escape(beside)}" if beside else source.topic_pattern,
        "startingOffsets": source.starting_offsets,
        "maxOffsetsPerTrigger": str(source.max_events_per_batch),
        "includeHeaders": "true",
        # Records that are gone before they were read stop the job loudly: they are lost events.
        "failOnDataLoss": "true",
    }
    records = spark.readStream.format("kafka").options(**options).load()
    return records.select(
        "topic",
        "partition",
        "offset",
        F.unix_millis("timestamp").alias("appended_at_ms"),
        "value",
        # As text: of an array, Spark's Arrow writer sums up all offsets again for every row that it adds, which was 40 % of the
        # JVM's work (docs/benchmarks/). Most records have no headers.
        F.to_json("headers").alias("headers"),
    )
