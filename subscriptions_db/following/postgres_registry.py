"""The registry in Postgres, for a job. Runs on the driver."""

from __future__ import annotations

import contextlib
import threading
from contextlib import AbstractContextManager

from delivery import errors
from delivery.config import settings
from delivery.registry_model import Disable
from subscriptions_db.following import endpoint_disabler, lookup_source, registry_follower
from subscriptions_db.postgres import connect, migrate


class PostgresRegistry:
    """A job's access to the registry, by the settings of the job. Each method is called at most once."""

    def __init__(self, config: settings.Settings) -> None:
        self._config = config

    def require_migrated(self) -> None:
        """Raise RegistryOutdated if the tables are missing or not of this version. Do nothing if Postgres does not answer."""
        with (
            contextlib.suppress(errors.RegistryUnavailable),
            connect.connect(self._config.database, application_name="fanout job") as connection,
        ):
            migrate.require_current(connection)

    def follow(self, stop: threading.Event) -> registry_follower.Follower:
        """Return a Follower whose thread runs until `stop`. Raise SettingsError if the settings have no valid key ring."""
        follower = registry_follower.Follower(self._config, stop=stop)
        follower.start()
        return follower

    def look_up(self, stop: threading.Event) -> lookup_source.Lookups:
        """Return Lookups, which wait for Postgres until `stop`. Raise SettingsError if the settings have no valid key ring."""
        return lookup_source.Lookups(self._config, stop=stop)

    def disabling(self, stop: threading.Event) -> AbstractContextManager[Disable]:
        """Return a context with the function that requests to disable endpoints. The end of the context sets `stop`."""
        return endpoint_disabler.running(self._config, stop)
