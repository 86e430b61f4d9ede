"""Find the offset at which each partition of the real-time lane continues when a query starts.

Runs on the driver. Spark writes the offsets of a real-time batch at the end of the batch, minutes after its start. So the lane
writes offset receipts to the attempts topic. A receipt says that all results of a run of records are in their topics. The
receipts record the lane's progress since Spark's last commit. Some deliveries of records without a receipt have ended too. This
module reads these deliveries from the result topics, so that the lane does not repeat them.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from delivery import errors
from delivery.config import kafka_clients, plan_builder, settings
from delivery.registry_model import DeliveryMode
from delivery.stages.checkpoint import offset_log, recovery
from delivery.stages.kafka import completed_reader, topic_source
from delivery.webhooks.lanes.realtime_lane import Place
from delivery.webhooks.results import log_records
from delivery.webhooks.results.completed_work import Key
from delivery.webhooks.results.log_records import OffsetReceipt

log = logging.getLogger(__name__)

TRIES = 3
"""Number of tries to read the receipts. A broker may refuse once after a change of leaders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptBounds:
    """The number of seconds between tries to read the receipts, and the time limits of each try."""

    retry_s: float = 1.0
    """Seconds between two tries."""
    reads: completed_reader.ReadBounds = completed_reader.BOUNDS
    """The time limits of one try."""


BOUNDS = ReceiptBounds()
"""The values that the job uses."""


class HandledRange(NamedTuple):
    """The first and the last of the offsets that are handled according to one receipt."""

    first: int
    last: int


class StartOffsets(NamedTuple):
    """The point from which a query of the real-time lane delivers."""

    next_offsets: dict[Place, int]
    """The first offset to deliver, by partition: of each partition that has a position in the checkpoint, and of each other
    partition that has receipts and exists."""
    ended: frozenset[Key]
    """Deliveries that have ended already, although their records are at or after `next_offsets`. They must not be repeated."""
    is_first: bool = False
    """True if the lane has never read a record, and Spark has not chosen its first offsets."""
    since_ms: int = 0
    """A time before all receipts of records at or after `next_offsets`, in milliseconds since the epoch; 0 if `is_first` is
    True."""


def handled_up_to(at: int, runs: Iterable[HandledRange]) -> int:
    """Return the first offset from `at` on that no range contains. Ranges behind a gap do not count."""
    for run in sorted(runs):
        if run.first > at:
            break
        at = max(at, run.last + 1)
    return at


def read(
    spark: SparkSession,
    config: settings.Settings,
    checkpoint: str,
    of: Callable[[str], bool] | None = None,
    *,
    bounds: ReceiptBounds = BOUNDS,
) -> StartOffsets:
    """Return the start of the next query: the committed positions, moved forward by the receipts since the last commit.

    Reading begins with the receipts since the start of the last committed micro-batch, because only this time is in the
    checkpoint's files. So receipts of committed records are read again, and change nothing. If `fanout accept-loss` sets a
    position back, it also sets this time to the present, so that no earlier receipt moves the position forward.

    A lane that has never read a record starts at the positions of `begin_at`, if there are any.

    Receipts count for the lane's topics; with `of`, for the topics that `of` accepts. A partition with receipts but without a
    committed position starts at the first offset that Kafka still has, moved forward by its receipts (`_starts_of_newer`
    names exceptions). A partition with neither a position nor receipts is left out. `checkpoint` is the lane's folder.

    Raise KafkaUnavailable if the receipts cannot be read in TRIES tries, or if a first offset cannot be read. Also raise it if
    the attempts topic is not read to its end, and no message comes for `ReadBounds.read_s` seconds. Without receipts, records
    since the last commit would be sent again.
    """
    begun = _Checkpoint(spark, checkpoint)
    if begun.since_ms is None:
        return StartOffsets(dict(begun.positions), frozenset(), is_first=True)
    asked = completed_reader.CompletedWork(
        client=kafka_clients.for_librdkafka(config.kafka), topics=plan_builder.plan_of(config).topics, since_ms=begun.since_ms
    )
    is_read = of or functools.partial(topic_source.is_realtime, config.source)
    runs, newest_ms = _receipts_patiently(asked, is_read, bounds)
    next_offsets = {place: handled_up_to(at, runs.get(place, ())) for place, at in begun.positions.items()}
    moved = sum(next_offsets.values()) - sum(begun.positions.values())
    are_recreated = False
    if newer := {place: found for place, found in runs.items() if place not in begun.positions}:
        starts, are_recreated = _starts_of_newer(asked, newer, bounds.reads)
        next_offsets |= starts
    # Results beyond the receipts were written in the last seconds of the previous query. SLACK_MS covers these seconds.
    since_ms = max(begun.since_ms, newest_ms)
    rows = completed_reader.CompletedWork(client=asked.client, topics=asked.topics, since_ms=since_ms)
    # Results of a deleted topic name the offsets of the new topic with its name, whose records were not delivered.
    ended = frozenset[Key]() if are_recreated else completed_reader.read(rows, bounds.reads)
    log.info(
        "lane realtime leaves out %d offsets after its last commit: its offset receipts say that the records at these offsets "
        "were handled",
        moved,
    )
    return StartOffsets(next_offsets, ended, since_ms=since_ms)


def save(spark: SparkSession, checkpoint: str, start: StartOffsets) -> None:
    """Commit `next_offsets` in the lane's checkpoint, if the lane has committed a micro-batch before.

    Called between two queries while partitions wait for a schema. Spark commits nothing then, because a task with a paused
    partition does not end. Without this call each restart would read all receipts since the pause began. An interrupted
    micro-batch is made empty, because its records below `next_offsets` are handled, and the next micro-batch reads the others.
    """
    _, committed = recovery.newest(spark, checkpoint)
    if committed >= 0:
        positions = by_topic(start.next_offsets)
        offset_log.Checkpoint(spark, checkpoint).move(positions, lambda _: positions, began_ms=start.since_ms)


def _receipts_patiently(
    asked: completed_reader.CompletedWork, of: Callable[[str], bool], bounds: ReceiptBounds
) -> tuple[dict[Place, list[HandledRange]], int]:
    """Return the result of `_receipts`. Raise KafkaUnavailable if `_receipts` fails TRIES times, or once with that error."""
    why = ""
    for _ in range(TRIES):
        try:
            return _receipts(asked, of, bounds.reads)
        except errors.KafkaUnavailable as exc:  # it has waited long enough
            why = str(exc)
            break
        except Exception as exc:  # noqa: BLE001  # any failure means: no receipts
            log.warning(
                "the offset receipts of lane realtime could not be read (%s): the lane waits, and makes %d tries, %.0f s "
                "apart. Check that Kafka answers, and that the job may read the attempts topic",
                exc, TRIES, bounds.retry_s,
            )  # fmt: skip
            why = str(exc)
            time.sleep(bounds.retry_s)
    raise errors.KafkaUnavailable(
        f"the offset receipts of lane realtime could not be read ({why}). The lane does not start without them, because it "
        "would repeat deliveries. Check that Kafka answers, and that the job may read the attempts topic"
    )


def _receipts(
    asked: completed_reader.CompletedWork, of: Callable[[str], bool], bounds: completed_reader.ReadBounds
) -> tuple[dict[Place, list[HandledRange]], int]:
    """Return, by partition, the ranges of offsets that receipts name as handled, and the time of the newest such receipt.

    Only receipts for topics that `of` accepts count. The time is in milliseconds since the epoch; 0: none was found. Raise
    KafkaException if a part of the attempts topic cannot be read, and KafkaUnavailable if no further message comes for
    `bounds.read_s` seconds. A lane that has rested for days reads for minutes. Meanwhile the lane logs every `bounds.read_s`
    seconds how many records it has read.
    """
    import confluent_kafka  # noqa: PLC0415  # only the real-time lane needs it here

    runs: dict[Place, list[HandledRange]] = {}
    newest_ms = 0
    logged_at = time.monotonic()
    config = {**completed_reader.CONSUMER, **asked.client}
    since_ms, until = asked.since_ms - completed_reader.SLACK_MS, time.monotonic() + bounds.read_s
    with contextlib.closing(confluent_kafka.Consumer(config)) as consumer:
        attempts = asked.topics.attempts
        found = completed_reader.messages(consumer, attempts, since_ms, until=until, is_patient=True, bounds=bounds)
        for count, message in enumerate(found, start=1):
            if (error := message.error()) is not None:
                raise confluent_kafka.KafkaException(error)
            if time.monotonic() - logged_at > bounds.read_s:
                logged_at = time.monotonic()
                log.info("lane realtime reads its offset receipts since its last commit: %d attempts records so far", count)
            receipt = log_records.receipt_of(message.value() or b"")
            if receipt is not None and _add_receipt(receipt, of, runs):
                newest_ms = max(newest_ms, message.timestamp()[1])
    return runs, newest_ms


def _add_receipt(receipt: OffsetReceipt, of: Callable[[str], bool], runs: dict[Place, list[HandledRange]]) -> bool:
    # Unconfirmed: of the direct lane, before the topic moved. Results of the run may be missing.
    if receipt.lane != DeliveryMode.DIRECT or receipt.unconfirmed or not of(receipt.topic):
        return False
    found = runs.setdefault((receipt.topic, receipt.partition), [])
    found.append(HandledRange(receipt.first_offset, receipt.last_offset))
    return True


def _starts_of_newer(
    asked: completed_reader.CompletedWork, runs: Mapping[Place, list[HandledRange]], bounds: completed_reader.ReadBounds
) -> tuple[dict[Place, int], bool]:
    """Return the first offset to deliver in each partition in `runs`, and True if case 1 holds for one of them.

    No commit names these partitions: they are new.

    Spark starts a new partition at the first record that Kafka still has. The receipts in `runs` move this start forward, with
    two exceptions:

    1. The receipts name later offsets than Kafka has: the topic was deleted and created again, or Kafka has lost records. The
       partition starts at its first record, and a warning is logged.
    2. The topic or the partition does not exist: the partition is left out.

    If a topic was created again and has reached the offsets in the receipts, case 1 is not recognised, and the receipts count.
    Raise KafkaUnavailable if Kafka does not answer, or refuses.
    """
    import confluent_kafka  # noqa: PLC0415  # only the real-time lane needs it here

    from delivery.stages.kafka import offset_requests  # noqa: PLC0415  # it imports confluent_kafka

    # Uncommitted, as Spark reads: of an open transaction, too, records may have been delivered.
    own = {"group.id": "fanout-journal", "isolation.level": "read_uncommitted"}
    starts: dict[Place, int] = {}
    are_recreated = False
    with contextlib.closing(confluent_kafka.Consumer({**own, **asked.client})) as consumer:
        for (topic, number), found in runs.items():
            try:
                if number not in offset_requests.partitions_of(consumer, topic, timeout_s=bounds.asked_s):
                    continue
                first, end = offset_requests.first_and_end(consumer, topic, number, timeout_s=bounds.asked_s)
            except confluent_kafka.KafkaException as exc:
                raise errors.KafkaUnavailable(
                    f"the first offset of partition {number} of topic {topic} could not be read ({exc}). Lane realtime does "
                    "not start without it, because it would repeat deliveries. Check that Kafka answers, and that the job may "
                    "read the topic"
                ) from exc
            if max(run.last for run in found) < end:
                starts[topic, number] = handled_up_to(first, found)
                continue
            starts[topic, number] = first
            are_recreated = True
            log.warning(
                "%s:%d ends before the offsets of its receipts, so its topic was deleted and created again, or its newest "
                "records were lost. Lane realtime delivers it from its first record. If nobody meant this, find out who "
                "deleted the topic, or which broker lost records", topic, number,
            )  # fmt: skip
    return starts, are_recreated


INITIAL_POSITIONS_FILE = "realtime-begins.json"
"""File beside the lane's folder. It holds the offsets at which the lane begins if it has committed nothing yet."""


def begin_at(spark: SparkSession, checkpoint: str, positions: offset_log.Positions) -> None:
    """Make a real-time lane that has committed nothing begin at `positions`. `checkpoint` is the lane's folder.

    Write `positions` to INITIAL_POSITIONS_FILE, then delete the folder. If a query has started, the folder holds the query's
    first offsets, and Spark would read every other topic from its first record. The deletion also loses the time of that start,
    so no later call of `read` finds the receipts since then. The caller must already have moved `positions` forward by these
    receipts. After a crash before the deletion, the next start reads the file and the folder, and takes the larger offset of
    each partition.
    """
    offset_log.write(spark, f"{checkpoint.rpartition('/')[0]}/{INITIAL_POSITIONS_FILE}", json.dumps(positions))
    offset_log.delete(spark, checkpoint)


class LaneProgress(NamedTuple):
    """The lane's progress according to its checkpoint alone, without receipts."""

    positions: offset_log.Positions
    """The committed positions. Before the first commit: the positions at which the lane begins."""
    has_begun: bool
    """True if the lane has read a record, so it may have written receipts."""


def load_progress(spark: SparkSession, checkpoint: str) -> LaneProgress:
    """Return the progress of the lane whose folder is `checkpoint`."""
    begun = _Checkpoint(spark, checkpoint)
    return LaneProgress(by_topic(begun.positions), begun.since_ms is not None)


def by_topic(places: Mapping[Place, int]) -> offset_log.Positions:
    """Return offsets by topic and partition in the format of Spark's offset log."""
    positions: offset_log.Positions = {}
    for (topic, number), at in places.items():
        positions.setdefault(topic, {})[str(number)] = at
    return positions


class _Checkpoint:
    """Read the committed positions in the lane's checkpoint folder, and a time before all receipts of later records.

    Before the first commit, `positions` has the positions at which the lane begins.
    """

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  # PySpark has no public way to the JVM
        self._hadoop = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
        self._folder = folder
        beside = f"../{INITIAL_POSITIONS_FILE}"
        initial = _positions(self._lines(beside)[-1]) if self._written_ms(beside) is not None else {}
        self.positions: Mapping[Place, int] = initial
        self.since_ms: int | None = None
        """Time when the last committed micro-batch started, or of the lane's first start if there is no commit. Milliseconds
        since the epoch; None: the lane has never read a record."""
        _, committed = recovery.newest(spark, folder)
        if committed >= 0:
            # Not the modification time of commits/N: a copy of the folder sets it to the time of the copy.
            *_, metadata, offsets = self._lines(f"offsets/{committed}")
            self.since_ms = _started_ms(metadata)
            self.positions = _positions(offsets)
        # Not "metadata": Spark writes that at once, but these first offsets only after Kafka has answered.
        elif (began_ms := self._written_ms("sources/0/0")) is not None:
            self.since_ms = began_ms
            first = _positions(self._lines("sources/0/0")[-1])
            self.positions = {place: max(first.get(place, 0), initial.get(place, 0)) for place in first | initial}

    def _written_ms(self, name: str) -> int | None:
        path = self._jvm.org.apache.hadoop.fs.Path(f"{self._folder}/{name}")
        files = path.getFileSystem(self._hadoop)
        return int(files.getFileStatus(path).getModificationTime()) if files.exists(path) else None

    def _lines(self, name: str) -> list[str]:
        path = self._jvm.org.apache.hadoop.fs.Path(f"{self._folder}/{name}")
        stream = path.getFileSystem(self._hadoop).open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")).splitlines()
        finally:
            stream.close()


def _positions(line: str) -> dict[Place, int]:
    found: dict[str, dict[str, int]] = json.loads(line[line.index("{") :])
    return {(topic, int(number)): at for topic, numbers in found.items() for number, at in numbers.items()}


def _started_ms(metadata: str) -> int:
    started: dict[str, Any] = json.loads(metadata)
    return int(started["batchTimestampMs"])
