"""Begin to watch the lanes: what each lane does, how much waits for it in Kafka, and who asks by HTTP.

Runs on the driver. Each watch is fed by the lane and by a thread that asks Kafka; `/metrics` and the probes read it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence

from delivery.config import settings
from delivery.observability import health, http_endpoints
from delivery.stages.kafka import lag

HoldReason = Callable[[], str | None]


def begin(
    config: settings.Settings, lanes: Collection[str], reasons: Sequence[HoldReason], stop: threading.Event
) -> Mapping[str, health.Watch]:
    """Return a watch for each lane. The first of `reasons` that is not None says why every lane holds."""

    def hold_reason() -> str | None:
        return next((text for reason in reasons if (text := reason()) is not None), None)

    watches = {lane: health.Watch(hold=hold_reason, stop=stop) for lane in lanes}
    http_endpoints.serve(config.metrics, watches)
    lag.watch_all(config, watches, stop)
    return watches
