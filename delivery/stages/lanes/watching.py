"""Create a watch for each lane, start its lag thread, and serve the probes.

Runs on the driver. The lane and the lag thread update the watch; `/metrics` and the probes read it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence

from delivery.config import settings
from delivery.observability import health, http_endpoints
from delivery.stages.kafka import lag

PauseReason = Callable[[], str | None]


def begin(
    config: settings.Settings, lanes: Collection[str], reasons: Sequence[PauseReason], stop: threading.Event
) -> Mapping[str, health.Watch]:
    """Return a watch for each lane. The first of `reasons` that is not None says why all lanes are paused."""

    def pause_reason() -> str | None:
        return next((text for reason in reasons if (text := reason()) is not None), None)

    watches = {lane: health.Watch(pause_reason=pause_reason, stop=stop) for lane in lanes}
    http_endpoints.serve(config.metrics, watches)
    lag.watch_all(config, watches, stop)
    return watches
