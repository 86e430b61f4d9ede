"""Wake the batch or the retry lane by a record in the lane's wake-up topic, so that Spark starts a micro-batch without events.

Runs on the driver, on a thread of its own for each lane. A wake-up is sent when the lane starts, when a batch or a retry entry
is due, and when the lane has been idle for QUIET_S. Spark's own timers would run a micro-batch at each trigger. With wake-ups,
a micro-batch without events runs only at the start, when something is due, or before Spark ends the idle workers. The thread
sends a wake-up again if Kafka refuses it. With `--once` there is no thread: the lane sends one wake-up at its start. A
superfluous wake-up does no harm.
"""

from __future__ import annotations

import logging
import threading
import time

from delivery import errors
from delivery.config import kafka_clients, lane_areas, settings, topic_pattern
from delivery.observability import metrics
from delivery.stages.kafka import topics
from delivery.webhooks.state.backlog import ShardBacklog

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Seconds between two checks of the stop event, and before an unconfirmed wake-up is sent again."""
SEND_S = 5.0
"""Seconds to wait for Kafka's confirmation of a wake-up. Without a confirmation the wake-up is sent again, except with
`--once`."""
HEARD_S = 60.0
"""Seconds to wait for the micro-batch that a wake-up causes. If none comes, as while the lane is paused, the wake-up is sent
again."""
FIRST_HEARD_S = 5.0
"""Seconds to wait for the lane's first micro-batch, in place of HEARD_S. The lane is ready only after this micro-batch. A lane
that starts at the latest offsets (`source.starting_offsets`) may have skipped the first wake-up."""
QUIET_S = 45.0
"""Seconds after a micro-batch until the lane is woken again. Spark ends Python workers that were idle for a minute. The first
record after a quiet minute would wait for new workers. Each took 1.3 CPU seconds before its first work (docs/adr/0029), and
takes less since the workers share loaded modules (docs/adr/0048)."""


def wait_s(due_ms: int | None, now_ms: float, look_ahead_ms: float, quiet_s: float) -> float:
    """Return the number of seconds until the next wake-up is needed; 0: now. Pure.

    A wake-up is needed `look_ahead_ms` before `due_ms`, and at the latest QUIET_S after the last micro-batch, which was
    `quiet_s` seconds ago. `due_ms` is the due time of the lane's backlog (ShardBacklog), in milliseconds since the epoch like
    `now_ms`. `due_ms` None: nothing waits, so only QUIET_S counts.
    """
    until_quiet = QUIET_S - quiet_s
    until_due = until_quiet if due_ms is None else (due_ms - look_ahead_ms - now_ms) / 1000
    return max(0.0, min(until_due, until_quiet))


class Waker:
    """Send wake-ups to one lane, the batch or the retry lane: when something is due, and when the lane has been idle.

    `area` is the lane's settings area, and has the lane's name. The constructor creates the wake-up topic if it is missing. It
    raises SettingsError if the topic matches `source.topic_pattern`, or if librdkafka refuses an option. It raises
    KafkaUnavailable if Kafka does not answer or refuses a request.
    """

    def __init__(self, config: settings.Settings, lane: str, area: lane_areas.LaneArea, stop: threading.Event) -> None:
        self._lane = lane
        self._topic = area.ticks_topic
        self._look_ahead_ms = area.trigger_interval_s * 1000
        self._stop = stop
        self._changed = threading.Condition()
        self._due_ms: int | None = None
        self._heard, self._heard_at = 0, time.monotonic()
        _require_apart(f"{lane}.ticks_topic", self._topic, config.source.topic_pattern)
        topics.ensure(config.kafka, [self._topic], 1, {"cleanup.policy": "compact"})
        self._producer = kafka_clients.producer(config.kafka, {})

    def start(self) -> None:
        """Start the thread that sends wake-ups, the first at once: only a micro-batch finds what waits in the lane's state."""
        self._due_ms = 0
        threading.Thread(target=self._run, name=f"wake-ups of {self._lane}", daemon=True).start()

    def update(self, pending: ShardBacklog) -> None:
        """Set the next due time by the lane's backlog, restart the idle time, and set the metrics.

        Called after each micro-batch in which the shards reported their backlog.
        """
        metrics.PENDING_EVENTS.labels(self._lane).set(pending.events)
        metrics.PENDING_BYTES.labels(self._lane).set(pending.size)
        metrics.PENDING_OLDEST.labels(self._lane).set(0 if pending.oldest_ms is None else pending.oldest_ms / 1000)
        with self._changed:
            self._due_ms = pending.due_ms
            self._heard, self._heard_at = self._heard + 1, time.monotonic()
            self._changed.notify()

    def _run(self) -> None:
        while not self._stop.is_set():
            with self._changed:
                quiet_s, heard = time.monotonic() - self._heard_at, self._heard
                if wait := wait_s(self._due_ms, time.time() * 1000, self._look_ahead_ms, quiet_s):
                    self._changed.wait(min(wait, LOOK_S))
                    continue
            if not self.wake():
                self._stop.wait(LOOK_S)
                continue
            until = time.monotonic() + (HEARD_S if heard else FIRST_HEARD_S)  # the wake-up causes a micro-batch
            with self._changed:
                while self._heard == heard and not self._stop.is_set() and time.monotonic() < until:
                    self._changed.wait(LOOK_S)

    def wake(self) -> bool:
        """Send one wake-up, and wait up to SEND_S; return True if Kafka has confirmed it. If not, log a warning."""
        refused: list[object] = []
        try:
            self._producer.produce(
                self._topic, key=b"tick", on_delivery=lambda error, _: refused.append(error) if error else None
            )
            if self._producer.flush(SEND_S):
                refused.append(f"not within {SEND_S:.0f} s")
        except Exception as exc:  # noqa: BLE001  # the thread must survive, or batches would wait for the next event
            refused.append(exc)
        if refused:
            log.warning(
                "lane %s was not woken: no wake-up record could be written to topic %s (%s). The driver tries again in %.0f s, "
                "but not with --once. Until a wake-up or an event comes, due deliveries wait. If this is logged again, check "
                "the brokers, and that the job may write the topic", self._lane, self._topic, refused[0], LOOK_S,
            )  # fmt: skip
        return not refused


def _require_apart(setting: str, topic: str, pattern: str) -> None:
    """Raise SettingsError if the wake-up topic matches the pattern of the event topics."""
    if topic_pattern.matches(pattern, topic):
        raise errors.SettingsError(
            f"setting {setting}: {topic} matches source.topic_pattern, so each wake-up record would be rejected as an event. "
            "The job did not start: choose another name"
        )
