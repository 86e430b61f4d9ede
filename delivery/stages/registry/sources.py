"""Choose how the executors get the registry: by broadcast or by look-up. Runs on the driver."""

from __future__ import annotations

import threading

from delivery.config import settings
from delivery.stages.registry import lookup_source, registry_follower


def source(config: settings.Settings, stop: threading.Event) -> registry_follower.Broadcasts | lookup_source.Lookups:
    """Return the source of the registry that the setting `snapshot.source` names, for all lanes of the job.

    The source for broadcasts starts to read the registry at once, on a thread of its own.
    """
    made = lookup_source.Lookups if config.snapshot.source == "lookup" else registry_follower.Broadcasts
    return made(config, stop=stop)
