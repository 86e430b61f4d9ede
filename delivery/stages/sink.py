"""Write rows of results to their topics.

Runs on the driver. Guarantee: at least once. If a topic cannot be written, the micro-batch fails and is not committed, so
that no failure is forgotten.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from delivery import kafka_options, settings

MAX_REQUEST_BYTES = 16 * 1024 * 1024
"""A batch of an endpoint's largest `max_bytes` (10 MiB) that is postponed is one record of the retries topic, as it must leave
with the same events again."""
MAX_BLOCK_MS = "20000"
"""How long a write waits for a missing topic or an absent broker before the micro-batch fails and is run again."""


def write(results: DataFrame, kafka: settings.Kafka) -> None:
    """Write all of `results`, each row to the topic that it names."""
    options = {
        "kafka.max.block.ms": MAX_BLOCK_MS,
        "kafka.max.request.size": str(MAX_REQUEST_BYTES),
        "kafka.compression.type": "lz4",
        **kafka_options.for_spark(kafka),
    }
    results.select("topic", "key", "value").write.format("kafka").options(**options).save()
