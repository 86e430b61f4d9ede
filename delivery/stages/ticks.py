"""Wake the batch lane when a batch is due and no event comes, by a record in a topic of its own.

Runs on the driver, on a thread of its own. Spark would wake it by running a micro-batch at each trigger; this one runs when
there is something to decide. A tick that Kafka does not take is sent again; one too many does no harm.
"""

from __future__ import annotations

import logging
import threading
import time

from confluent_kafka import Producer

from delivery import kafka_options, metrics, settings
from delivery.stages import topics
from delivery.webhooks.pending import Pending

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often to look whether the job is to stop."""
SEND_S = 5.0
"""A tick that Kafka has not taken by then is sent again."""


def wait_s(due_ms: int | None, now_ms: float, horizon_ms: float) -> float | None:
    """Return for how long no tick is needed; None: until something waits. Pure.

    A micro-batch that begins within the horizon before `due_ms` lets the batch leave.
    """
    return None if due_ms is None else max(0.0, (due_ms - horizon_ms - now_ms) / 1000)


class Ticker:
    """Send a tick whenever what waits comes within the horizon."""

    def __init__(self, config: settings.Settings, stop: threading.Event) -> None:
        self._topic = config.batch.ticks_topic
        self._horizon_ms = config.batch.trigger_interval_s * 1000
        self._stop = stop
        self._told = threading.Condition()
        self._due_ms: int | None = None
        self._heard = 0
        topics.ensure(config.kafka, [self._topic], 1, {"cleanup.policy": "compact"})
        self._producer = Producer(kafka_options.for_command(config.kafka))

    def start(self) -> None:
        """Begin to tick, at once: what an earlier run of the job left waiting is known when the first micro-batch has told."""
        self._due_ms = 0
        threading.Thread(target=self._run, name="ticks", daemon=True).start()

    def waits(self, pending: Pending) -> None:
        """Take note of what waits after a micro-batch, and show it as metrics."""
        metrics.PENDING_EVENTS.set(pending.events)
        metrics.PENDING_BYTES.set(pending.size)
        metrics.PENDING_OLDEST.set(0 if pending.oldest_ms is None else pending.oldest_ms / 1000)
        with self._told:
            self._due_ms = pending.due_ms
            self._heard += 1
            self._told.notify()

    def _run(self) -> None:
        while not self._stop.is_set():
            with self._told:
                wait, heard = wait_s(self._due_ms, time.time() * 1000, self._horizon_ms), self._heard
                if wait != 0:
                    self._told.wait(LOOK_S if wait is None else min(wait, LOOK_S))
                    continue
            if self._ticked():
                # A micro-batch comes for it. While the lane is held there is none, and one tick is enough.
                with self._told:
                    while self._heard == heard and not self._stop.is_set():
                        self._told.wait(LOOK_S)

    def _ticked(self) -> bool:
        try:
            self._producer.produce(self._topic, key=b"tick")
            is_taken = self._producer.flush(SEND_S) == 0
        except Exception as exc:  # noqa: BLE001  # the thread must survive, or batches would wait for the next event
            log.warning("the batch lane was not woken: %s", exc)
            is_taken = False
        if not is_taken:
            self._stop.wait(LOOK_S)
        return is_taken
