"""Create a watch for each lane, start the threads that measure lag, and serve `/metrics` and the health probes.

Runs on the driver. A watch holds a lane's phase, progress and lag. The lane and its lag thread update the watch. `/metrics` and
the probes read the watch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence

from delivery.config import settings
from delivery.observability import health, http_endpoints
from delivery.stages.kafka import lag

PauseReason = Callable[[], str | None]
"""A function by which one part of the job (lock, network, registry) says why all lanes are paused; None: that part does not
pause them."""


def begin(
    config: settings.Settings, lanes: Collection[str], reasons: Sequence[PauseReason], stop: threading.Event
) -> Mapping[str, health.Watch]:
    """Return a watch for each of `lanes`, after starting the lag threads and the HTTP endpoints if the settings ask for them.

    Each watch reports its lane as paused while one of `reasons` returns a text. The watch shows the first such text to the
    operator. Once `stop` is set, the lag threads end, and each watch shows the phase `stopping`, unless its lane has ended.
    Raise SettingsError if the HTTP port cannot be opened.
    """

    def pause_reason() -> str | None:
        return next((text for reason in reasons if (text := reason()) is not None), None)

    watches = {lane: health.Watch(pause_reason=pause_reason, stop=stop) for lane in lanes}
    http_endpoints.serve(config.metrics, watches)
    lag.watch_all(config, watches, stop)
    return watches
