"""Publish events at a steady pace while a test does something else."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator

import orjson

from delivery.config import settings
from delivery.stages.kafka import topics
from fanout.kafka import publishing

EVENT_TYPE = "load"
TENANT = "t1"
PARTITIONS = 4
TICKS_PER_S = 20
_NUMBERS = itertools.count()


class Load:
    """The events that were published, in order. Ids are unique in the process of the tests."""

    def __init__(self, kafka: settings.KafkaSettings, topic: str) -> None:
        topics.ensure(kafka, [topic], PARTITIONS)
        self._publisher = publishing.Publisher(kafka)
        self._topic = topic
        self.ids: list[str] = []

    def publish(self, count: int) -> list[str]:
        """Publish so many events now; return their ids."""
        ids = [f"e{next(_NUMBERS):07}" for _ in range(count)]
        for event_id in ids:
            value = orjson.dumps({"id": event_id, "type": EVENT_TYPE, "tenant_id": TENANT, "note": "x" * 300})
            self._publisher.publish(publishing.Message(topic=self._topic, value=value))
        self._publisher.flush()
        self.ids += ids
        return ids

    @contextlib.contextmanager
    def steadily(self, per_s: int) -> Iterator[None]:
        """Publish so many events a second while the context is open."""
        ended = threading.Event()
        failures: list[BaseException] = []

        def run() -> None:
            began = time.monotonic()
            try:
                for tick in itertools.count(1):
                    self.publish(per_s // TICKS_PER_S)
                    if ended.wait(max(0.0, began + tick / TICKS_PER_S - time.monotonic())):
                        return
            except BaseException as exc:  # noqa: BLE001  # raised by the thread of the test
                failures.append(exc)

        thread = threading.Thread(target=run, name="load", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        if failures:
            raise failures[0]
