"""Create a watch for each lane, start the threads that measure lag, and serve `/metrics` and the health probes.

Runs on the driver. A watch holds a lane's phase, progress and lag. The lane and its lag thread update the watch. `/metrics` and
the probes read the watch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from delivery.config import settings
from delivery.observability import health, http_endpoints
from delivery.stages.kafka import lag

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.2
"""Seconds between two checks whether all lanes are ready for the first time."""


class PausesLanes(Protocol):
    """A part of the job that can pause all lanes: the lock, the watch over executors, over the network or over the registry."""

    def pause_reason(self) -> str | None:
        """Return why this part pauses all lanes, as a text for the operator; None: it does not pause them."""


def begin(
    config: settings.Settings, lanes: Collection[str], parts: Sequence[PausesLanes], stop: threading.Event
) -> Mapping[str, health.Watch]:
    """Return a watch for each of `lanes`, after starting the lag threads and the HTTP endpoints if the settings ask for them.

    Each watch reports its lane as paused while one of `parts` has a reason. The watch shows the first such reason to the
    operator. Once `stop` is set, the lag threads end, and each watch shows the phase `stopping`, unless its lane has ended.
    Raise SettingsError if the HTTP port cannot be opened.
    """

    def pause_reason() -> str | None:
        return next((text for part in parts if (text := part.pause_reason()) is not None), None)

    watches = {lane: health.Watch(pause_reason=pause_reason, stop=stop) for lane in lanes}
    http_endpoints.serve(config.metrics, watches)
    lag.watch_all(config, watches, stop)
    threading.Thread(target=log_readiness, args=(watches, stop), name="readiness", daemon=True).start()
    return watches


def log_readiness(watches: Mapping[str, health.Watch], stop: threading.Event) -> None:
    """Wait until all lanes are ready, as `/readyz` says, and log it once; return without a log line once `stop` is set."""
    began = time.monotonic()
    while not stop.wait(LOOK_EVERY_S):
        if all(health.readiness(watch.facts()).ok for watch in watches.values()):
            log.info("all lanes are ready, %.0f s after the start: %s", time.monotonic() - began, ", ".join(watches))
            return
