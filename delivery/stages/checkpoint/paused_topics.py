"""Leave topics out of a lane while a schema of their records cannot be read. Later, continue at their first waiting records.

Runs on the driver and in `fanout accept-loss`. A task pauses the partition of a record whose schema cannot be read
(delivery.webhooks.routing.intake), and handles all other partitions. Spark commits the offsets of all partitions, the paused
partition included. So the lane keeps the offsets of the waiting records in a file of its checkpoint folder. Between two queries
the lane changes Spark's offset log (docs/adr/0043):

1. `note` saves the first waiting offsets, before the micro-batch is committed.
2. After the commit the query ends, and the topics' positions move from the offset log into the file. The next query does not
   read these topics. All other topics are delivered.
3. When the schema registry answers, and when the lane ends or starts, the positions move back into the offset log.

After a crash between two writes the next start finds the file, and ends with the same positions.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from pyspark.sql import SparkSession

from delivery.observability import health, metrics
from delivery.stages.checkpoint import offset_log, recovery
from delivery.stages.checkpoint.offset_log import Positions

log = logging.getLogger(__name__)

FILE = "paused-topics.json"
"""Name of the file with the paused topics, in a lane's checkpoint folder."""
ASK_S, MAX_ASK_S = 3.0, 60.0
"""Seconds between two requests to the schema registry while topics are paused: ASK_S at first, MAX_ASK_S at most. A pause that
begins less than STEADY_S after the end of the last pause doubles this time. The reason is that each pause delays the other
topics: by `schema_registry.wait_s`, and by the start of a new query."""
STEADY_S = 120.0
"""Seconds without a pause after which the seconds between two requests are ASK_S again."""
POLL_S = 0.1
"""Seconds between two checks by `await_registry` for the end of the pause or of the job."""


class PausedTopic(NamedTuple):
    """The positions of a paused topic. JSON in the file: a list of the two fields."""

    since: int
    """Number of the micro-batch that paused the topic. Once this micro-batch is committed, `offsets` are valid. If the
    micro-batch runs again instead, `offsets` are void."""
    offsets: dict[str, int]
    """The next offset of each partition, by the partition's number as a decimal text. At first only paused partitions have an
    entry. `moved_out` adds the other partitions of the topic."""


Topics = Mapping[str, PausedTopic]
"""Paused topics by name."""


def noted(topics: Topics, batch_id: int, found: Mapping[tuple[str, int], int]) -> dict[str, PausedTopic]:
    """Return the paused topics after a run of the micro-batch `batch_id`, which paused the partitions `found`. Pure.

    `found` maps (topic, partition) to the first waiting offset. Topics that an earlier run of the same micro-batch has paused
    are no longer paused, unless `found` has them.
    """
    now = {name: topic for name, topic in topics.items() if topic.since != batch_id}
    for (name, number), offset in found.items():
        topic = now.get(name, PausedTopic(batch_id, {}))
        now[name] = topic._replace(offsets=topic.offsets | {str(number): offset})
    return now


def committed(topics: Topics, newest: int) -> dict[str, PausedTopic]:
    """Return those of `topics` that a committed micro-batch paused. Pure.

    `newest` is the number of the last committed micro-batch. The offsets of the other topics are void (PausedTopic.since).
    """
    return {name: topic for name, topic in topics.items() if topic.since <= newest}


def moved_out(topics: Topics, positions: Positions) -> dict[str, PausedTopic]:
    """Return the paused topics with an offset for each partition that the lane has read. Pure.

    An offset that `topics` already has for a partition stays. Any other partition gets the lane's committed position.
    """
    return {name: topic._replace(offsets=positions.get(name, {}) | topic.offsets) for name, topic in topics.items()}


def moved_back(topics: Topics, positions: Positions) -> Positions:
    """Return the lane's `positions`, with the offset of each partition of a paused topic in place of its position. Pure."""
    return positions | {name: positions.get(name, {}) | topic.offsets for name, topic in topics.items()}


def restore(spark: SparkSession, root: str, lanes: Iterable[str]) -> None:
    """Move the positions of all paused topics back into the offset logs of `lanes`. `root` is the checkpoint of the job.

    Called before the lanes run, and before a command changes their positions.
    """
    for lane in lanes:
        _File(spark, f"{root.rstrip('/')}/{lane}").restore()


def restored(spark: SparkSession, folder: str, positions: Positions) -> Positions:
    """Return the positions that the lane in `folder`, now at `positions`, would have after `restore`. Write nothing."""
    return moved_back(_File(spark, folder).valid() or {}, positions)


class PausedTopics:
    """Keep the paused topics of one lane. Called on the lane's thread.

    `is_answering` returns True if the schema registry answers. It is called on a thread of its own while topics are left out,
    at first every `ask_s` seconds (ASK_S).
    """

    def __init__(
        self,
        spark: SparkSession,
        folder: str,
        watch: health.Watch,
        stop: threading.Event,
        is_answering: Callable[[], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
        ask_s: float = ASK_S,
    ) -> None:
        self._file = _File(spark, folder)
        self._lane = folder.rpartition("/")[2]
        self._watch, self._stop, self._is_answering, self._clock = watch, stop, is_answering, clock
        self._topics: Topics = {}
        self._left_out: frozenset[str] = frozenset()
        self._is_back = threading.Event()
        self._ask_s = self._asks_every_s = ask_s
        self._restored_at = -STEADY_S
        metrics.PAUSED_TOPICS.labels(self._lane).set(0)

    def note(self, batch_id: int, found: Mapping[tuple[str, int], int]) -> None:
        """Save the partitions that the micro-batch `batch_id` paused. Called before the micro-batch is committed.

        `found` maps (topic, partition) to the first waiting offset, and replaces the result of an earlier run of the same
        micro-batch.
        """
        if not found and all(topic.since != batch_id for topic in self._topics.values()):
            return
        self._topics = noted(self._topics, batch_id, found)
        self._file.write(self._topics)

    @property
    def must_replan(self) -> bool:
        """True if the query must end before its next micro-batch, because the lane's topics change."""
        return self._is_back.is_set() or self._left_out != self._topics.keys()

    @property
    def is_pausing(self) -> bool:
        """True if topics are paused: some of their records are not read until the schema registry answers."""
        return bool(self._topics)

    def topics_to_leave_out(self) -> Collection[str]:
        """Return the topics that the next query must not read. Called before each query, while none runs.

        First move the positions of these topics out of the offset log. If the schema registry answers again, move the
        positions of all paused topics back instead, and leave out no topic.
        """
        if self._is_back.is_set():
            self._restore()
        elif self._left_out != self._topics.keys():
            self._leave_out()
        return self._left_out

    def await_registry(self) -> bool:
        """Wait until the schema registry answers; return True. Return False if no topic is paused, or if the job must stop."""
        while self._left_out and not self._is_back.is_set() and not self._stop.wait(POLL_S):
            pass
        return bool(self._left_out) and not self._stop.is_set()

    def close(self) -> None:
        """Move the positions of all paused topics back into the offset log. Called when the lane ends.

        After that an older version of fanout, which ignores the file of paused topics, can run the lane.
        Never raises. An error is only logged, because the lane may be ending for the same error: its checkpoint cannot be read
        or written. The next start moves the positions as well.
        """
        if not self._topics:
            return
        try:
            self._file.restore()
        except Exception:
            log.exception(
                "lane %s ended, and the positions of its paused topics (%s) could not be moved back into its checkpoint. "
                "Nothing is lost: the next start moves them. Start this version of fanout, not an older one",
                self._lane, _names(self._topics),
            )  # fmt: skip

    def _leave_out(self) -> None:
        self._topics = self._file.leave_out(self._topics)
        is_first, self._left_out = not self._left_out, frozenset(self._topics)
        self._show()
        if not self._left_out:
            return
        log.warning(
            "lane %s pauses the topics %s: the schema registry does not give a schema of their records. These records wait in "
            "Kafka, and all other topics are delivered. Start the schema registry: the lane continues with these topics when "
            "it answers, and no record is lost that Kafka still keeps then. If a setting is wrong, correct "
            "schema_registry.url, username, password or ca_file, and restart the job",
            self._lane, _names(self._left_out),
        )  # fmt: skip
        if is_first:
            is_soon = self._clock() - self._restored_at < STEADY_S
            self._asks_every_s = min(2 * self._asks_every_s, MAX_ASK_S) if is_soon else self._ask_s
            threading.Thread(target=self._ask, name=f"schema registry for {self._lane}", daemon=True).start()

    def _restore(self) -> None:
        self._file.restore()
        log.info("lane %s continues with the topics %s: the schema registry answers", self._lane, _names(self._left_out))
        self._topics, self._left_out, self._restored_at = {}, frozenset(), self._clock()
        self._is_back.clear()
        self._show()

    def _show(self) -> None:
        metrics.PAUSED_TOPICS.labels(self._lane).set(len(self._topics))
        self._watch.pause_topics(
            {name: {int(number): at for number, at in topic.offsets.items()} for name, topic in self._topics.items()}
        )

    def _ask(self) -> None:
        while not self._stop.wait(self._asks_every_s):
            if self._is_answering():
                self._is_back.set()
                return


class _File:
    """The file with the paused topics of a lane, and the lane's offset log."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark, self._folder = spark, folder

    def write(self, topics: Topics) -> None:
        offset_log.write(self._spark, f"{self._folder}/{FILE}", json.dumps(topics, separators=(",", ":")))

    def leave_out(self, topics: Topics) -> Topics:
        """Move positions from the offset log into the file, for those topics that a committed micro-batch paused.

        Return these topics with their positions (see `committed` and `moved_out`). If there is none, only delete the file.
        """
        _, newest = recovery.newest(self._spark, self._folder)
        valid = committed(topics, newest)
        if not valid:
            self._delete()
            return {}
        checkpoint = offset_log.Checkpoint(self._spark, self._folder)
        valid = moved_out(valid, checkpoint.positions)
        self.write(valid)
        checkpoint.change(lambda positions: {name: at for name, at in positions.items() if name not in valid})
        return valid

    def restore(self) -> None:
        """Move the positions in `valid()` from the file back into the offset log, and delete the file.

        Do nothing if there is no file.
        """
        valid = self.valid()
        if valid is None:
            return
        if valid:
            offset_log.Checkpoint(self._spark, self._folder).change(lambda positions: moved_back(valid, positions))
        self._delete()

    def valid(self) -> Topics | None:
        """Return the topics in the file, without those whose micro-batch was not committed. None: there is no file.

        The micro-batch of a topic is the micro-batch that paused the topic. Until this micro-batch is committed, the topic's
        positions are void (`PausedTopic.since`).
        """
        text = offset_log.read(self._spark, f"{self._folder}/{FILE}")
        if text is None:
            return None
        _, newest = recovery.newest(self._spark, self._folder)
        return committed({name: PausedTopic(*fields) for name, fields in json.loads(text).items()}, newest)

    def _delete(self) -> None:
        offset_log.delete(self._spark, f"{self._folder}/{FILE}")


def _names(topics: Collection[str]) -> str:
    return ", ".join(sorted(topics))
