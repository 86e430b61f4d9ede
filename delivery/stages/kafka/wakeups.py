"""Wake a lane that keeps state when something is due and no record comes, or has long been quiet, by a record in its own topic.

Runs on the driver, on a thread of its own. Spark would wake it by running a micro-batch at each trigger; this one runs when
there is something to decide, or its workers would be ended. A tick that Kafka does not take is sent again; one too many does
no harm.
"""

from __future__ import annotations

import logging
import threading
import time

from confluent_kafka import Producer

from delivery import errors
from delivery.config import kafka_clients, settings, topic_pattern
from delivery.observability import metrics
from delivery.stages.kafka import topics
from delivery.webhooks.state.backlog import Pending

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often to look whether the job is to stop."""
SEND_S = 5.0
"""A tick that Kafka has not taken by then is sent again."""
HEARD_S = 60.0
"""So long a tick may go unheard: the lane is held, or what it told was not all. Then another is sent."""
FIRST_HEARD_S = 5.0
"""The same until the first was heard: a lane is ready when it was woken, and one that begins with what comes later
(`source.starting_offsets`) may have passed a tick by."""
QUIET_S = 45.0
"""A lane has a micro-batch at least so often. Spark ends Python workers that had nothing to do for a minute, and new ones take
1.3 CPU seconds each before they do anything (docs/adr/0029): whatever comes first after a quiet minute would wait for them."""


def wait_s(due_ms: int | None, now_ms: float, horizon_ms: float, quiet_s: float) -> float:
    """Return for how long no tick is needed. Pure.

    A micro-batch that begins within the horizon before `due_ms` lets what is due then leave; None: nothing waits. `quiet_s` is
    how long ago the last one was.
    """
    until_quiet = QUIET_S - quiet_s
    until_due = until_quiet if due_ms is None else (due_ms - horizon_ms - now_ms) / 1000
    return max(0.0, min(until_due, until_quiet))


class Ticker:
    """Send a tick whenever what waits comes within the horizon."""

    def __init__(self, config: settings.Settings, lane: str, stop: threading.Event) -> None:
        area = config.batch if lane == "batch" else config.retry
        self._lane = lane
        self._topic = area.ticks_topic
        self._horizon_ms = area.trigger_interval_s * 1000
        self._stop = stop
        self._told = threading.Condition()
        self._due_ms: int | None = None
        self._heard, self._heard_at = 0, time.monotonic()
        _require_apart(f"{lane}.ticks_topic", self._topic, config.source.topic_pattern)
        topics.ensure(config.kafka, [self._topic], 1, {"cleanup.policy": "compact"})
        self._producer = Producer(kafka_clients.for_librdkafka(config.kafka))

    def start(self) -> None:
        """Begin to tick, at once: what an earlier run of the job left waiting is known when the first micro-batch has told."""
        self._due_ms = 0
        threading.Thread(target=self._run, name=f"ticks of {self._lane}", daemon=True).start()

    def waits(self, pending: Pending) -> None:
        """Take note of what waits after a micro-batch, and show it as metrics."""
        metrics.PENDING_EVENTS.labels(self._lane).set(pending.events)
        metrics.PENDING_BYTES.labels(self._lane).set(pending.size)
        metrics.PENDING_OLDEST.labels(self._lane).set(0 if pending.oldest_ms is None else pending.oldest_ms / 1000)
        with self._told:
            self._due_ms = pending.due_ms
            self._heard, self._heard_at = self._heard + 1, time.monotonic()
            self._told.notify()

    def _run(self) -> None:
        while not self._stop.is_set():
            with self._told:
                quiet_s, heard = time.monotonic() - self._heard_at, self._heard
                if wait := wait_s(self._due_ms, time.time() * 1000, self._horizon_ms, quiet_s):
                    self._told.wait(min(wait, LOOK_S))
                    continue
            if not self.tick():
                self._stop.wait(LOOK_S)
                continue
            until = time.monotonic() + (HEARD_S if heard else FIRST_HEARD_S)  # a micro-batch comes for it
            with self._told:
                while self._heard == heard and not self._stop.is_set() and time.monotonic() < until:
                    self._told.wait(LOOK_S)

    def tick(self) -> bool:
        """Send one tick; return whether Kafka has taken it."""
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
            log.warning("lane %s was not woken by topic %s: %s", self._lane, self._topic, refused[0])
        return not refused


def _require_apart(setting: str, topic: str, pattern: str) -> None:
    """Raise SettingsError where ticks would be read as events."""
    if topic_pattern.matches(pattern, topic):
        raise errors.SettingsError(
            f"setting {setting}: {topic} matches source.topic_pattern, so each tick would be rejected as an event; "
            "name it otherwise"
        )
