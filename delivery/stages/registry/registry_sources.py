"""Choose how the executors get the registry: by broadcast or by look-up. Runs on the driver."""

from __future__ import annotations

import threading

from delivery.config import settings
from delivery.stages.registry import lookup_source, registry_follower


def source(config: settings.Settings, stop: threading.Event) -> registry_follower.Broadcasts | lookup_source.Lookups:
    """Return the source from which all lanes of the job get the registry: the one that `snapshot.source` names.

    Broadcasts starts to read the registry at once, on a thread of its own. Lookups asks Postgres before each micro-batch. Raise
    SettingsError if the settings have no valid key ring.
    """
    made = lookup_source.Lookups if config.snapshot.source == "lookup" else registry_follower.Broadcasts
    return made(config, stop=stop)
