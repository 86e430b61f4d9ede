"""Assign each sampled stack to a component of the platform, and add up the samples of each component. Pure.

A stack belongs to the component of its innermost frame that is in the table. So a hash table's method counts for Kafka's
client where that client calls it. A stack without such a frame belongs to `other`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

JVM = {
    "org/apache/kafka/": "Kafka's client",
    "org/apache/commons/pool2/": "pool of Kafka consumers",
    "org/apache/spark/sql/kafka010/": "Spark's Kafka source",
    "org/apache/arrow/": "Arrow",
    "org/apache/spark/sql/execution/arrow/": "Arrow",
    "org/apache/spark/sql/execution/python/": "exchange with Python workers",
    "org/apache/spark/api/python/": "exchange with Python workers",
    "org/apache/spark/sql/execution/streaming/state": "state store",
    "org/apache/spark/sql/execution/streaming": "micro-batches",
    "org/apache/spark/sql/catalyst/": "plans and expressions",
    "org/apache/spark/sql/": "plans and expressions",
    "org/apache/spark/unsafe/": "plans and expressions",
    "org/apache/spark/scheduler/": "scheduler",
    "org/apache/spark/executor/": "scheduler",
    "org/apache/spark/shuffle/": "shuffle",
    "org/apache/spark/": "Spark, other",
    "org/apache/hadoop/": "checkpoint files",
    "com/globalmentor/": "checkpoint files",
    "com/fasterxml/": "JSON",
    "org/json4s/": "JSON",
    "py4j/": "py4j",
    "org/apache/logging/": "logs",
    "org/eclipse/jetty": "Spark's web server",
    "org/sparkproject/jetty": "Spark's web server",
    "CompileBroker::": "compiler",
    "GangWorker::": "garbage collector",
    "WorkerThread::": "garbage collector",
    "GCTaskThread::": "garbage collector",
    "VMThread::": "garbage collector and other work of the VM thread",
}
"""Part of a frame's name → component. The first part that the name contains counts."""

PYTHON = {
    "delivery/webhooks/http/": "HTTP client",
    "delivery/webhooks/sending/signing": "signature",
    "delivery/webhooks/sending/": "sender",
    "delivery/webhooks/formats/": "payload",
    "delivery/webhooks/events/": "parsing",
    "delivery/webhooks/filters/": "routing",
    "delivery/webhooks/routing/": "routing",
    "delivery/webhooks/dispatching/": "dispatcher",
    "delivery/webhooks/scheduling/": "dispatcher",
    "delivery/webhooks/policy/": "dispatcher",
    "delivery/webhooks/clocks/": "clocks",
    "delivery/webhooks/results/": "log of attempts",
    "delivery/webhooks/batching/": "batching",
    "delivery/webhooks/retries/": "retries",
    "delivery/webhooks/leases/": "retries",
    "delivery/webhooks/state/": "state",
    "delivery/webhooks/lanes/": "lanes",
    "delivery/stages/tasks/": "tasks",
    "delivery/stages/": "lanes' queries",
    "aiohttp/": "HTTP client",
    "aiohappyeyeballs/": "HTTP client",
    "confluent_kafka/": "log of attempts",
    "pyarrow/": "Arrow",
    "pandas/": "Arrow",
    "py4j/": "py4j",
    "pyspark/": "PySpark",
    "prometheus_client/": "metrics",
    "delivery/observability/": "metrics",
    "asyncio/": "event loop",
    "selectors": "event loop",
    "uvloop": "event loop",
    "threading.py": "event loop",
}
"""Part of a frame's path → component. The first part that the path contains counts. uvloop is C code: its work counts for the
Python frame that called it, in threading.py."""
OTHER = "other"


def shares(stacks: Iterable[str], table: Mapping[str, str]) -> dict[str, float]:
    """Return each component's share of all samples, the largest first.

    A line of `stacks` has the frames from the outermost to the innermost, separated by `;`, and the number of samples.
    """
    samples: Counter[str] = Counter()
    for line in stacks:
        frames, _, count = line.rstrip().rpartition(" ")
        samples[_component(frames.split(";"), table)] += int(count)
    every = samples.total()
    return {name: round(count / every, 3) for name, count in samples.most_common()}


def _component(frames: list[str], table: Mapping[str, str]) -> str:
    for frame in reversed(frames):
        for part, component in table.items():
            if part in frame:
                return component
    return OTHER
