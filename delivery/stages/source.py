"""Read event topics, and the retries topic, from Kafka.

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

EVENTS_IN_A_RETRY = 20
"""What a micro-batch's bound in events is divided by in the retries topic, where a record holds one event or some hundred: by
default it has 1,000 records. Spark can bound it in records only, so its bytes follow from theirs:

* Parcels of deliveries: 64 KiB a record (rows.MAX_POSTPONED_BYTES), 64 MB in all. An event may alone be larger, up to
  `source.max_event_bytes`: 1,000 of the largest are 260 MB.
* A report of a turn: 1.3 KiB for each parcel that failed, 330 KiB when all of 256 did. An endpoint of which all fail gets turns
  of one.
* Batches: one a record, because its `webhook-id` is made of all its events; up to its endpoint's `max_bytes`, 1 MiB by default
  and 10 MiB at most. 1,000 of them are 1 GB, or 10. No number here bounds that: while the lane keeps up, it reads in a
  micro-batch what the batch lane has postponed in about one of its own, of `max_events_per_batch` events. Where it has stood
  still and endpoints take large batches, that setting has to be lower for it.

Of all this a task has the share of one shard in memory, and 64 MiB of Arrow (spark.sql.execution.arrow.maxBytesPerBatch)."""


def read(spark: SparkSession, kafka: settings.Kafka, source: settings.Source, *, beside: str = "") -> DataFrame:
    """Return the stream of records on all topics that match, those created later included, and on the topic `beside`."""
    options = {
        "subscribePattern": whole(source.topic_pattern, *([re.escape(beside)] if beside else [])),
        "startingOffsets": source.starting_offsets,
        "maxOffsetsPerTrigger": str(source.max_events_per_batch),
        "includeHeaders": "true",
    }
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


def read_retries(spark: SparkSession, config: settings.Settings) -> DataFrame:
    """Return the stream of records on the retries topic, from its first one, and on the topic of the retry lane's ticks."""
    options = {
        "subscribe": f"{config.delivery.retries_topic},{config.retry.ticks_topic}",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(max_records_of_retries(config.source)),
    }
    return _stream(spark, config.kafka, options).select("topic", "partition", "offset", "key", "value")


def max_records_of_retries(source: settings.Source) -> int:
    """Return how many records of the retries topic a micro-batch has at most."""
    return max(1, source.max_events_per_batch // EVENTS_IN_A_RETRY)


def _stream(spark: SparkSession, kafka: settings.Kafka, options: dict[str, str]) -> DataFrame:
    always = {
        "kafka.fetch.max.wait.ms": FETCH_WAIT_MS,
        **kafka_options.for_spark(kafka),
        # Records that are gone before they were read stop the job loudly: they are lost events.
        "failOnDataLoss": "true",
    }
    return spark.readStream.format("kafka").options(**always, **options).load()
