"""Compare Spark's task slots with those that the real-time lane needs.

Runs on the driver. In real time, a task reads one Kafka partition and occupies a slot as long as the query's batch lasts. So
the lane needs one slot for each partition.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from pyspark import SparkContext

from delivery.config import kafka_clients, settings
from delivery.stages.kafka import source

TIMEOUT_S = 10.0
"""Seconds for one request to Kafka."""
_LOCAL = re.compile(r"local\[(\d+)")


def partitions(config: settings.Settings) -> dict[str, int] | None:
    """Return the number of partitions of each of the lane's topics; None when Kafka does not answer."""
    try:
        found = AdminClient(kafka_clients.for_librdkafka(config.kafka)).list_topics(timeout=TIMEOUT_S).topics
    except KafkaException:
        return None
    return {name: len(topic.partitions) for name, topic in found.items() if source.is_realtime(config.source, name)}


def available(context: SparkContext) -> int:
    """Return the number of tasks that Spark can run at once: its slots."""
    conf = context.getConf()
    local = _LOCAL.match(context.master or "")
    executors, cores = (int(conf.get(f"spark.executor.{name}", "0") or 0) for name in ("instances", "cores"))
    slots = int(local[1]) if local else executors * cores
    return (slots or context.defaultParallelism) // int(conf.get("spark.task.cpus", "1"))


def refusal(found: Mapping[str, int], slots: int, for_others: int) -> str | None:
    """Return a message for the operator if `slots` are too few; None: they suffice.

    `found` has the number of partitions of each topic. `for_others` slots are reserved for the other lanes.
    """
    wanted = sum(found.values())
    needed = wanted + for_others
    if needed <= slots:
        return None
    others = f", and {for_others} for the other lanes" if for_others else ""
    return (
        f"the real-time lane needs {needed} slots and Spark has {slots}: one for each of {wanted} partitions of "
        f"{len(found)} topics{others}. Set spark.master to local[{needed},4] or have as many executor cores, or let "
        "source.realtime_pattern match fewer topics"
    )
