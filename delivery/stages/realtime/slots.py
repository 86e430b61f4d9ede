"""Find the topics of the real-time lane, and check that Spark has a task slot for each of their partitions.

Runs on the driver. A task of the real-time query reads one Kafka partition, and keeps its slot until Spark ends the query's
long batch, after minutes. So the lane needs one slot for each partition.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from confluent_kafka import KafkaException
from pyspark import SparkContext

from delivery import errors
from delivery.config import kafka_clients, settings
from delivery.stages.kafka import topic_source

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
"""Seconds for one request to Kafka."""
_LOCAL = re.compile(r"local\[(\d+)")


def partitions(config: settings.Settings) -> dict[str, int] | None:
    """Return topic → number of partitions for the lane's topics.

    None: Kafka does not answer or refuses, or the Kafka client cannot be created.
    """
    try:
        found = kafka_clients.admin(config.kafka).list_topics(timeout=TIMEOUT_S).topics
    except (KafkaException, errors.SettingsError):  # a file of certificates is unreadable while it is replaced
        return None
    return {name: len(topic.partitions) for name, topic in found.items() if topic_source.is_realtime(config.source, name)}


def available(context: SparkContext) -> int:
    """Return the number of tasks that Spark can run at once, by its settings: its slots.

    Slow, because `getConf` copies all settings of Spark through py4j.
    """
    conf = context.getConf()
    local = _LOCAL.match(context.master or "")
    executors, cores = (int(conf.get(f"spark.executor.{name}", "0") or 0) for name in ("instances", "cores"))
    cpus = int(conf.get("spark.task.cpus", "1"))
    slots = int(local[1]) // cpus if local else executors * (cores // cpus)
    return slots or context.defaultParallelism // cpus


def refusal(found: Mapping[str, int], slots: int, for_others: int) -> str | None:
    """Return a message for the operator if `slots` are too few; None: they suffice.

    `found` has the number of partitions of each topic. `for_others` is the number of Spark's slots that are reserved for the
    other lanes.
    """
    wanted = sum(found.values())
    needed = wanted + for_others
    if needed <= slots:
        return None
    others = f", and {for_others} for the other lanes" if for_others else ""
    # The chart gives the other lanes half of the cores, unless config.spark.parallelism is set.
    cores, advice = (2 * wanted, ", and leave out config.spark.parallelism") if for_others else (wanted, "")
    return (
        f"the real-time lane needs {needed} slots: one for each of {wanted} partitions of {len(found)} topics{others}. Spark "
        f"has {slots}. On one machine, set spark.master to local[{needed},4]. With executors, have {needed} "
        f"cores. In the chart, give drivers.NAME.executors at least {cores} cores in all at the start{advice}. Or let "
        "source.realtime_pattern match fewer topics"
    )


class LaneTopics:
    """The topics of the real-time lane, each with its number of partitions.

    `for_others` is the number of Spark's slots that are reserved for the other lanes.
    """

    def __init__(self, config: settings.Settings, context: SparkContext, *, for_others: int) -> None:
        self._config, self._context, self._for_others = config, context, for_others
        self.partitions: dict[str, int] = {}
        """The number of partitions of each topic, as Kafka last answered. A new answer is a new dictionary."""
        self.are_known = False
        """True once Kafka has answered. Until then `partitions` is empty."""
        self._slots = 0
        """The number of Spark's slots at the last call of `find`."""

    @property
    def total(self) -> int:
        """Return the number of partitions of all topics."""
        return sum(self.partitions.values())

    def find(self, *, is_first: bool = False) -> None:
        """Ask Kafka for the topics and partitions and, if there are any, Spark for its slots.

        If the topics or partitions have changed, check that Spark has a slot for each partition.
        If there are too few slots and `is_first` is True, raise SettingsError. If `is_first` is False, log an error: the lane
        then delivers in micro-batches. If Kafka does not answer, `partitions` stays as it is, and nothing is checked.
        """
        found = partitions(self._config)
        if found:  # without topics, `find` runs each second, so the slow look-up of slots is skipped
            self._slots = available(self._context)
        self.are_known |= found is not None
        if found is None or found == self.partitions:
            return
        self.partitions = found
        why = self._refusal()
        if why is not None and is_first:
            raise errors.SettingsError(f"{why}. The job did not start")
        if why is not None:
            log.error("lane realtime lacks slots for its partitions, and delivers in micro-batches until it has them: %s", why)

    def have_slots(self) -> bool:
        """Return True if Spark has a slot for each partition, besides the slots of other lanes.

        The numbers are those of the last call of `find` to which Kafka answered.
        """
        return self._refusal() is None

    def _refusal(self) -> str | None:
        return refusal(self.partitions, self._slots, self._for_others)
