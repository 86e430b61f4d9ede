"""Find from where each partition of the real-time lane goes on when its query starts, and what has ended beyond that.

Runs on the driver. Spark writes the offsets of a batch at its end, which is minutes after its begin. So the lane's own receipts
say what was handled since the last commit: a receipt is written when all that its records brought is in its topics.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import time
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, NamedTuple

import orjson
from pyspark.sql import SparkSession

from delivery import errors
from delivery.config import kafka_clients, settings, worker_plans
from delivery.model import DeliveryMode
from delivery.stages.checkpoint import completed_reader, losses, recovery
from delivery.stages.kafka import source
from delivery.webhooks.lanes.realtime_lane import Place
from delivery.webhooks.results.completed_work import Key

log = logging.getLogger(__name__)

TRIES, TRY_AGAIN_S = 3, 1.0
"""How often the receipts are asked for, and the seconds between. A broker that has just changed may refuse once."""


class Run(NamedTuple):
    """Offsets that a receipt says are handled."""

    first: int
    last: int


class Begin(NamedTuple):
    """From where a query goes on."""

    next_offsets: dict[Place, int]
    """Nothing below is to be read."""
    ended: frozenset[Key]
    is_first: bool = False
    """Whether the lane has never begun."""


def beyond(at: int, runs: Iterable[Run]) -> int:
    """Return up to where all is handled: as far as runs follow on each other from `at`."""
    for run in sorted(runs):
        if run.first > at:
            break
        at = max(at, run.last + 1)
    return at


def read(spark: SparkSession, config: settings.Settings, checkpoint: str, of: Callable[[str], bool] | None = None) -> Begin:
    """Return from where to go on, in the lane's topics or in those `of` which it is asked.

    Raises KafkaUnavailable where the receipts cannot be read: without them all since the last commit would be sent again.
    """
    begun = _Checkpoint(spark, checkpoint)
    if begun.since_ms is None:
        return Begin(dict(begun.positions), frozenset(), is_first=True)
    asked = completed_reader.Journal(
        client=kafka_clients.for_librdkafka(config.kafka), topics=worker_plans.of(config).topics, since_ms=begun.since_ms
    )
    runs, newest_ms = _receipts_patiently(asked, of or functools.partial(source.is_realtime, config.source))
    places = begun.positions.keys() | runs.keys()
    next_offsets = {place: beyond(begun.positions.get(place, 0), runs.get(place, ())) for place in places}
    # Rows beyond the receipts were written in the last seconds, which the slack of a journal covers.
    since_ms = max(begun.since_ms, newest_ms)
    ended = completed_reader.read(completed_reader.Journal(client=asked.client, topics=asked.topics, since_ms=since_ms))
    log.info("lane realtime skips the records of %d receipts written since its last commit", sum(map(len, runs.values())))
    return Begin(next_offsets, ended)


def _receipts_patiently(asked: completed_reader.Journal, of: Callable[[str], bool]) -> tuple[dict[Place, list[Run]], int]:
    """Return what `_receipts` does; raise KafkaUnavailable."""
    why = ""
    for _ in range(TRIES):
        try:
            return _receipts(asked, of)
        except Exception as exc:  # noqa: BLE001  # as delivery.stages.checkpoint.completed_reader
            log.warning("the receipts could not be read back: %s", exc)
            why = str(exc)
            time.sleep(TRY_AGAIN_S)
    raise errors.KafkaUnavailable(f"the receipts of lane realtime could not be read back: {why}")


def _receipts(asked: completed_reader.Journal, of: Callable[[str], bool]) -> tuple[dict[Place, list[Run]], int]:
    """Return what receipts say of the lane's topics, and when a row was written last, or 0."""
    import confluent_kafka  # noqa: PLC0415  # as delivery.stages.checkpoint.completed_reader

    runs: dict[Place, list[Run]] = {}
    newest_ms = 0
    config = {"group.id": "fanout-journal", "enable.auto.commit": False, "enable.partition.eof": True, **asked.client}
    since_ms, until = asked.since_ms - completed_reader.SLACK_MS, time.monotonic() + completed_reader.READ_S
    with contextlib.closing(confluent_kafka.Consumer(config)) as consumer:
        for message in completed_reader.messages(consumer, asked.topics.attempts, since_ms, until=until):
            value = message.value() or b""
            if value.startswith(b'{"kind":"receipt"') and _take(orjson.loads(value), of, runs):
                newest_ms = max(newest_ms, message.timestamp()[1])
    return runs, newest_ms


def _take(receipt: dict[str, Any], of: Callable[[str], bool], runs: dict[Place, list[Run]]) -> bool:
    if receipt["lane"] != DeliveryMode.DIRECT or not of(receipt["topic"]):
        return False
    found = runs.setdefault((receipt["topic"], receipt["partition"]), [])
    found.append(Run(receipt["first_offset"], receipt["last_offset"]))
    return True


REMEMBERED = "realtime-begins.json"
"""The file beside the lane's folder that holds from where the lane begins topics which the direct lane had before."""


def remember(spark: SparkSession, checkpoint: str, positions: losses.Positions) -> None:
    """Keep from where topics are read by a lane that has committed nothing yet."""
    losses.write(spark, f"{checkpoint.rpartition('/')[0]}/{REMEMBERED}", json.dumps(positions))


def remembered(spark: SparkSession, checkpoint: str) -> losses.Positions:
    """Return what was kept."""
    return by_topic(_Checkpoint(spark, checkpoint).remembered)


def by_topic(places: Mapping[Place, int], topics: Container[str] | None = None) -> losses.Positions:
    """Return positions as Spark writes them, of these topics."""
    positions: losses.Positions = {}
    for (topic, number), at in places.items():
        if topics is None or topic in topics:
            positions.setdefault(topic, {})[str(number)] = at
    return positions


class _Checkpoint:
    """What the lane's folder says: up to where it has committed, and when that was."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  # no public way, as below
        self._hadoop = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
        self._folder = folder
        beside = f"../{REMEMBERED}"
        self.remembered = _positions(self._last_line(beside)) if self._written_ms(beside) is not None else {}
        self.positions: Mapping[Place, int] = self.remembered
        self.since_ms: int | None = None
        """None: the lane has never begun."""
        _, committed = recovery.newest(spark, folder)
        if committed >= 0:
            self.since_ms = self._written_ms(f"commits/{committed}")
            self.positions = _positions(self._last_line(f"offsets/{committed}"))
        elif (began_ms := self._written_ms("metadata")) is not None:
            self.since_ms = began_ms
            if self._written_ms("sources/0/0") is not None:
                first = _positions(self._last_line("sources/0/0"))
                self.positions = {place: max(at, self.remembered.get(place, 0)) for place, at in first.items()}

    def _written_ms(self, name: str) -> int | None:
        path = self._jvm.org.apache.hadoop.fs.Path(f"{self._folder}/{name}")
        files = path.getFileSystem(self._hadoop)
        return int(files.getFileStatus(path).getModificationTime()) if files.exists(path) else None

    def _last_line(self, name: str) -> str:
        path = self._jvm.org.apache.hadoop.fs.Path(f"{self._folder}/{name}")
        stream = path.getFileSystem(self._hadoop).open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")).splitlines()[-1]
        finally:
            stream.close()


def _positions(line: str) -> dict[Place, int]:
    found: dict[str, dict[str, int]] = json.loads(line[line.index("{") :])
    return {(topic, int(number)): at for topic, numbers in found.items() for number, at in numbers.items()}
