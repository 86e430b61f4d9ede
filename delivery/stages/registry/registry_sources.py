"""Choose how the executors get the registry: by broadcast or by look-up. Runs on the driver."""

from __future__ import annotations

import threading

from delivery import errors
from delivery.config import settings
from delivery.stages.registry.broadcasts import Broadcasts
from delivery.stages.registry.job_registry import JobRegistry, RegistrySupply


def source(config: settings.Settings, registry: JobRegistry, stop: threading.Event) -> RegistrySupply:
    """Return the source from which all lanes of the job get the registry. The setting `snapshot.source` names this source.

    With "broadcast", the driver begins to read the registry at once, on a thread of its own. With "lookup", the driver asks
    Postgres for the revision before each micro-batch. Raise SettingsError if the settings have no valid key ring, or with
    "broadcast" if `snapshot.poll_interval_s` is not below `snapshot.max_age_s`.
    """
    area = config.snapshot
    if area.source == "broadcast" and area.poll_interval_s >= area.max_age_s:
        raise errors.SettingsError(
            f"setting snapshot.poll_interval_s is {area.poll_interval_s:g}, and snapshot.max_age_s is {area.max_age_s:g}: all "
            "lanes would pause between two requests for changes. The job did not start: make the interval shorter"
        )
    return registry.look_up(stop) if area.source == "lookup" else Broadcasts(registry.follow(stop))
